"""Blocks that outlive their sequences: a real engine and real attention nodes over the in-memory transport.

Tokens must be those of dense attention, whatever was found in the pool, and what was found must be all that
is there: whole blocks of the longest beginning that any request of the same salt computed before.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.engine_rig import EngineRig, prompt
from tests.inprocess import PAGE_TOKENS, LocalAttentionNode, LocalWeightNode

from kernelflume.wnode.messages import EngineReport, RoutesChanged, StepOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelflume.core.ranges import SequenceRoute


@pytest.fixture
def rig() -> Iterator[EngineRig]:
    with EngineRig() as built:
        yield built


def ask(weight: LocalWeightNode, name: str, tokens: list[int], **fields: object) -> tuple[list[int], int]:
    """Run a request; return its tokens and how many of its prompt were found."""
    weight.submit(name, tokens, **fields)  # type: ignore[arg-type]
    (output,) = weight.run_all(name)
    return output, cached(weight, name)


def cached(weight: LocalWeightNode, name: str) -> int:
    outputs = [output for event in weight.recorder.of(StepOutput) for output in event.outputs]
    told: list[int] = [output.num_cached_tokens for output in outputs if output.request_id == name]
    assert not any(told[1:])
    return told[0]


def route(weight: LocalWeightNode, name: str) -> SequenceRoute:
    sequence = weight.scheduler.find(name)
    assert sequence is not None
    return sequence.route


def shared(weight: LocalWeightNode, name: str) -> int:
    sequence = weight.scheduler.find(name)
    return 0 if sequence is None else sequence.num_shared


def whole_blocks(num_tokens: int) -> int:
    return num_tokens // PAGE_TOKENS * PAGE_TOKENS


def wait_unused(weight: LocalWeightNode, *nodes: LocalAttentionNode) -> None:
    """Wait until no sequence refers to any page."""
    weight.turn_until(lambda: not any(node.num_used_pages for node in nodes))


@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize("max_range_tokens", [0, 8])
def test_each_turn_finds_all_blocks_of_the_turns_before(
    rig: EngineRig, num_nodes: int, max_range_tokens: int
) -> None:
    weight, nodes = rig(num_nodes, max_range_tokens=max_range_tokens)
    context: list[int] = []
    num_computed = 0
    for turn in range(4):
        context += prompt(5 + 6 * turn, turn)
        output, num_cached = ask(weight, f"turn{turn}", context)
        assert output == weight.reference(context, 12)
        assert num_cached == whole_blocks(num_computed)
        context += output
        num_computed = len(context) - 1  # the last token was never an input
    wait_unused(weight, *nodes)


def test_last_token_of_a_prompt_is_always_computed(rig: EngineRig) -> None:
    weight, _ = rig(1)
    tokens = prompt(4 * PAGE_TOKENS)
    first, _ = ask(weight, "first", tokens)
    assert ask(weight, "again", tokens) == (first, 3 * PAGE_TOKENS)
    assert ask(weight, "shorter", tokens[:-1])[1] == 3 * PAGE_TOKENS
    assert ask(weight, "one block", tokens[:PAGE_TOKENS])[1] == 0
    assert ask(weight, "one token", tokens[:1])[1] == 0


def test_other_salts_and_prompt_logprobs_share_nothing(rig: EngineRig) -> None:
    weight, _ = rig(1)
    tokens = prompt(20)
    first, _ = ask(weight, "first", tokens, cache_salt="one")
    assert ask(weight, "other", tokens, cache_salt="two") == (first, 0)
    assert ask(weight, "none", tokens) == (first, 0)
    assert ask(weight, "logprobs", tokens, cache_salt="one", prompt_logprobs=0) == (first, 0)
    assert len(weight.recorder.prompt_logprobs["logprobs"]) == len(tokens) - 1
    assert ask(weight, "same", tokens, cache_salt="one") == (first, 16)


def test_nothing_is_shared_without_the_cache(rig: EngineRig) -> None:
    weight, nodes = rig(1, enable_prefix_caching=False)
    tokens = prompt(20)
    first, _ = ask(weight, "first", tokens)
    assert ask(weight, "again", tokens) == (first, 0)
    wait_unused(weight, *nodes)


def test_any_weight_node_finds_what_another_computed(rig: EngineRig) -> None:
    first, nodes = rig(2, max_range_tokens=8)
    second = rig.weight_node(nodes, name="w2#1")
    tokens = prompt(30)
    output, _ = ask(first, "one", tokens)
    wait_unused(first, *nodes)
    assert ask(second, "two", tokens) == (output, 28)


def test_what_runs_is_shared_while_it_runs(rig: EngineRig) -> None:
    weight, nodes = rig(2)
    system = prompt(18)
    weight.submit("first", system, max_tokens=60)
    weight.turn_until(lambda: len(weight.recorder.tokens["first"]) > 3)
    contexts = {f"r{number}": system[:16] + prompt(9, number) for number in range(6)}
    for name, tokens in contexts.items():
        weight.submit(name, tokens)
    weight.turn_until(lambda: len(weight.scheduler.running) == 7)
    # Sixteen tokens are there once, not seven times.
    assert sum(node.num_used_pages for node in nodes) < 7 * (28 // PAGE_TOKENS)
    outputs = weight.run_all(*contexts, "first")
    assert outputs[:-1] == [weight.reference(tokens, 12) for tokens in contexts.values()]
    assert outputs[-1] == weight.reference(system, 60)
    assert [cached(weight, name) for name in contexts] == [16] * 6
    wait_unused(weight, *nodes)


def test_a_node_that_drains_is_not_asked(rig: EngineRig) -> None:
    weight, _ = rig(2, max_range_tokens=8)
    tokens = prompt(40)
    output, _ = ask(weight, "first", tokens)
    (told,) = [event for event in weight.recorder.of(RoutesChanged) if event.routes][-1].routes.values()
    first, second = told.ranges[0].node_id, told.ranges[1].node_id
    assert first != second
    weight.adopt(first, draining=(second,))
    assert ask(weight, "second", tokens) == (output, 8)


def test_sequence_that_loses_a_node_finds_what_others_hold(rig: EngineRig) -> None:
    weight, nodes = rig(3, max_range_tokens=8)
    tokens = prompt(30)
    weight.submit("r", tokens)
    weight.turn_until(lambda: len(weight.recorder.tokens["r"]) == 4)
    lost = route(weight, "r").ranges[2].node_id
    weight.adopt(*[node_id for node_id in ("a0", "a1", "a2") if node_id != lost])
    assert weight.run_all("r") == [weight.reference(tokens, 12)]
    assert cached(weight, "r") == 0  # it was told with the first token
    assert ask(weight, "again", tokens)[1] == 28
    wait_unused(weight, *(node for node in nodes if not node.name.startswith(lost)))


def test_sequence_that_loses_every_node_is_computed_anew_on_the_next(rig: EngineRig) -> None:
    weight, _ = rig(2, active=1)
    tokens = prompt(30)
    ask(weight, "first", tokens)
    weight.submit("r", tokens)
    weight.turn_until(lambda: len(weight.recorder.tokens["r"]) == 4)
    weight.forget_link("a1#1", "it ended")
    weight.forget_link("a0#1", "it ended")
    weight.turn_until(lambda: not weight.scheduler.running)
    assert not weight.links.all()
    node = LocalAttentionNode("a2#1", rig.network, num_pages=200)
    try:
        weight.attach(node)
        weight.adopt("a2")
        assert weight.run_all("r") == [weight.reference(tokens, 12)]
        wait_unused(weight, node)
    finally:
        node.stop()


def test_cancelled_and_waiting_sequences_give_back_what_they_share(rig: EngineRig) -> None:
    weight, nodes = rig(1, num_pages=12)
    tokens = prompt(16)
    ask(weight, "first", tokens)
    weight.submit("long", prompt(10, 1), max_tokens=20)
    weight.turn_until(lambda: bool(weight.recorder.tokens["long"]))
    weight.submit("waits", tokens + prompt(20, 2), max_tokens=4)  # there is no room for it beside the other
    weight.turn_until(
        lambda: (found := weight.scheduler.find("waits")) is not None and found.num_shared == 16
    )
    weight.cancel("waits")
    weight.run_all("waits", "long")
    wait_unused(weight, *nodes)
    assert ask(weight, "last", [*tokens, 1])[1] == 16


def test_waiting_sequences_give_back_before_a_running_one_gives_way(rig: EngineRig) -> None:
    weight, nodes = rig(1, num_pages=12)
    tokens = prompt(16)
    ask(weight, "first", tokens)
    weight.submit("long", prompt(10, 1), max_tokens=36)  # in the end it needs 12 pages, all there are
    weight.turn_until(lambda: bool(weight.recorder.tokens["long"]))
    longer = tokens + prompt(20, 2)
    weight.submit("waits", longer, max_tokens=4)
    weight.turn_until(
        lambda: (found := weight.scheduler.find("waits")) is not None and found.num_shared == 16
    )
    outputs = weight.run_all("long", "waits")
    assert outputs == [weight.reference(prompt(10, 1), 36), weight.reference(longer, 4)]
    weight.turn_until(lambda: bool(weight.recorder.of(EngineReport)))
    assert weight.recorder.of(EngineReport)[-1].num_restarts == 0
    wait_unused(weight, *nodes)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_tokens_are_right_and_no_page_is_lost(rig: EngineRig, seed: int) -> None:
    """Conversations over few pages, with cancels and tables that change, on two weight nodes."""
    draw = random.Random(seed)  # noqa: S311 - a repeatable course
    first, nodes = rig(3, num_pages=14, max_range_tokens=8, max_num_seqs=4)
    weights = [first, rig.weight_node(nodes, name="w2#1", max_num_seqs=4)]
    conversations = [prompt(draw.randint(1, 12), number % 2) for number in range(5)]
    expected: dict[str, tuple[LocalWeightNode, list[int]]] = {}
    for number in range(40):
        weight, chosen = draw.choice(weights), draw.randrange(len(conversations))
        name = f"r{number}"
        context = conversations[chosen] + prompt(draw.randint(1, 6), number)
        conversations[chosen] = context if len(context) < 40 else context[: draw.randint(1, 30)]
        weight.submit(name, context, max_tokens=draw.randint(1, 8))
        expected[name] = (weight, context)
        if draw.random() < 0.2:
            cancelled = draw.choice(list(expected))
            expected.pop(cancelled)[0].cancel(cancelled)
        if draw.random() < 0.15:
            active = draw.sample(["a0", "a1", "a2"], draw.randint(2, 3))
            draining = tuple({"a0", "a1", "a2"}.difference(active))
            for each in weights:
                each.adopt(*active, draining=draining)
        for _ in range(draw.randint(0, 6)):
            for each in weights:
                each.engine.turn()

    def turn() -> None:
        for each in weights:
            each.engine.turn()

    def is_done() -> bool:
        turn()
        return all(name in weight.recorder.finished for name, (weight, _) in expected.items())

    first.turn_until(is_done)
    for name, (weight, context) in expected.items():
        assert not weight.recorder.finished[name].error
        output = weight.recorder.tokens[name]
        assert output == weight.reference(context, len(output))

    def is_unused() -> bool:
        turn()
        return not any(node.num_used_pages for node in nodes)

    first.turn_until(is_unused)
