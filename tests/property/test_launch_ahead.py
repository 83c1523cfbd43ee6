"""Launching ahead changes no token, whatever requests, ends, cancels, holds, losses and scale events come."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.device_world import DeviceWorld

from kernelflume.wnode.messages import LinkLost

if TYPE_CHECKING:
    from tests.inprocess import LocalWeightNode

MOST_TOKENS = 16


@dataclass(frozen=True)
class Request:
    """What is asked for, and when."""

    prompt: tuple[int, ...]
    max_tokens: int
    stop: tuple[int, ...]
    at_turn: int
    cancelled_at: int | None
    held_at: int | None
    """It is to be handed over, and goes on here as soon as it is held."""
    logprobs: int | None
    """With these the host chooses its tokens."""


@dataclass(frozen=True)
class Scenario:
    """Everything that happens, by turns of the step loop."""

    seed: int
    requests: tuple[Request, ...]
    microbatches: str
    max_range_tokens: int
    num_pages: int
    eos: frozenset[int]
    joins_at: int | None
    drains_at: int | None
    lost_at: int | None
    promptness: float


SHARED = tuple(range(7, 16))
"""Some prompts begin with two blocks of these, so that they find each other's."""
PROMPTS = st.lists(st.integers(0, 255), min_size=1, max_size=12).map(tuple)
REQUESTS = st.builds(
    Request,
    prompt=st.one_of(PROMPTS, PROMPTS.map(lambda tail: (*SHARED, *tail[:3]))),
    max_tokens=st.integers(1, MOST_TOKENS),
    stop=st.lists(st.integers(0, 255), max_size=20).map(tuple),
    at_turn=st.integers(0, 12),
    cancelled_at=st.one_of(st.none(), st.none(), st.integers(0, 25)),
    held_at=st.one_of(st.none(), st.none(), st.integers(0, 25)),
    logprobs=st.sampled_from([None, None, None, None, 1]),
)
SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 1 << 30),
    requests=st.lists(REQUESTS, min_size=1, max_size=6).map(tuple),
    microbatches=st.sampled_from(["1", "2", "auto"]),
    max_range_tokens=st.sampled_from([0, 0, 3, 5]),
    num_pages=st.sampled_from([8, 12, 100]),
    eos=st.frozensets(st.integers(0, 255), max_size=10),
    joins_at=st.one_of(st.none(), st.integers(2, 20)),
    drains_at=st.one_of(st.none(), st.integers(2, 25)),
    lost_at=st.one_of(st.none(), st.integers(2, 25)),
    promptness=st.sampled_from([0.7, 0.05]),
)


@lru_cache(maxsize=4096)
def greedy(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens of dense attention, as many as any request asks for."""
    return tuple(weight_of_reference().reference(list(prompt), MOST_TOKENS))


@lru_cache(maxsize=1)
def weight_of_reference() -> LocalWeightNode:
    return DeviceWorld(0).weight


def expected(request: Request, eos: frozenset[int]) -> list[int]:
    """The tokens until an end."""
    tokens = list(greedy(request.prompt)[: request.max_tokens])
    ends = [index for index, token in enumerate(tokens) if token in eos or token in request.stop]
    return tokens[: ends[0]] if ends else tokens


class Play:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, *, ahead: bool) -> None:
        self.scenario = scenario
        self.active = ["a0", "a1"]
        self.world = DeviceWorld(
            3,
            active=2,
            seed=scenario.seed,
            num_pages=scenario.num_pages,
            microbatches=scenario.microbatches,
            max_num_seqs=4,
            max_range_tokens=scenario.max_range_tokens,
            eos_token_ids=scenario.eos,
            async_scheduling=ahead,
            promptness=scenario.promptness,
        )
        self.weight = self.world.weight
        self.gone_on: set[str] = set()

    def run(self) -> None:
        """Let everything happen, and go on until all requests are at their ends."""
        for turn in range(30):
            self._requests(turn)
            self._events(turn)
            self._go_on()
            self.weight.engine.turn()
        if self.scenario.lost_at is not None:
            # A node that nothing runs on is lost when the table says so.
            self.active.remove("a1")
        # One that drains stays until all is over: whoever leaves the table sooner is lost, with its pages.
        draining = () if "a0" in self.active else ("a0",)
        self.weight.adopt(*(self.active or ["a2"]), draining=draining)
        self.weight.turn_until(lambda: self.weight.inbox.is_empty)
        self.weight.turn_until(self._is_over)

    def check(self) -> None:
        """Look at every token, and let the pages be freed."""
        recorder = self.weight.recorder
        for number, request in enumerate(self.scenario.requests):
            name, whole = str(number), expected(request, self.scenario.eos)
            output = recorder.finished.get(name)
            tokens = recorder.tokens[name]
            if output is not None and output.finish_reason != "abort":
                assert tokens == whole
            else:
                assert tokens == whole[: len(tokens)]
                assert request.cancelled_at is not None or (output is not None and output.error)
        if self.scenario.lost_at is None and self.scenario.drains_at is None:
            assert not recorder.of(LinkLost)
        self.world.drain()
        assert not self.weight.engine._ended
        for node in self.world.nodes:
            for link in node.exchange._links.values():
                assert node.name in self.world.silent or not link.sequences

    def _is_over(self) -> bool:
        self._go_on()
        return not self.weight.scheduler.all

    def _go_on(self) -> None:
        """Let what is held go on, as a router does that has no other weight node."""
        for name in self.weight.recorder.held.keys() - self.gone_on:
            self.gone_on.add(name)
            self.weight.go_on(name)

    def _requests(self, turn: int) -> None:
        for number, request in enumerate(self.scenario.requests):
            if request.at_turn == turn:
                self.weight.submit(
                    str(number),
                    list(request.prompt),
                    max_tokens=request.max_tokens,
                    stop_token_ids=request.stop,
                    logprobs=request.logprobs,
                )
            if request.cancelled_at == turn:
                self.weight.cancel(str(number))
            if request.held_at == turn:
                self.weight.hand_over(str(number))

    def _events(self, turn: int) -> None:
        if turn == self.scenario.joins_at:
            self.active.append("a2")
            self.weight.adopt(*self.active)
        if turn == self.scenario.drains_at:
            self.active.remove("a0")
            self.weight.adopt(*self.active, draining=("a0",))
        if turn == self.scenario.lost_at:
            self.world.kill("a1#1")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCENARIOS)
def test_no_token_changes_and_no_page_leaks(scenario: Scenario) -> None:
    for ahead in (True, False):
        play = Play(scenario, ahead=ahead)
        try:
            play.run()
            play.check()
        finally:
            play.world.close()
        assert play.world.most_under_way <= 1 + ahead
