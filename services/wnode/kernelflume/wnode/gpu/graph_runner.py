"""Decode steps by captured graphs. How their rows travel is a ``GraphExchange``'s: by device or host path."""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import PeerLostError
from kernelflume.cuda.exchange import MAX_NODES
from kernelflume.runtime.clock import Deadline
from kernelflume.wnode.gpu.captured_steps import MAX_UNDER_WAY
from kernelflume.wnode.gpu.device_stage import QueryFirst
from kernelflume.wnode.gpu.lane_routes import LaneRoutes, NodeRows
from kernelflume.wnode.gpu.lane_tokens import LaneTokens
from kernelflume.wnode.gpu.step_in_flight import StepInFlight
from kernelflume.wnode.sampler import Sampled, sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.cuda.status import Failure
    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.wnode.batch import Chunk, StepBatch
    from kernelflume.wnode.gpu.captured_steps import CapturedSteps
    from kernelflume.wnode.gpu.graph_exchange import GraphExchange
    from kernelflume.wnode.gpu.lane import LaneBuffers
    from kernelflume.wnode.gpu.lane_end import LaneEnd
    from kernelflume.wnode.gpu.step_stream import StepStream
    from kernelflume.wnode.link import Link
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.sequence import Sequence as Request

_PROBE_INTERVAL_S = 0.1
_LAUNCH_TIMEOUT_S = 2.0
"""A node answers a step before it waits for its first query."""


class GraphRunner:
    """Launches and settles steps of decode rows alone. Owned by the step loop's thread.

    One step may be launched behind another that is not settled: its inputs are what that one chooses, on the
    device. Steps are settled in order. One that fails takes the step behind it along.
    """

    def __init__(
        self,
        *,
        steps: CapturedSteps,
        stream: StepStream,
        layout: LaneLayout,
        lanes: Sequence[LaneBuffers],
        exchange: GraphExchange,
        links: LinkTable,
        clock: Clock,
        max_step_rows: int,
        query_first: QueryFirst,
        timeout_s: float,
        eos_token_ids: frozenset[int],
    ) -> None:
        """Take what was captured.

        Args:
            steps: the captured steps, over ``lanes`` and the exchange's stages.
            stream: where they run.
            layout: a lane's shape.
            lanes: a microbatch's memory each.
            exchange: how the lanes' rows travel.
            links: the attention nodes.
            clock: for deadlines.
            max_step_rows: most rows of a step.
            query_first: when queries leave.
            timeout_s: deadline of a step.
            eos_token_ids: see ``sampler.sample``.
        """
        self.steps = steps
        self.layout = layout
        self.num_lanes = len(lanes)
        self.query_first = query_first
        self._stream = stream
        self._max_step_rows = max_step_rows
        self._exchange = exchange
        self._links = links
        self._clock = clock
        self._timeout_s = timeout_s
        self._eos_token_ids = eos_token_ids
        self._tokens = [LaneTokens(lane, stream) for lane in lanes]
        self._shapes: list[tuple[object, ...]] = [() for _ in lanes]
        """Of the routes uploaded last, by lane."""
        self._under_way: deque[StepInFlight] = deque()
        with stream.current():
            self._tokens[0].warm(self._pooled_tokens())

    def make_end(self) -> LaneEnd:
        """Return this side of a new link's lanes; called by the thread that prepares links."""
        return self._exchange.make_end()

    @property
    def can_launch_behind(self) -> bool:
        """True when a step may be launched behind one that is not settled: the host is not in its way."""
        return not self._exchange.needs_host and len(self._under_way) < MAX_UNDER_WAY

    def can_run(self, batch: StepBatch) -> bool:
        """True when every row decodes, and every node that takes part has lanes of our path."""
        if batch.num_rows != len(batch.chunks) or batch.num_rows > self._max_step_rows:
            return False
        if not all(chunk.samples and len(chunk.writes) == 1 for chunk in batch.chunks):
            return False
        nodes = {
            node_id for chunk in batch.chunks for node_id in (*chunk.route.node_ids, chunk.writes[0].node_id)
        }
        return len(nodes) <= MAX_NODES and all(self._end(node_id) is not None for node_id in nodes)

    # --- launch --------------------------------------------------------------------------------------

    def launch(self, batch: StepBatch, number: int) -> StepInFlight:
        """Tell the nodes of a step and enqueue its graph; ``can_run`` must hold.

        Raises:
            PeerLostError: a node is gone; nobody was told, and nothing was enqueued.
        """
        with self._stream.current():
            step = self._launch(batch, number)
        self._under_way.append(step)
        return step

    def _launch(self, batch: StepBatch, number: int) -> StepInFlight:
        launched_at_s = self._clock.now()
        split = self.steps.split(batch.chunks)
        tail_attends = self.query_first is not QueryFirst.LOCAL
        routes = tuple(LaneRoutes.of(chunks, tail_attends=tail_attends) for chunks in split.parts)
        links = self._links_of(routes)
        self._exchange.begin(number, routes, links)
        loss = self._tell(routes, links, number)
        if loss is not None:
            # The others wait for queries now, so the step runs, and none of its own waits is in earnest.
            self._hear({number: links}, loss)
            self._exchange.abort()
        self._upload_routes(routes, links)
        self._bring_inputs(split.parts)
        logits, timer = self.steps.replay(split, self.layout)
        chosen = tuple(
            # On the host path a new kernel, or memory, may take the host until the step ends.
            self._tokens[index].choose(chunks, logits[index], draws=not self._exchange.needs_host)
            for index, chunks in enumerate(split.parts)
        )
        done = self._stream.mark()
        self._advance(routes)
        return StepInFlight(
            number=number,
            batch=batch,
            launched_at_s=launched_at_s,
            split=split,
            routes=routes,
            links=links,
            logits=tuple(logits),
            chosen=chosen,
            timer=timer,
            done=done,
            loss=loss,
        )

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

    def _upload_routes(self, routes: Sequence[LaneRoutes], links: Mapping[str, Link]) -> None:
        """Bring tables to the device where they are not what it has already, in stream order."""
        for index, lane in enumerate(routes):
            # A node that started anew has its old id, but other memory.
            shape = (lane.shape, *(links[node_id].node_name for node_id in lane.nodes))
            if self._shapes[index] != shape:
                ends = {node_id: self._open_end(node_id) for node_id in lane.nodes}
                self._exchange.stages[index].upload(lane.tables(index, ends, self.layout.max_rows))
                self._shapes[index] = shape

    def _bring_inputs(self, parts: Sequence[Sequence[Chunk]]) -> None:
        """Have each row find its input, in stream order; in steady decode it is there already."""
        missing = [index for index, chunks in enumerate(parts) if not self._tokens[index].has(chunks)]
        unknown = [index for index in missing if not all(chunk.is_known for chunk in parts[index])]
        for index in missing:
            if index not in unknown:
                self._tokens[index].upload(parts[index])
        if unknown:
            # The step ahead chooses them in other rows: sequences came to an end, or lanes were dealt anew.
            max_rows = self.layout.max_rows
            places = {
                key: lane * max_rows + row
                for lane, tokens in enumerate(self._tokens)
                for row, key in enumerate(tokens.inputs)
            }
            pool = self._pooled_tokens()
            for index in unknown:
                self._tokens[index].gather(parts[index], pool, places)

    def _pooled_tokens(self) -> torch.Tensor:
        """Return [lanes * max_rows] int64: all lanes' inputs, side by side, as they are in stream order."""
        pool = self._tokens[0].token_ids.new_empty(len(self._tokens) * self.layout.max_rows)
        sources = [tokens.token_ids for tokens in self._tokens]
        self._stream.enqueue(partial(torch.cat, sources, out=pool))
        return pool

    def _advance(self, routes: Sequence[LaneRoutes]) -> None:
        for index, lane in enumerate(routes):
            for node_id, share in lane.nodes.items():
                self._open_end(node_id).advance(
                    index, queried=bool(share.query_rows), stored=bool(share.kv_rows)
                )

    # --- settle --------------------------------------------------------------------------------------

    def settle(self, step: StepInFlight) -> tuple[list[Chunk], Sampled] | None:
        """Wait for the oldest step that was launched; return each row's chunk, and the rows' next tokens.

        Returns:
            None where the step must be run again, as it must when it fails: a token has to be drawn by the
            host, and the step behind was launched with another one.

        Raises:
            PeerLostError: a node is gone or did not answer. Nothing is stored of this step, nor of one that
                was launched behind it.
        """
        with self._stream.current():
            try:
                self._await(step)
                chosen = self._choose(step)
                if chosen is None:
                    self._await(self._under_way[-1])
            except PeerLostError:
                self._retract()
                raise
            if chosen is None:
                self._forget_inputs()
                self._retract()
                return None
        self._under_way.popleft()
        self.steps.note(step.split, step.timer)
        return chosen

    def _await(self, step: StepInFlight) -> None:
        """Wait until a step is done; one that cannot be is run to its end, all of its waits giving up.

        Raises:
            PeerLostError: a node is gone, or did not answer in time. All steps have run to their ends.
        """
        try:
            for launched in self._under_way:
                if launched.loss is not None:
                    raise launched.loss
            self._receive_until_done(step)
        except PeerLostError as loss:
            self._hear({}, loss)
            self._exchange.abort()
            self._end_all()
            raise
        failure = self._exchange.failure
        if failure is None:
            return
        lost = PeerLostError(
            self._name_of(self._node_of(failure)), f"no partial within {self._timeout_s:g} s"
        )
        # The waits gave up by themselves: who has not answered by now may have had no time to file.
        self._hear({}, lost, timeout_s=0.0)
        self._end_all()
        raise lost

    def _node_of(self, failure: Failure) -> str:
        """Return the node that a wait was for: of the oldest step that has such a wait.

        The one behind it cannot have failed first: its waits begin when the older step's are over.
        """
        return next(
            list(lane.nodes)[failure.node]
            for launched in self._under_way
            for lane in launched.routes[failure.lane : failure.lane + 1]
            if failure.node < len(lane.nodes)
        )

    def _hear(
        self,
        begun: Mapping[int, Mapping[str, Link]],
        loss: PeerLostError,
        *,
        timeout_s: float = _LAUNCH_TIMEOUT_S,
    ) -> None:
        """Hear from nodes that they launched what is about to be given up; refuse those that say nothing.

        A step that is given up puts keys and values without waiting for anybody, into the slot of the settled
        step two before it. A node launches a step only when that one is filed: once it has answered, nothing
        is lost there. One that has not would also be out of step with its counters.

        Args:
            begun: links by node of a step that is not under way yet, by its number.
            loss: the node that is not waited for.
            timeout_s: how long.
        """
        steps = {**{step.number: step.links for step in self._under_way}, **begun}
        told = [
            (link, number)
            for number, links in steps.items()
            for link in links.values()
            if link.node_name != loss.peer and _is_there(link)
        ]
        deadline = Deadline(self._clock, timeout_s)
        while not all(link.has_launched(number) for link, number in told) and not deadline.expired:
            self._links.poll()
        for link, number in told:
            if not link.has_launched(number):
                link.refuse(f"it did not launch step {number}")

    def _receive_until_done(self, step: StepInFlight) -> None:
        """Drive the step and receive notices until it is done; probe nodes: only a send tells of a loss."""
        links = step.links.values()
        probe = Deadline(self._clock, _PROBE_INTERVAL_S)
        answers: Deadline | None = None
        while True:
            self._links.poll()
            for link in links:
                link.check()
            if self._exchange.turn() and step.done.query():
                # A node tells with its answer what it could not store.
                silent = [link for link in links if not link.has_answered(step.number)]
                if not silent:
                    break
                answers = answers or Deadline(self._clock, self._timeout_s)
                if answers.expired:
                    reason = f"no answer to step {step.number} within {self._timeout_s:g} s"
                    raise PeerLostError(silent[0].node_name, reason)
            if probe.expired:
                probe = Deadline(self._clock, _PROBE_INTERVAL_S)
                for link in links:
                    link.probe()

    def _end_all(self) -> None:
        """Wait for all steps to end that have been given up, and take note that nothing is as planned."""
        self._under_way[-1].done.synchronize()
        self._exchange.reset()
        self._shapes = [() for _ in self._shapes]
        self._forget_inputs()

    def _forget_inputs(self) -> None:
        for tokens in self._tokens:
            tokens.forget()

    def _retract(self) -> None:
        """Have the nodes that are still there forget what all steps stored, the newest first."""
        while self._under_way:
            step = self._under_way.pop()
            for link in step.links.values():
                with contextlib.suppress(PeerLostError):  # the engine is about to close that one
                    link.send_retract(step.number)

    def _choose(self, step: StepInFlight) -> tuple[list[Chunk], Sampled] | None:
        """Take the tokens that were chosen on the device, or sample where a request wants something else.

        None where that is too late: the step behind has begun with other tokens, and replaced the logits.
        """
        rows: list[Chunk] = []
        all_sampled = Sampled([])
        for index, (chunks, chosen, logits) in enumerate(
            zip(step.split.parts, step.chosen, step.logits, strict=True)
        ):
            sequences = [chunk.sequence for chunk in chunks]
            left = chosen.draws.unsettled(sequences)
            if left == []:
                sampled = Sampled(chosen.tokens[: len(chunks)].tolist())
            elif len(self._under_way) > 1:
                return None
            else:
                sampled = self._sample(chosen.tokens, logits, sequences, left)
                self._tokens[index].forget()
            all_sampled.extend(sampled)
            rows += chunks
        return rows, all_sampled

    def _sample(
        self, chosen: torch.Tensor, logits: torch.Tensor, sequences: list[Request], left: list[int] | None
    ) -> Sampled:
        """Sample all rows, or put tokens of those that are left among the chosen ones."""
        if left is None:
            return sample(logits[: len(sequences)], sequences, self._eos_token_ids)
        sampled = Sampled(chosen[: len(sequences)].tolist())
        again = sample(logits[left], [sequences[row] for row in left], self._eos_token_ids)
        for row, token in zip(left, again.tokens, strict=True):
            sampled.tokens[row] = token
        return sampled

    # --- links ---------------------------------------------------------------------------------------

    def _name_of(self, node_id: str) -> str:
        link = self._links.of_node(node_id)
        return link.node_name if link is not None else node_id

    def _end(self, node_id: str) -> LaneEnd | None:
        link = self._links.of_node(node_id)
        return link.device if link is not None and link.device is not None and link.device.is_open else None

    def _open_end(self, node_id: str) -> LaneEnd:
        end = self._end(node_id)
        assert end is not None  # noqa: S101 - can_run looked
        return end


def _is_there(link: Link) -> bool:
    """Ask a node for a sign of life; only a send tells of a loss."""
    try:
        link.check()
        link.probe()
    except PeerLostError:
        return False
    return True
