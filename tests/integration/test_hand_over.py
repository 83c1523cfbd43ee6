"""Sequences move between two weight nodes' engines over real attention-node exchanges (ADR 18).

Tokens must equal those of a run that stays, nothing is computed twice, and no page is left behind.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.inprocess import GEOMETRY, PAGE_TOKENS, LocalAttentionNode, LocalWeightNode

from kernelflume.anode.kvpool import HeldSequence
from kernelflume.core.ranges import SequenceRoute
from kernelflume.core.resumption import Resumption
from kernelflume.transport.loopback import LoopbackNetwork
from kernelflume.wnode.messages import EngineReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT = random.Random(3).choices(range(256), k=22)  # noqa: S311 - a repeatable prompt


class Pair:
    """Two weight nodes that share attention nodes, and a request that runs on one of them."""

    def __init__(self, num_nodes: int = 2, **options: Any) -> None:
        network = LoopbackNetwork()
        self.weights = [LocalWeightNode(network, name=f"w{number}#1", **options) for number in range(2)]
        self.nodes = [LocalAttentionNode(f"a{i}#1", network, num_pages=100) for i in range(num_nodes)]
        for weight in self.weights:
            for node in self.nodes:
                weight.attach(node)
            weight.adopt(*(f"a{i}" for i in range(num_nodes)))
        self.sampling: dict[str, Any] = {}
        self.at = 0
        self.output: list[int] = []
        self.logprobs: list[float] = []
        self.random_key: int | None = None
        self._num_runs = 0

    @property
    def source(self) -> LocalWeightNode:
        return self.weights[self.at]

    @property
    def target(self) -> LocalWeightNode:
        return self.weights[1 - self.at]

    @property
    def kv_bytes_sent(self) -> int:
        traffic = [weight.links.kv_traffic for weight in self.weights]
        return sum(one.layer_bytes + one.step_bytes for one in traffic)

    @property
    def name(self) -> str:
        return f"r-{self._num_runs}"

    def begin(self, *, hands_over: bool = False, **sampling: Any) -> None:
        self.sampling = sampling
        self._submit(self.source, Resumption(), hands_over=hands_over)

    def run(self, num_tokens: int) -> None:
        """Let the request come to so many more tokens."""
        recorder, name = self.source.recorder, self.name
        wanted = len(recorder.tokens[name]) + num_tokens
        self.source.turn_until(lambda: len(recorder.tokens[name]) >= wanted or name in recorder.finished)

    def hold(self) -> SequenceRoute:
        """Have the source hold the request and say where its blocks are."""
        recorder, name = self.source.recorder, self.name
        self.source.hand_over(name)
        self.source.turn_until(lambda: name in recorder.held or name in recorder.finished)
        return recorder.held[name]

    def move(self, route: SequenceRoute) -> None:
        """Go on at the target, and release the source once a token came from there."""
        source, held = self.source, self.name
        self._take_told()
        self.at = 1 - self.at
        self._num_runs += 1
        self._submit(self.source, Resumption(tuple(self.output), self.random_key, route))
        self.run(1)
        source.cancel(held)
        source.turn_until(lambda: held in source.recorder.finished)

    def finish(self) -> list[int]:
        name = self.name
        self.source.turn_until(lambda: name in self.source.recorder.finished)
        self._take_told()
        return self.output

    def settle(self) -> None:
        """Wait until nothing is held or referred to."""
        for weight in self.weights:
            wait_quiet(weight)
        self.source.turn_until(lambda: not any(map(num_held, self.nodes)))

    def close(self) -> None:
        for node in self.nodes:
            node.stop()
        for weight in self.weights:
            weight.close()

    def _submit(self, weight: LocalWeightNode, resumption: Resumption, *, hands_over: bool = False) -> None:
        weight.submit(self.name, PROMPT, resumption=resumption, hands_over=hands_over, **self.sampling)

    def _take_told(self) -> None:
        recorder = self.source.recorder
        self.output += recorder.tokens[self.name]
        self.logprobs += [told.logprob for told in recorder.logprobs[self.name]]
        key = recorder.random_keys.get(self.name)
        self.random_key = self.random_key if key is None else key


def wait_quiet(weight: LocalWeightNode) -> None:
    """Wait until all that was sent is answered."""
    weight.turn_until(lambda: all(link.is_quiet for link in weight.links.all()))


def num_held(node: LocalAttentionNode) -> int:
    """Count the pages that sequences refer to."""
    return node.pool.book.num_pages - node.pool.book.num_free


@pytest.fixture
def pair_of() -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def build(num_nodes: int = 2, **options: Any) -> Pair:
        pairs.append(Pair(num_nodes, **options))
        return pairs[-1]

    yield build
    for pair in pairs:
        pair.close()


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 50},
    {"temperature": 0.8, "seed": 9, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    {"repetition_penalty": 1.3, "min_tokens": 8, "logprobs": 2},
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("max_range_tokens", [0, 8])
def test_a_request_that_moves_at_every_token_says_what_one_that_stays_does(
    pair_of: Callable[..., Pair], sampling: dict[str, Any], max_range_tokens: int
) -> None:
    staying = pair_of(max_range_tokens=max_range_tokens)
    staying.begin(max_tokens=14, **sampling)
    expected = list(staying.finish())
    pair = pair_of(max_range_tokens=max_range_tokens)
    pair.begin(max_tokens=14, **sampling)
    pair.run(1)
    sent = pair.kv_bytes_sent
    assert sent >= len(PROMPT) * GEOMETRY.token_bytes
    for _ in range(12):
        pair.move(pair.hold())
    assert pair.finish() == expected
    assert pair.logprobs == pytest.approx(staying.logprobs, abs=1e-5)
    counts = [weight.hand_overs.counts for weight in pair.weights]
    assert sum(count.num_held for count in counts) == sum(count.num_taken for count in counts) == 12
    assert sum(count.num_recomputed_tokens for count in counts) == 0
    assert pair.kv_bytes_sent - sent == 13 * GEOMETRY.token_bytes  # each token's own, once
    pair.settle()


def test_a_prompt_can_be_handed_over_after_its_first_token(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of()
    pair.begin(max_tokens=6, hands_over=True)
    source = pair.source
    source.turn_until(lambda: pair.name in source.recorder.held)
    assert len(source.recorder.tokens[pair.name]) == 1
    pair.move(source.recorder.held[pair.name])
    assert pair.finish() == source.reference(PROMPT, 6)
    pair.settle()


def test_the_source_goes_on_when_told_to(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of()
    pair.begin(max_tokens=8)
    for _ in range(3):
        pair.run(1)
        pair.hold()
        del pair.source.recorder.held[pair.name]
        pair.source.go_on(pair.name)
    assert pair.finish() == pair.source.reference(PROMPT, 8)
    assert pair.source.hand_overs.counts.num_gone_on == 3
    pair.settle()


def test_what_a_lost_attention_node_held_is_computed_by_the_target(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(max_range_tokens=8)
    pair.begin(max_tokens=8)
    pair.run(3)
    route = pair.hold()
    lost = route.ranges[-1].node_id
    pair.target.forget_link(f"{lost}#1", "lost in the test")
    pair.target.adopt(next(f"a{i}" for i in range(2) if f"a{i}" != lost))
    pair.move(route)
    assert pair.finish() == pair.source.reference(PROMPT, 8)
    assert 0 < pair.source.hand_overs.counts.num_recomputed_tokens <= len(PROMPT) + 2


def test_a_source_that_lost_a_node_while_it_held_goes_on_by_computing(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(max_range_tokens=8)
    pair.begin(max_tokens=8)
    pair.run(3)
    route = pair.hold()
    pair.source.forget_link(f"{route.ranges[0].node_id}#1", "lost in the test")
    pair.source.adopt(route.ranges[1].node_id)
    pair.source.go_on(pair.name)
    assert pair.finish() == pair.source.reference(PROMPT, 8)


def test_an_order_that_comes_with_the_last_token_moves_nothing(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of()
    pair.begin(max_tokens=1, hands_over=True)
    assert pair.finish() == pair.source.reference(PROMPT, 1)
    assert not pair.source.recorder.held
    pair.settle()


def test_a_waiting_request_is_handed_over_with_nothing(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(max_num_seqs=1)
    pair.source.submit("first", PROMPT[::-1], max_tokens=40)
    pair.source.turn_until(lambda: bool(pair.source.recorder.tokens["first"]))
    pair.begin(max_tokens=4)
    assert pair.hold() == SequenceRoute()
    pair.move(SequenceRoute())
    assert pair.finish() == pair.source.reference(PROMPT, 4)


def test_a_cancelled_request_leaves_nothing_where_it_was_held(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of()
    pair.begin(max_tokens=8)
    pair.run(2)
    pair.hold()
    pair.source.cancel(pair.name)
    pair.source.turn_until(lambda: pair.name in pair.source.recorder.finished)
    pair.settle()


def test_nobody_asks_for_a_held_request_in_time(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(hold_timeout_s=0.05)
    pair.begin(max_tokens=8)
    pair.run(2)
    pair.hold()
    pair.source.turn_until(lambda: pair.name in pair.source.recorder.finished)
    assert "nothing was heard" in pair.source.recorder.finished[pair.name].error
    assert pair.source.hand_overs.counts.num_expired == 1
    pair.settle()


def test_a_full_last_block_needs_no_copy(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(1)
    pair.begin(max_tokens=2 * PAGE_TOKENS)
    pair.run(1)
    pair.run(-(len(PROMPT) - 1 + 1) % PAGE_TOKENS)
    route = pair.hold()
    assert route.num_tokens % PAGE_TOKENS == 0
    pair.move(route)
    assert pair.finish() == pair.source.reference(PROMPT, 2 * PAGE_TOKENS)
    assert pair.source.hand_overs.counts.num_recomputed_tokens == 0


def test_without_a_page_for_the_copy_of_the_last_block_it_is_computed_where_there_is_room(
    pair_of: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelflume.wnode.prefix_cache.HOLD_S", 0.05)
    pair = pair_of()
    pair.begin(max_tokens=8)
    pair.run(4)
    route = pair.hold()
    assert route.num_tokens % PAGE_TOKENS
    tail = next(node for node in pair.nodes if node.name.startswith(route.ranges[-1].node_id))
    filler = HeldSequence()
    tail.pool.append(filler, 0, tail.pool.num_free_pages * PAGE_TOKENS)
    pair.move(route)
    assert pair.finish() == pair.source.reference(PROMPT, 8)
    assert pair.source.hand_overs.counts.num_recomputed_tokens == route.num_tokens % PAGE_TOKENS
    pair.source.turn_until(lambda: bool(pair.source.recorder.of(EngineReport)))
    assert pair.source.recorder.of(EngineReport)[-1].num_restarts == 0  # no append found the pool full
    tail.pool.release(filler)
    pair.settle()
