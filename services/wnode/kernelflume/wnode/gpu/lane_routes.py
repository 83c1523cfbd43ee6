"""Which rows of a decode step go to which attention nodes: the tables that the exchange kernels read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.cuda.exchange import RowTables
from kernelflume.transport.wire import APPEND_DTYPE, PLAN_DTYPE, LaneStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.wnode.batch import Chunk
    from kernelflume.wnode.gpu.lane_end import LaneEnd

_QUERY_ROWS, _SLOT_OF_ROW, _KV_ROWS = range(3)


@dataclass(slots=True)
class NodeRows:
    """One node's share of a lane."""

    plan: list[tuple[int, int, int]] = field(default_factory=list)
    """(sequence, 1, tokens held) of each row that asks."""
    query_rows: list[int] = field(default_factory=list)
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    """(sequence, 1, position) of each row that is stored."""
    kv_rows: list[int] = field(default_factory=list)
    num_new_pages: int = 0
    """Pages that the node will take."""

    @property
    def step(self) -> LaneStep:
        """The share as the node is told it."""
        return LaneStep(np.array(self.plan, PLAN_DTYPE), np.array(self.entries, APPEND_DTYPE))


@dataclass(frozen=True, slots=True)
class LaneRoutes:
    """All nodes' shares of a lane, by node id in the order of the table."""

    num_rows: int
    nodes: Mapping[str, NodeRows]

    @classmethod
    def of(cls, chunks: Sequence[Chunk], *, tail_attends: bool) -> LaneRoutes:
        """Route one decode row for each chunk.

        Args:
            chunks: decode rows, each with its one write.
            tail_attends: the tail's node attends to a row's own key too (query first off or paper).
        """
        nodes: dict[str, NodeRows] = {}
        for row, chunk in enumerate(chunks):
            sequence, route = chunk.sequence, chunk.route
            (write,) = chunk.writes
            for node_id in dict.fromkeys((*route.node_ids, write.node_id)):
                num_held = route.num_tokens_on(node_id)
                if num_held or (tail_attends and node_id == write.node_id):
                    share = nodes.setdefault(node_id, NodeRows())
                    share.plan.append((sequence.sequence_id, 1, num_held))
                    share.query_rows.append(row)
            share = nodes.setdefault(write.node_id, NodeRows())
            share.entries.append((sequence.sequence_id, 1, chunk.start))
            share.kv_rows.append(row)
            share.num_new_pages += write.num_new_pages
        return cls(len(chunks), nodes)

    @property
    def shape(self) -> tuple[object, ...]:
        """What the tables depend on besides counters: equal shapes need no upload."""
        return (
            self.num_rows,
            *((node_id, tuple(rows.query_rows), tuple(rows.kv_rows)) for node_id, rows in self.nodes.items()),
        )

    def tables(self, lane: int, ends: Mapping[str, LaneEnd], max_rows: int) -> np.ndarray:
        """Return the tables to upload; ``ends`` by node id."""
        memory, header, tables = RowTables(max_rows).empty()
        header["num_nodes"] = len(self.nodes)
        header["num_rows"] = self.num_rows
        header["lane"] = lane
        for index, (node_id, rows) in enumerate(self.nodes.items()):
            num_query_rows, num_kv_rows = len(rows.query_rows), len(rows.kv_rows)
            (header["nodes"][0, index],) = ends[node_id].route(
                lane, num_query_rows=num_query_rows, num_kv_rows=num_kv_rows
            )
            tables[_QUERY_ROWS, index, :num_query_rows] = rows.query_rows
            tables[_SLOT_OF_ROW, index, rows.query_rows] = np.arange(num_query_rows)
            tables[_KV_ROWS, index, :num_kv_rows] = rows.kv_rows
        return memory
