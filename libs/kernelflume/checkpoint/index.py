"""Which safetensors file of a folder holds which tensor, and in which shape."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelflume.checkpoint.config import read_json
from kernelflume.checkpoint.fingerprint import sampled_digest
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SINGLE_FILE = "model.safetensors"
_SHARD_INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit that the safetensors library itself sets


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor's place."""

    file: Path
    dtype: str
    """safetensors' name of the number format, such as ``BF16``."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightIndex:
    """Every tensor of a checkpoint by name, from the headers alone."""

    tensors: Mapping[str, StoredTensor]
    digest: bytes
    """SHA-256 over the headers and samples of the data; see ``sampled_digest``."""

    @property
    def num_elements(self) -> int:
        """Numbers in all tensors together."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @classmethod
    def from_folder(cls, folder: Path) -> WeightIndex:
        """Read the headers of ``model.safetensors`` or of the shards its index names.

        Raises:
            ConfigurationError: a file is missing, cut short or damaged, or the index and the shards differ.
        """
        if (folder / _SINGLE_FILE).is_file():
            names: dict[str, str] | None = None
            files = [_SINGLE_FILE]
        elif (folder / _SHARD_INDEX).is_file():
            names = _shard_names(folder / _SHARD_INDEX)
            files = sorted(set(names.values()))
        else:
            raise ConfigurationError(f"model: {folder} holds neither {_SINGLE_FILE} nor {_SHARD_INDEX}")
        digest = hashlib.sha256()
        tensors: dict[str, StoredTensor] = {}
        for file in files:
            path = folder / file
            header = _read_header(path)
            digest.update(header + sampled_digest(path))
            tensors.update(_entries(path, header))
        for name, file in (names or {}).items():
            if name not in tensors or tensors[name].file.name != file:
                raise ConfigurationError(f"model: {_SHARD_INDEX} places {name} in {file}, which lacks it")
        return cls(tensors, digest.digest())


def _shard_names(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigurationError(f"model: {path} has no weight_map")
    for file in weight_map.values():
        if not isinstance(file, str) or "/" in file or "\\" in file or file.startswith("."):
            raise ConfigurationError(f"model: {path} names {file!r}, which is no file of its folder")
    return weight_map


def _read_header(path: Path) -> bytes:
    """Return the JSON header, checked to leave no byte of the file over and none missing."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            size = path.stat().st_size
            if not 2 <= length <= min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
                raise ConfigurationError(f"model: {path} is no safetensors file, or is cut short")
            return file.read(length)
    except OSError as error:
        raise ConfigurationError(f"model: cannot read {path}: {error}") from error


def _entries(path: Path, header: bytes) -> dict[str, StoredTensor]:
    try:
        fields: dict[str, Any] = json.loads(header)
        fields.pop("__metadata__", None)
        entries = {
            name: StoredTensor(path, str(entry["dtype"]), tuple(entry["shape"]))
            for name, entry in fields.items()
        }
        end = max((int(entry["data_offsets"][1]) for entry in fields.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ConfigurationError(f"model: {path} has a damaged safetensors header: {error!r}") from error
    expected = _LENGTH_BYTES + len(header) + end
    if path.stat().st_size != expected:
        raise ConfigurationError(f"model: {path} has {path.stat().st_size} bytes, its header says {expected}")
    return entries
