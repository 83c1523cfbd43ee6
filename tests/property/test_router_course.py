"""A choice's runs, whatever weight nodes and clients do: each is counted out, and the end is told once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.errors import (
    DeadlineError,
    InvalidRequestError,
    KernelFlumeError,
    OverloadedError,
    UnavailableError,
)
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.core.ranges import SequenceRoute
from kernelflume.core.sampling import SamplingParameters
from kernelflume.router.course import Course
from kernelflume.router.course_parts import CourseParts
from kernelflume.router.job import ChoiceJob
from kernelflume.router.loads import Load, LoadBook
from kernelflume.router.metrics import RouterMetrics
from kernelflume.router.placement.balance import BalanceMove
from kernelflume.router.placement.decision import MoveReason
from kernelflume.router.placement.nodes import WeightNodeView
from kernelflume.router.placer import Placer, Prompt
from kernelflume.router.roster import Roster
from kernelflume.router.settings import PlacementSettings
from kernelflume.rpc.v1 import wnode_pb2
from kernelflume.runtime.clock import ManualClock, MonotonicClock

if TYPE_CHECKING:
    from kernelflume.router.attachment import Receiver
    from kernelflume.router.moves import EndedMove
    from kernelflume.router.weightnodes import WeightNodes
    from kernelflume.runtime.clock import Clock

ERRORS: dict[str, KernelFlumeError] = {
    "lost": UnavailableError("gone"),
    "full": OverloadedError("full", retry_after_s=1.0),
    "bad": InvalidRequestError("bad"),
    "late": DeadlineError("late"),
}
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("token", "key", "finish", "abort", *ERRORS, "source_lost", "close", "fail", "turn", "take"),
                *("away", "back", "move", "balance", "held", "asked_away", "reminded"),
            ]
        ),
        st.integers(0, 9),
    ),
    max_size=25,
)


class FakeRun:
    """A run as the router controls it; what happens to it is the test's to say."""

    def __init__(self, node: FakeNode, receiver: Receiver) -> None:
        self.node = node
        self.receiver = receiver
        self.is_held = False
        self.num_ordered = 0
        """Times that it was to stand still."""

    def cancel(self) -> None:
        self.end(UnavailableError("cancelled"))

    def hand_over(self) -> None:
        self.num_ordered += 1

    def go_on(self) -> None:
        self.is_held = False

    def end(self, error: KernelFlumeError | None) -> None:
        if self in self.node.runs:
            self.node.runs.remove(self)
            self.receiver.ended(error)


class FakeNode:
    """Takes runs; one that is away refuses them at once."""

    def __init__(self, address: str) -> None:
        self.address = self.node_id = address
        self.loads = LoadBook()
        self.is_away = False
        self.runs: list[FakeRun] = []
        self.requests: list[wnode_pb2.GenerateRequest] = []

    def generate(self, request: wnode_pb2.GenerateRequest, receiver: Receiver, **_: Any) -> FakeRun:
        self.requests.append(request)
        run = FakeRun(self, receiver)
        if self.is_away:
            receiver.ended(ERRORS["lost"])
        else:
            self.runs.append(run)
        return run

    async def prepare(self, request: wnode_pb2.PrepareGrammarRequest, **_: Any) -> bool:
        assert request.sampling.grammar.text == "a+"
        await asyncio.sleep(0)
        return not self.is_away


class FakeNodes:
    def __init__(self) -> None:
        self.all = {address: FakeNode(address) for address in "ab"}

    def views(self) -> list[WeightNodeView]:
        return [
            WeightNodeView(address=a, serving=True, num_requests=0, num_tokens=0, queue_full=False)
            for a in self.all
        ]

    def node(self, address: str) -> FakeNode:
        return self.all[address]

    def serves(self, address: str) -> bool:
        return address in self.all

    def block_tokens(self) -> int:
        return 4


class Observer:
    def __init__(self) -> None:
        self.ends: list[bool] = []
        self.moves: list[EndedMove] = []
        self.num_tokens = 0

    def placed(self, decision: Any, **_: Any) -> None: ...

    def moved(self, move: EndedMove) -> None:
        self.moves.append(move)

    def started(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens

    def received(self, num_tokens: int, seconds: float) -> None:
        self.num_tokens += num_tokens

    def ended(self, *, was_started: bool) -> None:
        self.ends.append(was_started)


def act(nodes: FakeNodes, course: Course, generation: Any, action: str, number: int) -> None:
    runs = [run for node in nodes.all.values() for run in node.runs]
    speaking = next((run for run in runs if not run.is_held), None)
    held = next((run for run in runs if run.is_held), None)
    match action:
        case "away" | "back":
            nodes.all["b"].is_away = action == "away"
        case "close":
            generation.close()
        case "fail":
            generation.fail(ERRORS["late"])
        case "move":
            generation.hand_over()
        case "balance" if (choice := course.running()) is not None:
            source, target = ("a", "b") if choice.address == "a" else ("b", "a")
            course.move(BalanceMove("r", source, target, MoveReason.MORE_REQUESTS))
        case "take":
            with contextlib.suppress(KernelFlumeError):
                generation.take()
        case "source_lost" if held is not None:
            held.end(ERRORS["lost"])
        case _ if speaking is not None:
            speak(speaking, action, number, can_hold=held is None and bool(generation.token_ids))


def speak(run: FakeRun, action: str, number: int, *, can_hold: bool) -> None:
    receiver = run.receiver
    if action == "token":
        receiver.token(number, 0.0)
    elif action == "key":
        receiver.event(wnode_pb2.GenerateEvent(token_ids=[number], random_key=number), 0.0)
    elif action == "asked_away":
        receiver.asked_away()
    elif action == "reminded":
        receiver.asked_away(again=True)
    elif action == "held" and can_hold:
        run.is_held = True
        receiver.held(SequenceRoute())
    elif action in ERRORS:
        run.end(ERRORS[action])
    elif action in {"finish", "abort"}:
        reason = "length" if action == "finish" else "abort"
        receiver.event(wnode_pb2.GenerateEvent(token_ids=[number], finish_reason=reason), 0.0)
        run.end(None)


@given(ACTIONS, st.sampled_from([None, Grammar(GrammarKind.REGEX, "a+")]))
def test_whatever_happens_nothing_is_left_and_the_end_is_told_once(
    actions: list[tuple[str, int]], grammar: Grammar | None
) -> None:
    asyncio.run(_run(actions, SamplingParameters(temperature=0.5, max_tokens=100, grammar=grammar)))


def make_parts(nodes: FakeNodes, clock: Clock | None = None) -> CourseParts:
    clock, known = clock or MonotonicClock(), cast("WeightNodes", nodes)
    placer = Placer(PlacementSettings(), known, clock)
    return CourseParts(
        nodes=known,
        placer=placer,
        metrics=RouterMetrics("m", nodes.views),
        clock=clock,
        request_timeout_s=60.0,
        resume_timeout_s=0.0,
        hand_over_timeout_s=60.0,
        roster=Roster(),
    )


async def _run(actions: list[tuple[str, int]], sampling: SamplingParameters) -> None:
    nodes, observer = FakeNodes(), Observer()
    parts = make_parts(nodes)
    prompt = Prompt(range(20), session=b"s")
    job = ChoiceJob("r", prompt, sampling, tenant="t")
    course = Course(parts, job, observer=observer, headers=())
    generation = course.new_generation(asyncio.Event())
    course.begin(generation, parts.placer.decide(prompt))
    for action, number in actions:
        if action == "turn":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            act(nodes, course, generation, action, number)
        assert len(parts.roster) == (bool(generation.token_ids) and not observer.ends)
        books = [node.loads.own for node in nodes.all.values()]
        assert sum(own.num_requests for own in books) <= 2
    generation.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [node.loads.own for node in nodes.all.values()] == [Load(), Load()]
    assert not any(node.runs for node in nodes.all.values())
    assert observer.ends == [bool(generation.token_ids)]
    assert len(parts.roster) == 0
    assert course.running() is None
    assert not course.is_balancing
    if generation.token_ids:
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all({move.source, move.target} <= {"a", "b", ""} for move in observer.moves)
    assert observer.num_tokens == len(generation.token_ids)
    # Each run was told all tokens of those before it.
    for node in nodes.all.values():
        for request in node.requests:
            told = list(request.resumption.output_token_ids)
            assert told == generation.token_ids[: len(told)]


def test_session_is_pinned_where_its_choice_went_after_a_move_and_a_loss() -> None:
    asyncio.run(_move_and_lose())


async def _move_and_lose() -> None:
    nodes = FakeNodes()
    parts = make_parts(nodes)
    prompt = Prompt(range(20), session=b"s")
    job = ChoiceJob("r", prompt, SamplingParameters(max_tokens=100), tenant="t")
    course = Course(parts, job, observer=Observer(), headers=())
    generation = course.new_generation(asyncio.Event())
    course.begin(generation, parts.placer.decide(prompt))
    a, b = nodes.all.values()
    for action in ("token", "held"):
        speak(a.runs[0], action, 1, can_hold=True)
    speak(b.runs[0], "token", 2, can_hold=False)
    assert not a.runs  # moved
    speak(b.runs[0], "lost", 0, can_hold=False)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    speak(a.runs[0], "finish", 3, can_hold=False)
    assert generation.token_ids == [1, 2, 3]
    assert parts.placer.decide(prompt).request.pinned == "a"


def test_a_draining_node_that_reminds_asks_no_choice_that_has_just_moved_in_vain() -> None:
    asyncio.run(_remind())


async def _remind() -> None:
    nodes, clock = FakeNodes(), ManualClock()
    parts = make_parts(nodes, clock)
    prompt = Prompt(range(20))
    job = ChoiceJob("r", prompt, SamplingParameters(max_tokens=100), tenant="t")
    course = Course(parts, job, observer=Observer(), headers=())
    generation = course.new_generation(asyncio.Event())
    course.begin(generation, parts.placer.decide(prompt))
    a, b = nodes.all.values()
    b.is_away = True  # it has no room
    [run] = a.runs
    speak(run, "token", 1, can_hold=False)

    def ask(*, again: bool) -> bool:
        """Tell it that its node is to end; return whether it stands still for that, in vain."""
        before = run.num_ordered
        run.receiver.asked_away(again=again)
        if run.num_ordered > before:
            speak(run, "held", 0, can_hold=True)
            assert not run.is_held  # goes on where it was
        return run.num_ordered > before

    assert ask(again=False)
    assert not ask(again=True)
    assert ask(again=False)  # a person insists
    clock.advance(3.9)
    assert not ask(again=True)
    clock.advance(0.2)
    assert ask(again=True)
    assert len(b.requests) == 3
    generation.close()


def test_a_move_for_balance_goes_where_it_was_decided_or_nowhere() -> None:
    asyncio.run(_balance())


async def _balance() -> None:
    nodes, observer = FakeNodes(), Observer()
    parts = make_parts(nodes)
    prompt = Prompt(range(20), session=b"s")
    job = ChoiceJob("r", prompt, SamplingParameters(max_tokens=100), tenant="t")
    course = Course(parts, job, observer=observer, headers=())
    generation = course.new_generation(asyncio.Event())
    course.begin(generation, parts.placer.decide(prompt))
    a, b = nodes.all.values()
    assert course.running() is None
    speak(a.runs[0], "token", 1, can_hold=False)
    running = course.running()
    # With one token it may be about to be handed over: a divided placement's is.
    assert running is not None
    assert not running.is_settled
    speak(a.runs[0], "token", 2, can_hold=False)
    running = course.running()
    assert running is not None
    assert (running.address, running.num_tokens, running.num_tokens_left) == ("a", 22, 98)
    assert running.is_settled
    for is_known in (False, True):
        course.move(BalanceMove("r", "a", "b", MoveReason.MORE_REQUESTS))
        assert course.is_balancing
        kept = nodes.all if is_known else {"a": a}
        nodes.all, rest = kept, nodes.all
        speak(a.runs[0], "held", 0, can_hold=True)
        nodes.all = rest
        a.runs[0].is_held = is_known
    assert course.is_balancing
    speak(b.runs[0], "token", 3, can_hold=False)
    assert [(move.outcome, move.target) for move in observer.moves] == [("no_target", ""), ("moved", "b")]
    assert {move.reason for move in observer.moves} == {MoveReason.MORE_REQUESTS}
    assert not course.is_balancing
    # It has just moved, and the next turn goes where it did.
    running = course.running()
    assert running is not None
    assert (running.address, running.since_moved_s < 60.0) == ("b", True)
    speak(b.runs[0], "finish", 4, can_hold=False)
    assert parts.placer.decide(prompt).request.pinned == "b"
    assert len(parts.roster) == 0
