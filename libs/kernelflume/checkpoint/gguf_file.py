"""Reads a GGUF file's metadata and tensor table.

The gguf library's own reader makes several numpy views for every element of the token and merge arrays, which
takes longer than dequantising a small model. This one reads the same format with struct, checks every length
against the file, and leaves number formats and dequantising to the library.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGUF_MAGIC, GGMLQuantizationType, GGUFValueType

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    import numpy.typing as npt

_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Row-major, the contiguous dimension last (a GGUF file stores it the other way round)."""
    type: GGMLQuantizationType
    offset: int
    """Of the first byte, from the start of the file."""
    num_bytes: int


class GgufFile:
    """An open GGUF file. Use as a context manager; ``data`` arrays must not outlive it."""

    def __init__(self, path: Path) -> None:
        """Open and parse ``path``.

        Raises:
            ConfigurationError: it cannot be read, is no GGUF file of a known version, or is cut short.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ConfigurationError(f"model: cannot read {path}: {error}") from error
        try:
            self.metadata, self.tensors = _Parser(self._bytes).parse()
        except _DamagedError as error:
            self._bytes.close()
            raise ConfigurationError(f"model: {path} is not a usable GGUF file: {error}") from error

    def data(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """Return the stored bytes as rows: uint8 [..., bytes of a row]."""
        flat = np.frombuffer(self._bytes, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
        return flat.reshape((*tensor.shape[:-1], -1))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Arrays handed out may still be referenced by a traceback; the mapping then ends with them.
        try:
            self._bytes.close()
        except BufferError:
            return


class _DamagedError(Exception):
    """What is wrong with the bytes."""


class _Parser:
    """A cursor over the head of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0

    def parse(self) -> tuple[dict[str, Any], tuple[GgufTensor, ...]]:
        if self._scalar("<I") != GGUF_MAGIC:
            raise _DamagedError("it does not begin with GGUF")
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise _DamagedError(
                f"version {version} is not supported, only {_VERSIONS} in little-endian order"
            )
        num_tensors, num_fields = self._scalar("<Q"), self._scalar("<Q")
        self._check_count(num_tensors, 24)
        self._check_count(num_fields, 13)
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            name = self._string()
            metadata[name] = self._value(self._value_type())
        entries = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _DamagedError(f"general.alignment {alignment!r} is no power of two")
        start = -(-self._at // alignment) * alignment
        return metadata, tuple(self._placed(entry, start) for entry in entries)

    def _placed(
        self, entry: tuple[str, tuple[int, ...], GGMLQuantizationType, int], start: int
    ) -> GgufTensor:
        name, shape, kind, offset = entry
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block_size:
            raise _DamagedError(f"rows of {name} are no multiple of a {kind.name} block of {block_size}")
        num_elements = 1
        for extent in shape:
            num_elements *= extent
        num_bytes = num_elements // block_size * block_bytes
        if start + offset + num_bytes > self._size:
            raise _DamagedError(f"it ends before the data of {name}: the file is cut short")
        return GgufTensor(name, shape, kind, start + offset, num_bytes)

    def _tensor(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        num_dimensions = self._scalar("<I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise _DamagedError(f"{name} has {num_dimensions} dimensions")
        shape = tuple(int(self._scalar("<Q")) for _ in range(num_dimensions))[::-1]
        number = self._scalar("<I")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise _DamagedError(f"{name} has the unknown tensor type {number}") from None
        return name, shape, kind, int(self._scalar("<Q"))

    def _value_type(self) -> GGUFValueType:
        number = self._scalar("<I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise _DamagedError(f"a metadata field has the unknown type {number}") from None

    def _value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self._string()
        if kind is not GGUFValueType.ARRAY:
            return self._scalar(_SCALARS[kind])
        element, count = self._value_type(), self._scalar("<Q")
        if element is GGUFValueType.STRING:
            self._check_count(count, 8)
            return [self._string() for _ in range(count)]
        if element is GGUFValueType.ARRAY:
            self._check_count(count, 12)
            return [self._value(element) for _ in range(count)]
        code = _SCALARS[element]
        width = struct.calcsize(code)
        self._check_count(count, width)
        values = struct.unpack_from(f"<{count}{code[1]}", self._data, self._at)
        self._at += count * width
        return list(values)

    def _scalar(self, code: str) -> Any:
        self._check_count(1, struct.calcsize(code))
        (value,) = struct.unpack_from(code, self._data, self._at)
        self._at += struct.calcsize(code)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        self._check_count(length, 1)
        raw = self._data[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise _DamagedError(f"a string is not UTF-8: {error}") from error

    def _check_count(self, count: int, width: int) -> None:
        if count * width > self._size - self._at:
            raise _DamagedError("it ends inside its metadata: the file is cut short or damaged")
