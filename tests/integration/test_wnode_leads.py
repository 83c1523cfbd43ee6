"""Equal beginnings at the same time: one sequence computes them, those behind find them.

Real engines and attention nodes over the in-memory transport. Tokens must be those of dense attention.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.engine_rig import EngineRig, prompt
from tests.inprocess import PAGE_TOKENS, LocalAttentionNode, LocalWeightNode

from kernelflume.core.blocks import WORTH_TOKENS
from kernelflume.wnode.leads import MAX_FOLLOWED

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = WORTH_TOKENS + 22
NUM_TOKENS = 4


@pytest.fixture
def rig() -> Iterator[EngineRig]:
    with EngineRig() as built:
        yield built


def cached(weight: LocalWeightNode, name: str) -> int:
    told = [output.num_cached_tokens for output in weight.recorder.outputs_of(name)]
    assert not any(told[1:])
    return told[0]


def whole_blocks(num_tokens: int) -> int:
    return num_tokens // PAGE_TOKENS * PAGE_TOKENS


def settle(weight: LocalWeightNode, *nodes: LocalAttentionNode) -> None:
    weight.turn_until(lambda: not any(node.num_used_pages for node in nodes))


def run(weight: LocalWeightNode, prompts: dict[str, list[int]], **fields: object) -> list[int]:
    """Submit all at once and check their tokens; return how many of each were found."""
    for name, tokens in prompts.items():
        weight.submit(name, tokens, **{"max_tokens": NUM_TOKENS, **fields})  # type: ignore[arg-type]
    weight.run_all(*prompts)
    check(weight, prompts)
    return [cached(weight, name) for name in prompts]


def check(weight: LocalWeightNode, prompts: dict[str, list[int]]) -> None:
    for name, tokens in prompts.items():
        output = weight.recorder.tokens[name]
        assert output == weight.reference(tokens, len(output))
        assert not weight.recorder.finished[name].error


@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize("max_tokens", [1, NUM_TOKENS])
def test_equal_prompts_are_computed_once(rig: EngineRig, num_nodes: int, max_tokens: int) -> None:
    weight, nodes = rig(num_nodes, max_range_tokens=40)
    prompts = dict.fromkeys("abcd", prompt(LENGTH))
    assert run(weight, prompts, max_tokens=max_tokens) == [0, *[whole_blocks(LENGTH - 1)] * 3]
    settle(weight, *nodes)


def test_an_equal_prompt_that_comes_while_one_is_computed_waits_for_it(rig: EngineRig) -> None:
    weight, nodes = rig(1)
    tokens = prompt(LENGTH)
    weight.submit("first", tokens)
    weight.turn_until(
        lambda: weight.scheduler.running[:1] != [] and weight.scheduler.running[0].num_computed > 40
    )
    assert run(weight, {"second": tokens}) == [whole_blocks(LENGTH - 1)]
    weight.run_all("first")
    settle(weight, *nodes)


def test_what_is_in_the_pool_already_is_found_first_and_a_longer_beginning_waited_for(rig: EngineRig) -> None:
    weight, nodes = rig(2)
    system, more = prompt(40), prompt(LENGTH, 1)
    run(weight, {"before": system})
    prompts = {"a": system + more, "b": system + more + [1, 2, 3], "c": [*system, 9]}
    assert run(weight, prompts) == [40, whole_blocks(40 + LENGTH), 40]
    settle(weight, *nodes)


def test_short_common_beginnings_other_salts_and_a_cache_that_is_off_are_not_waited_for(
    rig: EngineRig,
) -> None:
    weight, _ = rig(1, max_rows=512)
    common = prompt(WORTH_TOKENS - PAGE_TOKENS)
    assert run(weight, {"a": [*common, 1, 2], "b": [*common, 3, 4]}) == [0, 0]
    for name in "cd":
        weight.submit(name, prompt(LENGTH, 5), max_tokens=NUM_TOKENS, cache_salt=name)
    weight.run_all("c", "d")
    assert [cached(weight, name) for name in "cd"] == [0, 0]
    without = rig.weight_node([], name="w2#1", enable_prefix_caching=False)
    assert not without.scheduler.all


def test_when_the_one_ahead_is_cancelled_the_next_computes(rig: EngineRig) -> None:
    weight, nodes = rig(1)
    prompts = dict.fromkeys("abcd", prompt(2 * LENGTH))
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=NUM_TOKENS)
    weight.turn_until(
        lambda: weight.scheduler.running[:1] != [] and weight.scheduler.running[0].num_computed > 60
    )
    computed = whole_blocks(weight.scheduler.running[0].num_computed)
    weight.cancel("a")
    weight.run_all(*prompts)
    del prompts["a"]
    check(weight, prompts)
    # What the first had computed is found by all; what it had not the second computed, once.
    found = [cached(weight, name) for name in prompts]
    assert computed <= found[0] < LENGTH
    assert found[1:] == [whole_blocks(2 * LENGTH - 1)] * 2
    settle(weight, *nodes)


def test_when_all_ahead_are_cancelled_one_after_another_the_last_does_not_wait_for_ever(
    rig: EngineRig,
) -> None:
    weight, nodes = rig(1)
    names = [f"r{number}" for number in range(MAX_FOLLOWED + 3)]
    tokens = prompt(LENGTH)
    for name in names:
        weight.submit(name, tokens, max_tokens=NUM_TOKENS)
    for name in names[:-1]:
        weight.turn_until(lambda: bool(weight.scheduler.running))
        weight.cancel(name)
        weight.turn_until(lambda name=name: name in weight.recorder.finished)  # type: ignore[misc]
    weight.run_all(names[-1])
    check(weight, {names[-1]: tokens})
    settle(weight, *nodes)


def test_when_the_one_ahead_loses_its_node_both_are_computed_on_another(rig: EngineRig) -> None:
    weight, nodes = rig(2, active=1)
    prompts = dict.fromkeys("ab", prompt(LENGTH))
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=NUM_TOKENS)
    weight.turn_until(
        lambda: weight.scheduler.running[:1] != [] and weight.scheduler.running[0].num_computed > 60
    )
    weight.adopt("a1")  # the other left the table without a drain
    weight.run_all(*prompts)
    check(weight, prompts)
    assert cached(weight, "b") == whole_blocks(LENGTH - 1)
    settle(weight, nodes[1])


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_tokens_are_right_and_nobody_waits_for_ever(rig: EngineRig, seed: int) -> None:
    """Few pages, so that sequences give way; equal prompts, cancels, hand-overs that are given up."""
    draw = random.Random(seed)  # noqa: S311 - a repeatable course
    weight, nodes = rig(2, num_pages=60, max_range_tokens=40, max_num_seqs=4)
    contexts = [prompt(LENGTH + 9 * number, number % 2) for number in range(4)]
    prompts: dict[str, list[int]] = {}
    for number in range(14):
        name = f"r{number}"
        prompts[name] = draw.choice(contexts) + prompt(draw.randint(0, 5), number)
        weight.submit(name, prompts[name], max_tokens=draw.randint(1, 4))
        if draw.random() < 0.3:
            victim = draw.choice(list(prompts))
            del prompts[victim]
            weight.cancel(victim)
        for _ in range(draw.randint(0, 12)):
            weight.engine.turn()
    weight.run_all(*prompts)
    check(weight, prompts)
    settle(weight, *nodes)
