"""The kernels of ``exchange.cu``, and the tables in device memory that they read.

Host code fills the tables as numpy records of the layouts below and uploads them between two steps, in stream
order; the kernels themselves move the counters on.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.core.errors import ConfigurationError
from kernelflume.cuda.build import build
from kernelflume.cuda.module import CudaModule, pointer, real, unsigned, unsigned_long

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry

MAX_NODES = 16
"""Attention nodes that one lane can reach at a time (``kMaxNodes``)."""
COUNTERS_BYTES = 256
"""A lane's counters on either side: each has a cache line of its own."""
QUERY_COUNTER_OFFSET, APPEND_COUNTER_OFFSET = 0, 128
"""Where they lie on the attention node; the weight node's partial counter lies at 0."""

NODE_ROUTE = np.dtype(
    [
        ("remote", "<u8"),
        ("partial_out", "<u8"),
        ("partial_lse", "<u8"),
        ("partial_counter", "<u8"),
        ("partials_before", "<u8"),
        ("append_offset", "<u8"),
        ("staged_queries", "<u8"),
        ("staged_keys_values", "<u8"),
        ("num_query_rows", "<u4"),
        ("num_kv_rows", "<u4"),
        ("staged_kv_rows", "<u4"),
        ("reserved", "<u4"),
    ]
)
"""``NodeRoute``: one attention node of a lane."""
ROUTES_HEADER = np.dtype(
    [
        ("num_nodes", "<u4"),
        ("num_rows", "<u4"),
        ("max_rows", "<u4"),
        ("lane", "<u4"),
        ("nodes", NODE_ROUTE, MAX_NODES),
    ]
)
"""``LaneRoutes`` without its row tables."""
LANE_STATE = np.dtype(
    [
        ("remote", "<u8"),
        ("query_counter", "<u8"),
        ("append_counter", "<u8"),
        ("queries_before", "<u8"),
        ("appends_before", "<u8"),
        ("num_rows", "<u4"),
        ("num_append_rows", "<u4"),
        ("append_slot", "<u4"),
        ("reserved", "<u4"),
    ]
)
"""``LaneState``: a lane on the attention node."""
STATUS = np.dtype([("failure", "<u4"), ("reserved", "<u4"), ("host", "<u8")])
"""``Status``: what went wrong first, and the address of the host's copy of it."""

_KERNELS = (
    "put_queries",
    "put_keys_values",
    "pack_queries",
    "pack_keys_values",
    "merge_partials",
    "advance_routes",
    "wait_queries",
    "wait_append",
    "put_partials",
    "file_append",
    "advance_lane",
)
_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
_WARP = 32
_PUT_THREADS = 128
_MERGE_WARPS = 4
_PUT_BLOCKS = 512
"""A block copies row after row, each at the latency of the link: so many that few blocks have two."""
LN2 = math.log(2.0)


class WaitKind(enum.IntEnum):
    """What a kernel waited for, in the lower half of the status word."""

    PARTIAL = 1
    QUERY = 2
    APPEND = 3
    ABORTED = 4
    """The host gave up."""


@dataclass(frozen=True, slots=True)
class RowTables:
    """Int32 tables behind ``ROUTES_HEADER``: [3, MAX_NODES, max_rows]."""

    max_rows: int

    @property
    def num_bytes(self) -> int:
        """Bytes of header and tables."""
        return ROUTES_HEADER.itemsize + 3 * MAX_NODES * self.max_rows * 4

    def empty(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (memory [num_bytes] uint8, header record, tables [3, MAX_NODES, max_rows]) of no node.

        The tables are rows sent, slot of each row (-1: none) and rows stored; views of the memory.
        """
        memory = np.zeros(self.num_bytes, np.uint8)
        header = memory[: ROUTES_HEADER.itemsize].view(ROUTES_HEADER)[0:1]
        tables = memory[ROUTES_HEADER.itemsize :].view(np.int32).reshape(3, MAX_NODES, self.max_rows)
        header["max_rows"] = self.max_rows
        tables[1] = -1
        return memory, header, tables


class ExchangeKernels:
    """The kernels for one model's geometry, loaded into the current context.

    Every method launches one kernel on a stream; addresses are device addresses, ``view`` arguments are
    memory views of ``transport.nixl``. Shapes stand with the kernels.
    """

    def __init__(self, geometry: KvGeometry, *, architecture: str, timeout_s: float) -> None:
        """Build and load.

        Args:
            geometry: element type and head shape.
            architecture: the GPU's, such as ``sm_90a``.
            timeout_s: deadline of every wait.

        Raises:
            ConfigurationError: the geometry does not fit the kernels, or they cannot be built.
        """
        if geometry.head_dim % _WARP:
            raise ConfigurationError(f"device path: head_dim {geometry.head_dim} is no multiple of {_WARP}")
        image = build(
            Path(__file__).with_name("exchange.cu"),
            architecture=architecture,
            defines={"KF_DTYPE": _DTYPES[geometry.dtype], "KF_HEAD_DIM": geometry.head_dim},
        )
        self._module = CudaModule(image, _KERNELS)
        self._geometry = geometry
        self._timeout_ns = int(timeout_s * 1e9)
        self._scale = geometry.head_dim**-0.5

    def put_queries(self, routes: int, view: int, *, num_rows: int, arrived: int, stream: int) -> None:
        """Put up to ``num_rows`` queries a node; ``arrived`` is [MAX_NODES] uint32 of zeros."""
        self._module.launch(
            "put_queries",
            grid=(min(num_rows, _PUT_BLOCKS), 1),
            threads=_PUT_THREADS,
            stream=stream,
            arguments=(
                pointer(routes),
                pointer(view),
                unsigned(self._geometry.query_row_bytes),
                pointer(arrived),
            ),
        )

    def put_keys_values(
        self,
        routes: int,
        view: int,
        *,
        num_rows: int,
        first_layer: int,
        num_layers: int,
        arrived: int,
        stream: int,
    ) -> None:
        """Put the keys and values of some layers, and raise the nodes' append counters."""
        self._module.launch(
            "put_keys_values",
            grid=(min(num_rows * num_layers, 2 * _PUT_BLOCKS), 1),
            threads=_PUT_THREADS,
            stream=stream,
            arguments=(
                pointer(routes),
                pointer(view),
                unsigned(self._geometry.kv_row_bytes),
                unsigned(first_layer),
                unsigned(num_layers),
                pointer(arrived),
            ),
        )

    def pack_queries(self, routes: int, queries: int, *, num_rows: int, stream: int) -> None:
        """Gather up to ``num_rows`` queries a node into the nodes' staging."""
        self._module.launch(
            "pack_queries",
            grid=(min(num_rows, _PUT_BLOCKS), 1),
            threads=_PUT_THREADS,
            stream=stream,
            arguments=(pointer(routes), pointer(queries), unsigned(self._geometry.query_row_bytes)),
        )

    def pack_keys_values(
        self, routes: int, keys_values: int, *, num_rows: int, first_layer: int, num_layers: int, stream: int
    ) -> None:
        """Gather the keys and values of some layers into the staging of the nodes that store them."""
        self._module.launch(
            "pack_keys_values",
            grid=(min(num_rows * num_layers, 2 * _PUT_BLOCKS), 1),
            threads=_PUT_THREADS,
            stream=stream,
            arguments=(
                pointer(routes),
                pointer(keys_values),
                unsigned(self._geometry.kv_row_bytes),
                unsigned(first_layer),
                unsigned(num_layers),
            ),
        )

    def merge_partials(
        self,
        routes: int,
        *,
        query: int,
        keys_values: int,
        out: int,
        num_rows: int,
        own: bool,
        layer: int,
        status: int,
        stream: int,
    ) -> None:
        """Merge a layer's partials, once those with a counter are here; ``own`` adds each row's own pair."""
        geometry = self._geometry
        self._module.launch(
            "merge_partials",
            grid=(num_rows, -(-geometry.num_query_heads // _MERGE_WARPS)),
            threads=_WARP * _MERGE_WARPS,
            stream=stream,
            arguments=(
                pointer(routes),
                pointer(query),
                pointer(keys_values),
                pointer(out),
                unsigned(geometry.num_query_heads),
                unsigned(geometry.num_kv_heads),
                real(self._scale),
                unsigned(own),
                unsigned(layer),
                unsigned_long(self._timeout_ns),
                pointer(status),
            ),
        )

    def advance_routes(self, routes: int, *, num_appends: int, slot_bytes: int, stream: int) -> None:
        """Move a lane's counters on by one step of ``num_appends`` appends."""
        self._module.launch(
            "advance_routes",
            grid=(1, 1),
            threads=MAX_NODES,
            stream=stream,
            arguments=(
                pointer(routes),
                unsigned(self._geometry.num_layers),
                unsigned(num_appends),
                unsigned_long(slot_bytes),
            ),
        )

    def wait_queries(self, lane: int, *, layer: int, status: int, stream: int) -> None:
        """Hold the stream until a layer's queries are here."""
        self._wait("wait_queries", lane, layer, status, stream)

    def wait_append(self, lane: int, *, index: int, status: int, stream: int) -> None:
        """Hold the stream until the step's append ``index`` is here, if there is one."""
        self._wait("wait_append", lane, index, status, stream)

    def put_partials(
        self,
        lane: int,
        *,
        out_view: int,
        lse_view: int,
        lse: int,
        lse_unit: float,
        staged_lse: int,
        lse_offset: int,
        num_rows: int,
        arrived: int,
        stream: int,
    ) -> None:
        """Put a layer's outputs and lse; ``lse_offset`` is where lse begins in the weight node's region."""
        geometry = self._geometry
        self._module.launch(
            "put_partials",
            grid=(min(num_rows, _PUT_BLOCKS), 1),
            threads=_PUT_THREADS,
            stream=stream,
            arguments=(
                pointer(lane),
                pointer(out_view),
                pointer(lse_view),
                pointer(lse),
                real(lse_unit),
                pointer(staged_lse),
                unsigned(geometry.num_query_heads),
                unsigned(geometry.query_row_bytes),
                unsigned_long(lse_offset),
                pointer(arrived),
            ),
        )

    def file_append(
        self,
        lane: int,
        *,
        appended: int,
        pool: int,
        slots: int,
        slot_bytes: int,
        num_rows: int,
        max_rows: int,
        page_tokens: int,
        layer_bytes: int,
        first_layer: int,
        num_layers: int,
        stream: int,
    ) -> None:
        """Copy appended rows of some layers into their pages; ``appended`` has slots of ``slot_bytes``."""
        self._module.launch(
            "file_append",
            grid=(num_rows, num_layers),
            threads=_WARP * 4,
            stream=stream,
            arguments=(
                pointer(lane),
                pointer(appended),
                pointer(pool),
                pointer(slots),
                unsigned_long(slot_bytes),
                unsigned(max_rows),
                unsigned(self._geometry.kv_row_bytes // 2),
                unsigned(page_tokens),
                unsigned_long(layer_bytes),
                unsigned(first_layer),
            ),
        )

    def advance_lane(self, lane: int, *, num_queries: int, num_appends: int, stream: int) -> None:
        """Move a lane's counters on by what was waited for."""
        self._module.launch(
            "advance_lane",
            grid=(1, 1),
            threads=1,
            stream=stream,
            arguments=(pointer(lane), unsigned(num_queries), unsigned(num_appends)),
        )

    def _wait(self, name: str, lane: int, index: int, status: int, stream: int) -> None:
        self._module.launch(
            name,
            grid=(1, 1),
            threads=1,
            stream=stream,
            arguments=(pointer(lane), unsigned(index), unsigned_long(self._timeout_ns), pointer(status)),
        )
