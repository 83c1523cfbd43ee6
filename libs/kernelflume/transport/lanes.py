"""Layout of the buffers that one weight node and one attention node share, a lane each microbatch.

Both sides compute the same layout from the geometry and the limits agreed in the handshake, so only base
addresses travel. Sizes are bucketed: a write moves the smallest bucket that holds its rows, and each bucket
is prepared once a pair.

    query region    (on the attention node)  [bucket, query heads, head dim]
    append region   (on the attention node)  per slot: [layers, bucket, 2, KV heads, head dim]
    partial region  (on the weight node)     [bucket, query heads, head dim],
                                             then the lse: float32 [bucket, query heads]

Captured graphs need addresses that do not depend on a step's rows: there the lse comes first, for the most
rows that a lane can have, and outputs behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry

NUM_APPEND_SLOTS = 2
"""Two, so that a step's keys and values are written while the attention node still files the last step's."""

_LSE_BYTES = 4
_ALIGNMENT = 256
"""What any kernel may ask of an address."""


@lru_cache(maxsize=64)  # asked for at every post
def row_buckets(max_rows: int) -> tuple[int, ...]:
    """Return ascending row counts from 1 to ``max_rows``: all up to 8, then four to a doubling."""
    buckets = list(range(1, min(max_rows, 8) + 1))
    step = 2
    while buckets[-1] < max_rows:
        for _ in range(4):
            buckets.append(min(buckets[-1] + step, max_rows))
            if buckets[-1] == max_rows:
                break
        step *= 2
    return tuple(buckets)


@lru_cache(maxsize=64)
def graph_buckets(max_rows: int) -> tuple[int, ...]:
    """Return the row counts that a graph is captured for: powers of two, and ``max_rows`` itself."""
    return (*(2**power for power in range((max_rows - 1).bit_length())), max_rows)


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """Byte sizes and offsets of one lane."""

    geometry: KvGeometry
    max_rows: int
    """Most rows that one step may send in this lane."""

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise ConfigurationError(f"a lane needs at least one row, not {self.max_rows}")

    @property
    def buckets(self) -> tuple[int, ...]:
        """Row counts that are prepared."""
        return row_buckets(self.max_rows)

    def bucket_index(self, num_rows: int) -> int:
        """Return the index of the smallest bucket that holds ``num_rows``."""
        return bisect_left(self.buckets, num_rows)

    def bucket_rows(self, num_rows: int) -> int:
        """Return the row count of the smallest bucket that holds ``num_rows``."""
        return self.buckets[self.bucket_index(num_rows)]

    def graph_rows(self, num_rows: int) -> int:
        """Return the row count of the smallest captured graph that holds ``num_rows``."""
        buckets = graph_buckets(self.max_rows)
        return buckets[bisect_left(buckets, num_rows)]

    @property
    def query_region_bytes(self) -> int:
        """Size of the query region."""
        return self.query_bytes(self.max_rows)

    @property
    def partial_region_bytes(self) -> int:
        """Size of the partial region."""
        return self.partial_bytes(self.max_rows)

    @property
    def append_slot_bytes(self) -> int:
        """Size of one slot of the append region."""
        return self.append_bytes(self.max_rows)

    @property
    def append_region_bytes(self) -> int:
        """Size of the append region, all slots."""
        return NUM_APPEND_SLOTS * self.append_slot_bytes

    def query_bytes(self, rows: int) -> int:
        """Bytes of ``rows`` queries."""
        return rows * self.geometry.query_row_bytes

    def partial_bytes(self, rows: int) -> int:
        """Bytes of ``rows`` outputs and their lse."""
        return self.lse_offset(rows) + rows * self.geometry.num_query_heads * _LSE_BYTES

    def lse_offset(self, rows: int) -> int:
        """Where the lse starts behind ``rows`` (a bucket) outputs."""
        return rows * self.geometry.query_row_bytes

    @property
    def graph_out_offset(self) -> int:
        """Where outputs start behind the lse, between captured graphs."""
        lse_bytes = self.max_rows * self.geometry.num_query_heads * _LSE_BYTES
        return -(-lse_bytes // _ALIGNMENT) * _ALIGNMENT

    def graph_partial_bytes(self, rows: int) -> int:
        """Bytes of the lse and ``rows`` outputs, between captured graphs."""
        return self.graph_out_offset + self.query_bytes(rows)

    def append_bytes(self, rows: int) -> int:
        """Bytes of ``rows`` tokens' keys and values in all layers."""
        return rows * self.geometry.token_bytes

    def append_layer_bytes(self, rows: int) -> int:
        """Bytes of ``rows`` tokens' keys and values in one layer."""
        return self.append_bytes(rows) // self.geometry.num_layers
