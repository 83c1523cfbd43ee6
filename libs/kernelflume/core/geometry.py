"""The shape of a model's keys and values: all that an attention node ever learns of a model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, Self

from kernelflume.core.errors import ConfigurationError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Formats to compute in, and bytes of a number."""
FP8 = "float8_e4m3fn"
"""Four bits of exponent, three of mantissa, no infinity; up to 448."""
KV_DTYPE_BYTES = {**DTYPE_BYTES, FP8: 1}
"""Formats to keep keys and values in."""

_ALIASES = {"fp8": FP8, "fp8_e4m3": FP8}


def kv_dtype_of(asked: str, dtype: str) -> str:
    """Return the format that keys and values are kept in.

    Args:
        asked: ``auto`` for the model's, ``fp8`` or ``fp8_e4m3`` for FP8, or a format's own name.
        dtype: the model's.

    Raises:
        ConfigurationError: there is no such format, or nothing is gained by it.
    """
    if asked == "auto":
        return dtype
    kv_dtype = _ALIASES.get(asked, asked)
    if kv_dtype not in KV_DTYPE_BYTES:
        names = ", ".join(("auto", *_ALIASES, *DTYPE_BYTES))
        raise ConfigurationError(f"kv_cache_dtype: {asked!r} is not one of {names}")
    if kv_dtype != dtype and KV_DTYPE_BYTES[kv_dtype] >= DTYPE_BYTES[dtype]:
        raise ConfigurationError(
            f"kv_cache_dtype: keys and values of a model in {dtype} become no smaller in {asked}"
        )
    return kv_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """Head geometry and number formats of one model (paper section 4.2 uses the same symbols).

    ``model_id`` and ``model_revision`` are names to compare, never paths: an attention node cannot open
    the weights.
    """

    model_id: str
    model_revision: str
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    """Format of queries and partial outputs on the wire."""
    kv_dtype: str
    """Format of keys and values in the pool and on the wire."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_query_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"geometry: {name} must be at least 1, not {getattr(self, name)}")
        if self.num_query_heads % self.num_kv_heads:
            raise ConfigurationError(
                f"geometry: {self.num_query_heads} query heads are no multiple of "
                f"{self.num_kv_heads} KV heads"
            )
        for name, known in (("dtype", DTYPE_BYTES), ("kv_dtype", KV_DTYPE_BYTES)):
            if getattr(self, name) not in known:
                raise ConfigurationError(
                    f"geometry: {name} {getattr(self, name)!r} is not one of {', '.join(known)}"
                )

    @property
    def query_row_bytes(self) -> int:
        """Bytes of one row's query (or partial output) in one layer."""
        return self.num_query_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of one token's key and value in one layer: 2 H_kv d_h bytes_per_element."""
        return 2 * self.num_kv_heads * self.head_dim * KV_DTYPE_BYTES[self.kv_dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers: 2 H_kv d_h L bytes_per_element."""
        return self.num_layers * self.kv_row_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Build from ``to_dict``'s form.

        Raises:
            ConfigurationError: a field is missing, unknown, of another type or out of range.
        """
        kinds = {known.name: known.type for known in dataclass_fields(cls)}
        for what, names in (
            ("needs", kinds.keys() - fields.keys()),
            ("has no", fields.keys() - kinds.keys()),
        ):
            if names:
                raise ConfigurationError(f"geometry {what} {', '.join(sorted(names))}")
        for name, value in fields.items():
            # Exactly: True would pass for the number 1.
            if type(value).__name__ != kinds[name]:
                raise ConfigurationError(f"geometry: {name} {value!r} is no {kinds[name]}")
        return cls(**fields)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build from ``to_dict``'s form as JSON text.

        Raises:
            ConfigurationError: it is no JSON object, or a field is missing, unknown or out of range.
        """
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"geometry is no JSON object: {error}") from error
        if not isinstance(fields, dict):
            raise ConfigurationError("geometry is no JSON object")
        return cls.from_dict(fields)
