"""One choice's course over weight nodes: its runs, and what is learnt from them."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from kernelflume.core.errors import OverloadedError, UnavailableError
from kernelflume.core.ranges import SequenceRoute
from kernelflume.core.resumption import Resumption
from kernelflume.router.generation import Generation
from kernelflume.router.loads import RunLoad
from kernelflume.router.moves import MoveOrder, MoveOutcome, Moves
from kernelflume.router.placement.balance import RunningChoice
from kernelflume.router.placement.decision import MoveReason
from kernelflume.router.prepared import Prepared
from kernelflume.router.runs import RunSite
from kernelflume.runtime.clock import Deadline

if TYPE_CHECKING:
    from kernelflume.core.errors import KernelFlumeError
    from kernelflume.router.course_parts import CourseParts
    from kernelflume.router.generation import GenerationObserver
    from kernelflume.router.job import ChoiceJob
    from kernelflume.router.moves import Prepare
    from kernelflume.router.placement.balance import BalanceMove
    from kernelflume.router.placer import Decision
    from kernelflume.router.runs import StartRun
    from kernelflume.router.weightnodes import WeightNode
    from kernelflume.rpc.v1 import wnode_pb2
    from kernelflume.runtime.tracing import Headers

logger = logging.getLogger(__name__)

_MAX_LOSSES = 3
"""Few, so that a request that brings nodes down cannot bring them all down."""
_LOOK_S = 0.05
"""Between two looks for a node that can go on."""
_PREPARE_TIMEOUT_S = 30.0
"""Bound of the wait for a node that compiles a grammar, which takes seconds if it is its first."""


class Course:
    """Begins a choice's runs, and another one where a node is lost: a ``GenerationOwner``.

    Used in one event loop.
    """

    def __init__(
        self, parts: CourseParts, job: ChoiceJob, *, observer: GenerationObserver, headers: Headers
    ) -> None:
        """Make the course of a choice of which nothing runs yet, in the trace of ``headers``."""
        self._parts = parts
        self._job = job
        self._observer = observer
        self._headers = headers
        self._decision: Decision | None = None
        self._num_losses = 0
        self._num_runs_after = 0
        """Runs that began where another one ended or stands still."""
        self._num_told_before = 0
        """Tokens that earlier runs than the latest one told."""
        self._moved_to = ""
        self._moves = Moves(
            parts.metrics, parts.clock, timeout_s=parts.hand_over_timeout_s, on_ended=observer.moved
        )
        self._generation: Generation | None = None
        """What receives the tokens, from the first one to the end."""
        self._learning: Prepared[None] | None = None
        self._failed: set[str] = set()
        self._deadline = Deadline(parts.clock, parts.request_timeout_s)
        self._search = Deadline(parts.clock, parts.resume_timeout_s)

    def new_generation(self, arrived: asyncio.Event) -> Generation:
        """Return what receives the choice's tokens, and sets ``arrived`` with each of them."""
        return Generation(self, arrived=arrived, observer=self._observer)

    def begin(self, generation: Generation, decision: Decision) -> None:
        """Begin a run where a decision says, after what is generated already."""
        address = decision.placement.prefill
        if address is None:
            raise UnavailableError("no weight node can serve now")
        self._decision, self._moved_to = decision, ""
        self._moves.forget()
        self._num_told_before = len(generation.token_ids)
        nodes, decode = self._parts.nodes, decision.placement.decode
        node = nodes.node(address)
        hands_over = decode is not None and decode != address and nodes.serves(decode)
        load = RunLoad(
            node.loads,
            nodes.node(decode).loads if hands_over and decode is not None else node.loads,
            num_tokens=decision.request.num_prompt_tokens,
            num_pending_tokens=decision.request.num_new_tokens,
        )
        if hands_over and decode is not None and (prepare := self._preparation(decode)) is not None:
            self._moves.warm(prepare)
        is_resumed = bool(generation.token_ids)
        self._observer.placed(decision, node_id=node.node_id, is_resumed=is_resumed)
        request = self._request(generation, is_resumed=is_resumed)
        generation.begin(
            self._start_on(node, request, hands_over=hands_over), RunSite(address, node.node_id, load)
        )

    @property
    def is_balancing(self) -> bool:
        """True while the choice moves for balance."""
        return self._moves.is_balancing

    def running(self) -> RunningChoice | None:
        """Return the choice as it runs now; None between two runs."""
        generation, job = self._generation, self._job
        if generation is None or generation.site is None:
            return None
        num_told = len(generation.token_ids)
        return RunningChoice(
            choice_id=job.request_id,
            address=generation.site.address,
            num_tokens=len(job.prompt.token_ids) + num_told,
            num_tokens_left=job.sampling.max_tokens - num_told,
            # One whose prompt was computed apart is handed over after its first token.
            is_settled=(
                generation.is_settled and self._moves.order is None and num_told - self._num_told_before > 1
            ),
            since_moved_s=self._moves.since_last_s,
        )

    def move(self, move: BalanceMove) -> None:
        """Order the choice away, if nobody has done so."""
        if self._generation is not None and self._parts.nodes.serves(move.target):
            self._order(self._generation, MoveOrder(move.reason, move.target), move.target)

    def _order(self, generation: Generation, order: MoveOrder, address: str) -> None:
        """Have the choice stand still, once the node at ``address``, where it would go, is ready for it."""
        prepare = self._preparation(address)
        if prepare is not None:
            order = MoveOrder(order.reason, address)
        self._moves.ask(order, generation.hand_over, prepare)

    def _preparation(self, address: str) -> Prepare | None:
        request = self._job.preparation()
        if request is None:
            return None
        return partial(self._parts.nodes.node(address).prepare, request, timeout_s=_PREPARE_TIMEOUT_S)

    def held(self, generation: Generation, route: SequenceRoute) -> None:
        """Go on elsewhere with a choice that stands still, its keys and values on ``route``."""
        parts, source = self._parts, generation.site
        address = self._target(generation)
        if address is None or source is None:
            self._moves.found_no_target(source.node_id if source is not None else "")
            generation.stay()
            return
        node = parts.nodes.node(address)
        num_tokens = len(self._job.prompt.token_ids) + len(generation.token_ids)
        load = RunLoad(
            node.loads,
            node.loads,
            num_tokens=num_tokens,
            num_pending_tokens=max(0, num_tokens - 1 - route.num_tokens),
        )
        site = RunSite(address, node.node_id, load)
        self._moves.began(source.node_id, node.node_id, partial(generation.give_move_up, site))
        self._num_told_before = len(generation.token_ids)
        request = self._request(generation, is_resumed=True, route=route)
        generation.move(self._start_on(node, request), site)

    def _start_on(
        self, node: WeightNode, request: wnode_pb2.GenerateRequest, *, hands_over: bool = False
    ) -> StartRun:
        return partial(
            node.generate,
            request,
            timeout_s=max(0.0, self._deadline.remaining_s),
            headers=self._headers,
            hands_over=hands_over,
        )

    def _target(self, generation: Generation) -> str | None:
        """Return the address of the node that a choice should move to, or None."""
        site, parts = generation.site, self._parts
        if site is None:
            return None
        order = self._moves.order
        if order is not None and order.target is not None and parts.nodes.serves(order.target):
            return order.target
        if order is not None and order.reason.is_for_balance:
            return None  # where else would have to be decided anew
        planned = None if self._decision is None else self._decision.placement
        is_divided = planned is not None and planned.is_divided and planned.prefill == site.address
        decode = planned.decode if planned is not None and is_divided else None
        if decode is not None and parts.nodes.serves(decode):
            return decode
        return self._elsewhere(generation, site.address)

    def _elsewhere(self, generation: Generation, address: str) -> str | None:
        placement = self._parts.placer.decide(
            self._job.prompt, num_output_tokens=len(generation.token_ids), failed={address}
        ).placement
        return placement.decode or placement.prefill

    def asked_away(self, generation: Generation, *, again: bool) -> None:
        """Move a choice whose node is to end, where another one serves; not at once again after it failed."""
        site = generation.site
        if site is None or generation.is_moving or (again and self._moves.is_cooling_down):
            return
        address = self._elsewhere(generation, site.address)
        if address is not None:
            self._order(generation, MoveOrder(MoveReason.ASKED_AWAY), address)

    def moved(self, generation: Generation, *, has_moved: bool) -> None:
        """Take note of the end of a move."""
        self._moves.ended(MoveOutcome.MOVED if has_moved else MoveOutcome.GONE_ON)
        if has_moved and generation.site is not None:
            self._moved_to = generation.site.address

    def _request(
        self, generation: Generation, *, is_resumed: bool, route: SequenceRoute | None = None
    ) -> wnode_pb2.GenerateRequest:
        if not is_resumed:
            return self._job.request()
        self._num_runs_after += 1
        output = tuple(generation.token_ids)
        resumption = Resumption(output, generation.random_key, route or SequenceRoute())
        return self._job.request(self._num_runs_after, resumption)

    def started(self, generation: Generation) -> None:
        """Learn from the first token."""
        self._generation = generation
        self._parts.roster.add(self._job.request_id, self)
        if self._decision is not None and generation.site is not None:
            learn = partial(self._learn, generation, self._decision, generation.site.node_id)
            self._learning = Prepared(learn)  # once the first token is on its way to the client

    def _learn(self, generation: Generation, decision: Decision, node_id: str) -> None:
        parts, prompt, num_cached = self._parts, self._job.prompt, generation.num_cached_tokens
        num_tokens = len(prompt.token_ids)
        parts.metrics.count_prompt(
            node_id=node_id,
            request_class=parts.placer.class_of(num_tokens - num_cached),
            num_tokens=num_tokens,
            num_cached_tokens=num_cached,
            num_expected_tokens=decision.request.num_cached_tokens,
        )
        parts.placer.started(prompt, address=self._home, num_cached_tokens=num_cached)

    def ended(self, generation: Generation) -> None:
        """Learn from the whole."""
        if self._learning is not None:
            self._learning.get()
        self._generation = None
        self._parts.roster.remove(self._job.request_id)
        self._moves.forget()
        self._parts.placer.ended(self._job.prompt, generation.token_ids, address=self._home)

    @property
    def _home(self) -> str:
        """Address of the node that the next turn should go to."""
        return (
            self._moved_to or (self._decision.placement.decode if self._decision is not None else None) or ""
        )

    def lost(self, generation: Generation, error: KernelFlumeError) -> asyncio.Task[None] | None:
        """Go on elsewhere, if the error is one of the node and not of the request."""
        is_refused = isinstance(error, OverloadedError) and self._num_losses > 0 and generation.is_run_silent
        if isinstance(error, UnavailableError):
            self._num_losses += 1
        elif not is_refused:
            return None
        if self._num_losses > _MAX_LOSSES:
            return None
        if not generation.is_run_silent:
            self._failed.clear()
            self._search = Deadline(self._parts.clock, self._parts.resume_timeout_s)
        if generation.site is not None:
            self._failed.add(generation.site.address)
        return asyncio.create_task(self._resume(generation, error))

    async def _resume(self, generation: Generation, error: KernelFlumeError) -> None:
        parts, num_told = self._parts, len(generation.token_ids)
        while True:
            decision = parts.placer.decide(self._job.prompt, num_output_tokens=num_told, failed=self._failed)
            if decision.placement.prefill is not None:
                break
            if self._search.expired:
                parts.metrics.resumptions.labels("given_up").inc()
                generation.fail(error)
                return
            await asyncio.sleep(_LOOK_S)
            # Whoever failed may be back: a stream that broke is made anew.
            self._failed.clear()
        logger.warning(
            "a choice goes on elsewhere: %s",
            error,
            extra={
                "choice_id": self._job.request_id,
                "num_tokens": num_told,
                "weight_node": decision.placement.prefill,
            },
        )
        parts.metrics.count_placement(decision)
        parts.metrics.resumptions.labels("resumed").inc()
        self.begin(generation, decision)
