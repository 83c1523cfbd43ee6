"""Weights by name: from a checkpoint's safetensors files, or made from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import SafetensorError, safe_open

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from torch import Tensor

    from kernelflume.checkpoint.index import WeightIndex

_EMBEDDING = "embed_tokens.weight"
_PREFIXES = ("model.", "")
_DERIVED_SUFFIX = ".rotary_emb.inv_freq"  # old checkpoints store it; it follows from the configuration
_TOP_LEVEL = ("lm_head.weight",)


class WeightSource(Protocol):
    """Hands out each tensor of a model once, as it is stored: on the CPU, or where it is drawn."""

    def take(self, name: str, *shape: int) -> Tensor:
        """Return the tensor ``name``, written without the ``model.`` prefix.

        Raises:
            ConfigurationError: there is none, or its shape is another one.
        """
        ...


class StoredWeights:
    """A checkpoint's tensors. Use as a context manager: files are open inside only."""

    def __init__(self, index: WeightIndex) -> None:
        self._index = index
        self._prefix = _find_prefix(index)
        self._files: dict[str, safe_open] = {}
        self._left = set(index.tensors)

    def take(self, name: str, *shape: int) -> Tensor:
        """Return the tensor ``name``; see ``WeightSource``."""
        stored_name = name if name in _TOP_LEVEL else self._prefix + name
        entry = self._index.tensors.get(stored_name)
        if entry is None:
            raise ConfigurationError(f"model: the checkpoint has no tensor {stored_name}")
        if entry.shape != shape:
            raise ConfigurationError(
                f"model: tensor {stored_name} has shape {list(entry.shape)}, "
                f"config.json asks for {list(shape)}"
            )
        try:
            file = self._files.get(str(entry.file))
            if file is None:
                file = safe_open(str(entry.file), framework="pt")
                self._files[str(entry.file)] = file
            tensor: Tensor = file.get_tensor(stored_name)
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(
                f"model: cannot read {stored_name} from {entry.file}: {error}"
            ) from error
        if not tensor.is_floating_point():
            raise ConfigurationError(
                f"model: tensor {stored_name} is stored as {entry.dtype}, which is not supported"
            )
        self._left.discard(stored_name)
        return tensor

    def check_all_taken(self, *, unused: tuple[str, ...] = ()) -> None:
        """Make sure that the model has used every tensor but those in ``unused``.

        Raises:
            ConfigurationError: tensors are left that this architecture does not know.
        """
        left = sorted(
            name for name in self._left if name not in unused and not name.endswith(_DERIVED_SUFFIX)
        )
        if left:
            shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
            raise ConfigurationError(f"model: the checkpoint has tensors this model does not use: {shown}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()


class RandomWeights:
    """Weights drawn from a seed, rounded to bfloat16 as published checkpoints are.

    They are drawn on the device that they are for: for billions of them a GPU takes seconds, a CPU minutes.
    """

    _DEVIATION = 0.02  # the usual initialisation of these models

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(self, name: str, *shape: int) -> Tensor:
        """Return new numbers: norm weights around 1, all else around 0."""
        centre = 1.0 if name.endswith("norm.weight") else 0.0
        values = torch.randn(shape, generator=self._generator, device=self._device)
        return values.mul_(self._DEVIATION).add_(centre).to(torch.bfloat16)


def _find_prefix(index: WeightIndex) -> str:
    for prefix in _PREFIXES:
        if prefix + _EMBEDDING in index.tensors:
            return prefix
    raise ConfigurationError(f"model: the checkpoint has no tensor model.{_EMBEDDING}")
