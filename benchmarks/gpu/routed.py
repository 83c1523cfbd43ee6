"""Both sides of the exchange with ragged rows, given inputs, and routes that change from step to step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from benchmarks.gpu.attention_side import TIMEOUT_S, AttentionSide, Share
from benchmarks.gpu.history import row_history, store_tokens
from benchmarks.gpu.weight_side import AttentionProcess, WeightSide

from kernelflume.anode.gpu.lane import PARITIES
from kernelflume.anode.gpu.page_table import PageTable
from kernelflume.core.errors import UnavailableError
from kernelflume.cuda.exchange import NODE_ROUTE, RowTables
from kernelflume.runtime.clock import Deadline, MonotonicClock
from kernelflume.transport.lanes import NUM_APPEND_SLOTS
from kernelflume.wnode.gpu.device_stage import QueryFirst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.split import LaneRows, Split
    from benchmarks.gpu.workload import Workload

    from kernelflume.transport.nixl import NixlTransport
    from kernelflume.wnode.model.decoder import Decoder


@dataclass(frozen=True, slots=True)
class RoutedShare(Share):
    """A share of ragged rows."""

    contexts: tuple[int, ...]
    """Tokens of each row, on all nodes together."""
    starts: tuple[int, ...]
    """Where this node's tokens of each row begin."""


class RoutedAttention(AttentionSide):
    """An attention node that is told for each step which rows ask and which are stored."""

    share: RoutedShare

    def fill(self, seed: int) -> None:
        """File the node's tokens of every row; the rows' own seeds count."""
        del seed
        rows = [(lane, index) for lane, held in enumerate(self.tokens) for index in range(len(held))]
        for row, (lane, index) in enumerate(rows):
            start, held = self.share.starts[row], int(self.tokens[lane][index])
            if held:
                history = row_history(self.workload, row, self.share.contexts[row], self.device)
                first_page = int(self.first_page[lane][index])
                store_tokens(self.pages, first_page, history[:, start : start + held])
        torch.cuda.synchronize(self.device)
        self.num_appends = [0] * len(self.lanes)

    def take_step(self, lanes: Sequence[LaneRows]) -> None:
        """Run one step to its end.

        Raises:
            UnavailableError: it did not end in time.
        """
        parity = self.step % PARITIES
        self.step += 1
        with torch.inference_mode(), torch.cuda.stream(self.graphs.stream):
            self.graphs.begin(parity)
            tables = []
            for index, (asks, stores) in enumerate(lanes):
                slots = self._slots(index)[stores]
                self.lanes[index].upload_step(
                    parity,
                    num_rows=len(asks),
                    slots=slots,
                    append_slot=self.num_appends[index] % NUM_APPEND_SLOTS,
                )
                self.num_appends[index] += bool(len(slots))
                if self.share.in_layer:
                    self.tokens[index][stores] += 1
                tables.append(self._table_of(index, asks))
            if any(len(asks) for asks, _ in lanes):
                self.graphs.launch(parity, max(self.rows), tables)
            if not self.share.in_layer:
                for index, (_, stores) in enumerate(lanes):
                    if len(stores):
                        self.programs[index].file_step(len(stores))
                        self.tokens[index][stores] += 1
            self.graphs.end(parity)
        deadline = Deadline(MonotonicClock(), TIMEOUT_S)
        while not self.graphs.stream.query():
            self.transport.poll()
            if deadline.expired:
                raise UnavailableError("the step did not end")
        if self.status.failure is not None:
            raise UnavailableError(f"a wait failed: {self.status.failure}")

    def _table_of(self, lane: int, asks: np.ndarray) -> PageTable:
        """Return the pages of the rows that ask; each holds a token."""
        tokens, first, size = self.tokens[lane][asks], self.first_page[lane][asks], self.workload.page_tokens
        pages = -(-tokens // size)
        indptr = np.concatenate(([0], np.cumsum(pages))).astype(np.int32)
        offsets = np.arange(indptr[-1], dtype=np.int32) - np.repeat(indptr[:-1], pages)
        indices = (np.repeat(first, pages) + offsets).astype(np.int32)
        return PageTable(indptr, indices, (tokens - (pages - 1) * size).astype(np.int32))


class RoutedWeights(WeightSide):
    """A weight node whose routes are uploaded before each step, as after a change of the routing table."""

    def __init__(
        self,
        workload: Workload,
        decoder: Decoder,
        processes: list[AttentionProcess],
        *,
        mode: QueryFirst,
        transport: NixlTransport,
        split: Split,
    ) -> None:
        super().__init__(workload, decoder, processes, mode=mode, transport=transport)
        self.split = split
        counts = (split.num_nodes, len(self.lanes))
        self._num_asked, self._num_stored = np.zeros(counts, np.int64), np.zeros(counts, np.int64)
        edges = np.concatenate(([0], np.cumsum(workload.lane_rows))).tolist()
        self._rows = [range(first, last) for first, last in itertools.pairwise(edges)]

    def open_rows(self, contexts: Sequence[int]) -> None:
        """Have the nodes file their tokens of every row, and connect."""
        shares = [
            RoutedShare(
                tuple(tuple(self.split.held[node, rows.start : rows.stop].tolist()) for rows in self._rows),
                appends=True,
                in_layer=self.mode is not QueryFirst.LOCAL,
                contexts=tuple(contexts),
                starts=tuple(self.split.starts(node).tolist()),
            )
            for node in range(self.split.num_nodes)
        ]
        self.open(shares, shares_layers=False)

    def take_step(self, step: int, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run a step of given inputs, int64 [batch] each; return its logits [batch, vocab].

        Raises:
            UnavailableError: a wait failed, here or on a node.
        """
        tail_attends = self.mode is not QueryFirst.LOCAL
        shares = [
            [self.split.lane(step, node, rows, tail_attends=tail_attends) for rows in self._rows]
            for node in range(self.split.num_nodes)
        ]
        for index, (lane, rows) in enumerate(zip(self.lanes, self._rows, strict=True)):
            lane.token_ids[: len(rows)] = token_ids[rows.start : rows.stop]
            lane.positions[: len(rows)] = positions[rows.start : rows.stop]
            self._upload_rows(index, [lanes[index] for lanes in shares])
        torch.cuda.synchronize()
        busy = [
            process
            for process, lanes in zip(self.processes, shares, strict=True)
            if any(len(asks) or len(stores) for asks, stores in lanes)
        ]
        for process, lanes in zip(self.processes, shares, strict=True):
            if process in busy:
                process.tell("call", "take_step", lanes)
        logits = torch.cat([lane.clone() for lane in self.graphs.replay(self.workload.lane_rows)])
        for process in busy:
            process.answer(self.transport)
        torch.cuda.synchronize()
        if self.status.failure is not None:
            raise UnavailableError(f"a wait failed: {self.status.failure}")
        for node, lanes in enumerate(shares):
            for index, (asks, stores) in enumerate(lanes):
                self._num_asked[node, index] += bool(len(asks))
                self._num_stored[node, index] += bool(len(stores))
        return logits

    def _upload_rows(self, lane: int, shares: Sequence[LaneRows]) -> None:
        memory, header, tables = RowTables(self.layout.max_rows).empty()
        header["num_nodes"] = len(shares)
        header["num_rows"] = len(self._rows[lane])
        header["lane"] = lane
        for node, (asks, stores) in enumerate(shares):
            partials, counters = self.arrivals[node][lane]
            route = np.zeros(1, NODE_ROUTE)
            route["remote"] = self.node_views[node][lane]
            route["partial_out"] = partials.data_ptr()
            route["partial_lse"] = partials.data_ptr() + self.layout.lse_offset(self.layout.max_rows)
            route["partial_counter"] = counters.data_ptr()
            # As the kernels count: each step that asks brings a partial of every layer.
            route["partials_before"] = self._num_asked[node, lane] * self.workload.num_layers
            slot = self._num_stored[node, lane] % NUM_APPEND_SLOTS
            route["append_offset"] = slot * self.layout.append_slot_bytes
            route["num_query_rows"], route["num_kv_rows"] = len(asks), len(stores)
            header["nodes"][0, node] = route[0]
            tables[0, node, : len(asks)] = asks
            tables[1, node, asks] = np.arange(len(asks))
            tables[2, node, : len(stores)] = stores
        self.stages[lane].upload(memory)
