"""Decode steps by captured graphs. How their rows travel is a ``GraphExchange``'s: by device or host path."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.core.errors import PeerLostError
from kernelflume.cuda.exchange import MAX_NODES
from kernelflume.runtime.clock import Deadline
from kernelflume.wnode.gpu.captured_steps import CapturedSteps
from kernelflume.wnode.gpu.device_stage import QueryFirst
from kernelflume.wnode.gpu.lane_draws import LaneDraws
from kernelflume.wnode.gpu.lane_routes import LaneRoutes, NodeRows
from kernelflume.wnode.sampler import Sampled, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.wnode.batch import Chunk, StepBatch
    from kernelflume.wnode.gpu.graph_exchange import GraphExchange
    from kernelflume.wnode.gpu.lane import LaneBuffers
    from kernelflume.wnode.gpu.lane_end import LaneEnd
    from kernelflume.wnode.link import Link
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.model.decoder import Decoder
    from kernelflume.wnode.pipeline.lane_plan import LanePlan

_PROBE_INTERVAL_S = 0.1
_RETRACT_TIMEOUT_S = 2.0
"""A node answers a step before it waits for its first query."""


@dataclass(slots=True)
class _LaneState:
    """What a lane's device memory holds."""

    shape: tuple[object, ...] = ()
    """Of the routes uploaded last."""
    inputs: tuple[tuple[int, int], ...] = ()
    """(sequence, tokens known) of each row whose next input is there."""


class GraphRunner:
    """Runs steps of decode rows alone. Owned by the step loop's thread."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        layout: LaneLayout,
        lanes: Sequence[LaneBuffers],
        exchange: GraphExchange,
        links: LinkTable,
        clock: Clock,
        lane_plan: LanePlan,
        query_first: QueryFirst,
        timeout_s: float,
        eos_token_ids: frozenset[int],
    ) -> None:
        """Capture every graph and time it, which takes some seconds.

        Args:
            decoder: the model on its GPU.
            layout: a lane's shape.
            lanes: a microbatch's memory each.
            exchange: how the lanes' rows travel.
            links: the attention nodes.
            clock: for deadlines.
            lane_plan: the steps that are captured.
            query_first: when queries leave.
            timeout_s: deadline of a step.
            eos_token_ids: see ``sampler.sample``.
        """
        self.layout = layout
        self.num_lanes = len(lanes)
        self._max_step_rows = lane_plan.max_step_rows
        self.query_first = query_first
        self._exchange = exchange
        self._links = links
        self._clock = clock
        self._timeout_s = timeout_s
        self._eos_token_ids = eos_token_ids
        self._lanes = lanes
        self._stages = exchange.stages
        self._states = [_LaneState() for _ in self._lanes]
        self._chosen = [torch.zeros(layout.max_rows, dtype=torch.int64).pin_memory() for _ in self._lanes]
        self._draws = [LaneDraws(layout.max_rows, decoder.device) for _ in self._lanes]
        self._done = torch.cuda.Event()
        self.steps = CapturedSteps.capture(decoder, layout.geometry, self._lanes, self._stages, lane_plan)

    def make_end(self) -> LaneEnd:
        """Return this side of a new link's lanes; called by the thread that prepares links."""
        return self._exchange.make_end()

    def can_run(self, batch: StepBatch) -> bool:
        """True when every row decodes, and every node that takes part has lanes of our path."""
        if batch.num_rows != len(batch.chunks) or batch.num_rows > self._max_step_rows:
            return False
        if not all(chunk.samples and len(chunk.writes) == 1 for chunk in batch.chunks):
            return False
        nodes = {
            node_id
            for chunk in batch.chunks
            for node_id in (*chunk.sequence.route.node_ids, chunk.writes[0].node_id)
        }
        return len(nodes) <= MAX_NODES and all(self._end(node_id) is not None for node_id in nodes)

    def run(self, batch: StepBatch, step: int) -> tuple[list[Chunk], Sampled]:
        """Run one step; return each row's chunk, and the rows' next tokens.

        Raises:
            PeerLostError: a node is gone or did not answer; nothing was stored for this step.
        """
        with torch.cuda.stream(self._exchange.stream):
            return self._run(batch, step)

    def _run(self, batch: StepBatch, step: int) -> tuple[list[Chunk], Sampled]:
        parts = self.steps.split(batch.chunks)
        tail_attends = self.query_first is not QueryFirst.LOCAL
        routes = [LaneRoutes.of(chunks, tail_attends=tail_attends) for chunks in parts]
        links = self._links_of(routes)
        self._exchange.begin(step, routes, links)
        loss = self._tell(routes, links, step)
        if loss is not None:
            # The others wait for queries now, so the step runs, and none of its own waits is in earnest.
            self._exchange.abort()
        logits = self._launch(parts, routes, links)
        try:
            self._await(routes, links, loss)
        except PeerLostError:
            self._retract(links.values(), step)
            raise
        self.steps.note()
        return self._choose(parts, logits)

    def _launch(
        self, parts: Sequence[Sequence[Chunk]], routes: Sequence[LaneRoutes], links: Mapping[str, Link]
    ) -> list[torch.Tensor]:
        """Enqueue the step; return the lanes' logits."""
        self._upload(parts, routes, links)
        logits = self.steps.replay(parts, self.layout)
        for index, chunks in enumerate(parts):
            lane = self._lanes[index]
            if (
                not self._exchange.needs_host
            ):  # a new kernel, or memory, may take the host until the step ends
                sequences = [chunk.sequence for chunk in chunks]
                self._draws[index].enqueue(sequences, logits[index], lane.token_ids, lane.positions)
            self._chosen[index].copy_(lane.token_ids, non_blocking=True)
        self._done.record()
        for index, lane_routes in enumerate(routes):
            for node_id, share in lane_routes.nodes.items():
                end = self._end(node_id)
                assert end is not None  # noqa: S101 - can_run looked
                end.advance(index, queried=bool(share.query_rows), stored=bool(share.kv_rows))
        return logits

    def _links_of(self, routes: Sequence[LaneRoutes]) -> dict[str, Link]:
        links: dict[str, Link] = {}
        for node_id in dict.fromkeys(node_id for lane in routes for node_id in lane.nodes):
            link = self._links.of_node(node_id)
            if link is None:
                raise PeerLostError(node_id, "not connected")
            links[node_id] = link
        return links

    @staticmethod
    def _tell(routes: Sequence[LaneRoutes], links: Mapping[str, Link], step: int) -> PeerLostError | None:
        """Tell every node of its share, before the first query; return the first loss."""
        loss: PeerLostError | None = None
        for node_id, link in links.items():
            shares = tuple(lane.nodes.get(node_id, NodeRows()).step for lane in routes)
            num_pages = sum(lane.nodes[node_id].num_new_pages for lane in routes if node_id in lane.nodes)
            try:
                link.send_step(step, shares, num_pages=num_pages)
            except PeerLostError as error:
                loss = loss or error
        return loss

    def _upload(
        self, parts: Sequence[Sequence[Chunk]], routes: Sequence[LaneRoutes], links: Mapping[str, Link]
    ) -> None:
        """Bring tables and inputs to the device where they are not what it has already."""
        for index, (chunks, lane_routes) in enumerate(zip(parts, routes, strict=True)):
            state, lane = self._states[index], self._lanes[index]
            # A node that started anew has its old id, but other memory.
            shape = (lane_routes.shape, *(links[node_id].node_name for node_id in lane_routes.nodes))
            if state.shape != shape:
                self._stages[index].upload(
                    lane_routes.tables(index, self._ends(lane_routes.nodes), self.layout.max_rows)
                )
                state.shape = shape
            wanted = tuple((chunk.sequence.sequence_id, chunk.sequence.num_tokens) for chunk in chunks)
            if state.inputs != wanted:
                _upload(
                    lane.token_ids,
                    [chunk.sequence.tokens(chunk.start, chunk.start + 1)[0] for chunk in chunks],
                )
                _upload(lane.positions, [chunk.start for chunk in chunks])
            state.inputs = tuple((sequence_id, num_tokens + 1) for sequence_id, num_tokens in wanted)

    def _await(
        self,
        routes: Sequence[LaneRoutes],
        links: Mapping[str, Link],
        loss: PeerLostError | None,
    ) -> None:
        """Wait until the step is done; a step that cannot be is run to its end, all of its waits giving up.

        Raises:
            PeerLostError: a node is gone, or did not answer in time; ``loss``, where it was known before.
        """
        try:
            if loss is not None:
                raise loss
            self._receive_until_done(links)
        except PeerLostError:
            self._exchange.abort()
            self._done.synchronize()
            self._recover()
            raise
        failure = self._exchange.failure
        if failure is None:
            return
        self._recover()
        name = list(routes[failure.lane].nodes)[failure.node]
        raise PeerLostError(links[name].node_name, f"no partial within {self._timeout_s:g} s")

    def _receive_until_done(self, links: Mapping[str, Link]) -> None:
        """Drive the step and receive notices until it is done; probe nodes: only a send tells of a loss."""
        probe = Deadline(self._clock, _PROBE_INTERVAL_S)
        while not (self._exchange.turn() and self._done.query()):
            self._links.poll()
            for link in links.values():
                link.check()
            if probe.expired:
                probe = Deadline(self._clock, _PROBE_INTERVAL_S)
                for link in links.values():
                    link.probe()
        self._links.poll()
        for link in links.values():
            link.check()

    def _recover(self) -> None:
        """Take note that nothing on the device is as it was planned."""
        self._exchange.reset()
        for state in self._states:
            state.shape, state.inputs = (), ()

    def _retract(self, links: Iterable[Link], step: int) -> None:
        """Have the nodes that are still there forget what this step stored, and hear that they launched it.

        One that did not is out of step with its counters: its link is refused from now on.
        """
        told = []
        for link in links:
            with contextlib.suppress(PeerLostError):  # the engine is about to close that one
                link.send_retract(step)
                told.append(link)
        deadline = Deadline(self._clock, _RETRACT_TIMEOUT_S)
        while not all(link.has_launched(step) for link in told) and not deadline.expired:
            self._links.poll()
        for link in told:
            if not link.has_launched(step):
                link.refuse(f"it did not launch step {step}")

    def _choose(
        self, parts: Sequence[Sequence[Chunk]], logits: Sequence[torch.Tensor]
    ) -> tuple[list[Chunk], Sampled]:
        """Take the tokens that were chosen on the device, or sample where a request wants something else."""
        rows: list[Chunk] = []
        all_sampled = Sampled([])
        for index, chunks in enumerate(parts):
            sequences = [chunk.sequence for chunk in chunks]
            left = self._draws[index].unsettled(sequences)
            if left is None:
                sampled = sample(logits[index][: len(chunks)], sequences, self._eos_token_ids)
            else:
                sampled = Sampled(self._chosen[index][: len(chunks)].tolist())
                if left:
                    again = [sequences[row] for row in left]
                    for row, token in zip(
                        left, sample(logits[index][left], again, self._eos_token_ids).tokens, strict=True
                    ):
                        sampled.tokens[row] = token
            if left is None or left:
                self._states[index].inputs = ()
            all_sampled.extend(sampled)
            rows += chunks
        return rows, all_sampled

    def _end(self, node_id: str) -> LaneEnd | None:
        link = self._links.of_node(node_id)
        return link.device if link is not None and link.device is not None and link.device.is_open else None

    def _ends(self, node_ids: Mapping[str, object]) -> dict[str, LaneEnd]:
        ends = {node_id: self._end(node_id) for node_id in node_ids}
        return {node_id: end for node_id, end in ends.items() if end is not None}


def _upload(target: torch.Tensor, values: Sequence[int]) -> None:
    """Copy numbers to the front of a device tensor, in stream order."""
    staged = torch.from_numpy(np.array(values, np.int64)).pin_memory()
    target[: len(values)].copy_(staged, non_blocking=True)
