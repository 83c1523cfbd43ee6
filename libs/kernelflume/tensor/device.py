"""Which device a node computes on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


def choose_device(name: str) -> torch.device:
    """Return the device that a setting names, with its index, and make it this thread's.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ConfigurationError: there is no such GPU.
    """
    if name == "cpu":
        return torch.device("cpu")
    index = int(name.partition(":")[2] or 0)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= found:
        raise ConfigurationError(f"device: {name} is not there; torch sees {found} GPUs")
    device = torch.device("cuda", index)
    use_device(device)
    torch.empty(1, device=device)  # makes the context, which the transport must find at its start
    return device


def use_device(device: torch.device) -> None:
    """Make a GPU this thread's; each thread begins on the first one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def stream_handle() -> int:
    """Return the driver's handle of this thread's current stream, to launch our own kernels on."""
    return int(torch.cuda.current_stream().cuda_stream)


def architecture(device: torch.device) -> str:
    """Return a GPU's architecture as nvcc names it, with the features of that chip alone."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def memory_kind(device: torch.device) -> str:
    """Return the transport's word for a device's memory."""
    return "DRAM" if device.type == "cpu" else "VRAM"


class SideStream:
    """A branch beside the current stream, in a captured graph too; its kernels get free processors first."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._is_forked = False

    @contextlib.contextmanager
    def fork(self) -> Iterator[None]:
        """Enqueue what follows on the branch, behind everything that is on the current stream so far."""
        self._stream.wait_stream(torch.cuda.current_stream())
        self._is_forked = True
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Have the current stream wait for what forked since; a branch of a capture must join in it."""
        if not self._is_forked:
            return
        self._is_forked = False
        torch.cuda.current_stream().wait_stream(self._stream)
