"""Loads a cubin into the current context and launches its kernels, also while a graph is being captured."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

Argument = tuple[Any, Any]
"""A value and its ctypes type."""


class CudaModule:
    """One loaded cubin. Used by the thread that owns the context."""

    def __init__(self, image: bytes, kernels: Sequence[str]) -> None:
        """Load ``image`` and every kernel of it that is named; a context must be current.

        A kernel that the driver loads at its first launch may wait for the device, on which a step may be
        waiting for what comes behind that launch.

        Raises:
            ConfigurationError: cuda-bindings is missing.
            UnavailableError: the driver refuses the image.
        """
        try:
            from cuda.bindings import driver  # noqa: PLC0415 - optional dependency, named in the error
        except ImportError as error:
            raise ConfigurationError(
                "device path: cuda-bindings is missing; install kernelflume[gpu], or set data_path=posted"
            ) from error
        self._driver = driver
        self._module = self._checked(driver.cuModuleLoadData(image), "cuModuleLoadData")
        self._functions = {name: self._load(name) for name in kernels}

    def launch(
        self,
        name: str,
        *,
        grid: tuple[int, int],
        threads: int,
        stream: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Launch the kernel ``name`` on a stream handle.

        Raises:
            UnavailableError: the driver refuses the launch.
        """
        values = tuple(value for value, _ in arguments)
        types = tuple(kind for _, kind in arguments)
        launched = self._driver.cuLaunchKernel(
            self._functions[name], grid[0], grid[1], 1, threads, 1, 1, 0, stream, (values, types), 0
        )
        self._checked(launched, name)

    def _load(self, name: str) -> Any:
        function = self._checked(self._driver.cuModuleGetFunction(self._module, name.encode()), name)
        self._checked(self._driver.cuFuncLoad(function), name)
        return function

    def _checked(self, result: tuple[Any, ...], what: str) -> Any:
        code, *values = result
        if int(code) != 0:
            raise UnavailableError(f"CUDA: {what} failed with {code!s}")
        return values[0] if values else None


def pointer(address: int) -> Argument:
    """Return a device address as an argument."""
    return address, ctypes.c_void_p


def unsigned(value: int) -> Argument:
    """Return a 32-bit number as an argument."""
    return value, ctypes.c_uint32


def unsigned_long(value: int) -> Argument:
    """Return a 64-bit number as an argument."""
    return value, ctypes.c_uint64


def real(value: float) -> Argument:
    """Return a float as an argument."""
    return value, ctypes.c_float
