"""Pinned prompts: a real engine and real attention nodes over the in-memory transport, with few pages.

``cached_tokens`` tells what was still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.engine_rig import EngineRig, prompt
from tests.integration.test_wnode_prefix_cache import ask, wait_unused, whole_blocks

from kernelflume.core.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.inprocess import LocalAttentionNode, LocalWeightNode

PINNED, OTHER = prompt(33, 1), prompt(33, 2)
"""Eight whole blocks each."""


@pytest.fixture
def rig() -> Iterator[EngineRig]:
    with EngineRig() as built:
        yield built


def num_pinned(nodes: list[LocalAttentionNode]) -> int:
    return sum(node.pool.blocks.num_pinned for node in nodes)


def press(weight: LocalWeightNode, nodes: list[LocalAttentionNode]) -> None:
    """Run other prompts, more than the pool holds, one after the other."""
    for number in range(10):
        context = prompt(60, 100 + number)
        assert ask(weight, f"pressure{number}", context) == (weight.reference(context, 12), 0)
        wait_unused(weight, *nodes)


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_pinned_prompt_is_found_after_pressure_that_evicted_others(rig: EngineRig, num_nodes: int) -> None:
    weight, nodes = rig(num_nodes, num_pages=64 // num_nodes, max_range_tokens=16)
    output, _ = ask(weight, "pinned", PINNED, retention=Retention.DAY)
    ask(weight, "other", OTHER)
    wait_unused(weight, *nodes)
    assert num_pinned(nodes) == 8  # whole blocks of the prompt, and none of the answer
    press(weight, nodes)
    assert ask(weight, "other again", OTHER)[1] == 0
    assert ask(weight, "pinned again", PINNED) == (output, 32)
    wait_unused(weight, *nodes)
    assert num_pinned(nodes) == 8


def test_the_next_turn_pins_what_it_found_and_what_it_adds(rig: EngineRig) -> None:
    weight, nodes = rig(1, num_pages=64, pinned_share=0.5)
    second = rig.weight_node(nodes, name="w2#1")
    output, _ = ask(weight, "first", PINNED)
    wait_unused(weight, *nodes)
    assert num_pinned(nodes) == 0
    turn = PINNED + output + prompt(7, 3)
    assert ask(second, "second", turn, retention=Retention.DAY)[1] == whole_blocks(len(PINNED + output) - 1)
    wait_unused(second, *nodes)
    assert num_pinned(nodes) == whole_blocks(len(turn)) // 4
    press(weight, nodes)
    assert ask(weight, "again", turn)[1] == whole_blocks(len(turn) - 1)


def test_in_memory_ends_the_pins_of_its_own_salt_alone(rig: EngineRig) -> None:
    weight, nodes = rig(1, num_pages=64)
    for salt in ("one", "two"):
        ask(weight, salt, PINNED, cache_salt=salt, retention=Retention.DAY)
    wait_unused(weight, *nodes)
    assert num_pinned(nodes) == 16
    ask(weight, "ends", PINNED, cache_salt="one", retention=Retention.IN_MEMORY)
    wait_unused(weight, *nodes)
    assert num_pinned(nodes) == 8
    press(weight, nodes)
    assert ask(weight, "one again", PINNED, cache_salt="one")[1] == 0
    assert ask(weight, "two again", PINNED, cache_salt="two")[1] == 32


def test_a_request_that_needs_the_whole_pool_runs_in_spite_of_pins(rig: EngineRig) -> None:
    weight, nodes = rig(1, num_pages=20, pinned_share=1.0)
    ask(weight, "pinned", PINNED, retention=Retention.DAY)
    wait_unused(weight, *nodes)
    large = prompt(66, 4)  # with its answer it takes all 20 pages
    assert ask(weight, "large", large) == (weight.reference(large, 12), 0)
    wait_unused(weight, *nodes)
    assert num_pinned(nodes) == 0


def test_a_node_without_a_share_pins_nothing(rig: EngineRig) -> None:
    weight, nodes = rig(1, num_pages=64, pinned_share=0.0)
    ask(weight, "pinned", PINNED, retention=Retention.DAY)
    wait_unused(weight, *nodes)
    press(weight, nodes)
    assert ask(weight, "again", PINNED)[1] == 0
