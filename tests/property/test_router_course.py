"""A choice's runs, whatever weight nodes and clients do: each is counted out, and the end is told once."""

from __future__ import annotations

import asyncio
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
from kernelflume.core.sampling import SamplingParameters
from kernelflume.router.course import ChoiceJob, Course, CourseParts
from kernelflume.router.loads import Load, LoadBook
from kernelflume.router.metrics import RouterMetrics
from kernelflume.router.placement.nodes import WeightNodeView
from kernelflume.router.placer import Placer, Prompt
from kernelflume.router.settings import PlacementSettings
from kernelflume.rpc.v1 import wnode_pb2
from kernelflume.runtime.clock import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.router.attachment import Receiver
    from kernelflume.router.weightnodes import WeightNodes

ERRORS: dict[str, KernelFlumeError] = {
    "lost": UnavailableError("gone"),
    "full": OverloadedError("full", retry_after_s=1.0),
    "bad": InvalidRequestError("bad"),
    "late": DeadlineError("late"),
}
ACTIONS = st.lists(
    st.sampled_from(
        ["token", "key", "finish", "abort", *ERRORS, "close", "fail", "turn", "take", "away", "back"]
    ),
    max_size=25,
)


class FakeNode:
    """Takes runs, of which the test tells; one that is away refuses them at once."""

    def __init__(self, address: str) -> None:
        self.address = self.node_id = address
        self.loads = LoadBook()
        self.is_away = False
        self.receivers: list[Receiver] = []
        self.requests: list[wnode_pb2.GenerateRequest] = []

    def generate(
        self, request: wnode_pb2.GenerateRequest, receiver: Receiver, **_: Any
    ) -> Callable[[], None]:
        self.requests.append(request)
        if self.is_away:
            receiver.ended(ERRORS["lost"])
            return lambda: None
        self.receivers.append(receiver)
        return lambda: self.end(UnavailableError("cancelled"))

    def end(self, error: KernelFlumeError | None) -> None:
        while self.receivers:
            self.receivers.pop().ended(error)


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

    def block_tokens(self) -> int:
        return 4


class Observer:
    def __init__(self) -> None:
        self.ends: list[bool] = []
        self.num_tokens = 0

    def placed(self, decision: Any, **_: Any) -> None: ...

    def started(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens

    def received(self, num_tokens: int, seconds: float) -> None:
        self.num_tokens += num_tokens

    def ended(self, *, was_started: bool) -> None:
        self.ends.append(was_started)


def act(nodes: FakeNodes, generation: Any, action: str, number: int) -> None:
    busy = next((node for node in nodes.all.values() if node.receivers), None)
    if action in {"away", "back"}:
        nodes.all["b"].is_away = action == "away"
    elif action == "close":
        generation.close()
    elif action == "fail":
        generation.fail(ERRORS["late"])
    elif action == "take":
        try:
            generation.take()
        except KernelFlumeError:
            assert generation.site is not None
    elif busy is None:
        return
    elif action == "token":
        busy.receivers[0].token(number, 0.0)
    elif action == "key":
        busy.receivers[0].event(wnode_pb2.GenerateEvent(token_ids=[number], random_key=number), 0.0)
    elif action in ERRORS:
        busy.end(ERRORS[action])
    else:
        reason = "length" if action == "finish" else "abort"
        busy.receivers[0].event(wnode_pb2.GenerateEvent(token_ids=[number], finish_reason=reason), 0.0)
        busy.end(None)


@given(ACTIONS)
def test_whatever_happens_nothing_is_left_and_the_end_is_told_once(actions: list[str]) -> None:
    asyncio.run(_run(actions))


async def _run(actions: list[str]) -> None:
    nodes, observer, clock = FakeNodes(), Observer(), MonotonicClock()
    known = cast("WeightNodes", nodes)
    placer = Placer(PlacementSettings(), known, clock)
    parts = CourseParts(
        nodes=known,
        placer=placer,
        metrics=RouterMetrics("m", nodes.views),
        clock=clock,
        request_timeout_s=60.0,
        resume_timeout_s=0.0,
    )
    prompt = Prompt(range(20), session=b"s")
    job = ChoiceJob("r", prompt, SamplingParameters(temperature=0.5, max_tokens=100))
    course = Course(parts, job, observer=observer, headers=())
    generation = course.new_generation(asyncio.Event())
    course.begin(generation, placer.decide(prompt))
    for number, action in enumerate(actions):
        if action == "turn":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            act(nodes, generation, action, number)
        books = [node.loads.own for node in nodes.all.values()]
        assert sum(own.num_requests for own in books) <= 1
    generation.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [node.loads.own for node in nodes.all.values()] == [Load(), Load()]
    assert not any(node.receivers for node in nodes.all.values())
    assert observer.ends == [bool(generation.token_ids)]
    assert observer.num_tokens == len(generation.token_ids)
    # Each run was told all tokens of those before it.
    for node in nodes.all.values():
        for request in node.requests:
            told = list(request.resumption.output_token_ids)
            assert told == generation.token_ids[: len(told)]
    assert sum(len(node.requests) for node in nodes.all.values()) <= 4 + actions.count("full")
