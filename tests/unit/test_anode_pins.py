"""Pinned blocks outlive others for a day, within a share, and yield to sequences alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.anode import GEOMETRY, Tokens
from tests.exchange_node import PAGE_TOKENS, Node, store
from tests.unit.test_anode_blocks import blocks_of, find, free, named, publish, share

from kernelflume.core.retention import PIN_S, Pinning, Retention
from kernelflume.transport import wire

if TYPE_CHECKING:
    from tests.anode import WeightNode

DAY = Pinning(Retention.DAY, 1 << 20)
IN_MEMORY = Pinning(Retention.IN_MEMORY, 1 << 20)


def pinned_node(*, share: float = 0.5, **options: float) -> Node:
    """8 pages, of which a share may be pinned."""
    return Node(num_pages=8, pinned_share=share, **options)  # type: ignore[arg-type]


def fill(node: Node, weight: WeightNode, sequence: int, num_pages: int) -> None:
    """Let a sequence take so many pages."""
    tokens = Tokens.random(GEOMETRY, PAGE_TOKENS, torch.Generator().manual_seed(sequence))
    for page in range(num_pages):
        weight.append(tokens.rows(0, PAGE_TOKENS), [(sequence, PAGE_TOKENS, page * PAGE_TOKENS)])
        node.turn()
        (answer,) = weight.poll()
        assert isinstance(answer, wire.Appended)
        assert not answer.failed


def test_pinned_blocks_stay_where_others_go() -> None:
    node = pinned_node()
    weight = node.link()
    _, pinned = named(node, weight, 5, 8, DAY)
    free(node, weight, 5)
    _, other = named(node, weight, 6, 8)
    free(node, weight, 6)
    fill(node, weight, 7, 6)  # the four empty pages, and the two of the other, though it was used later
    assert find(node, weight, other) == [False, False]
    assert find(node, weight, pinned) == [True, True]
    assert node.pool.num_free_pages == 2  # they count as free


def test_pins_yield_before_a_sequence_fails() -> None:
    node = pinned_node()
    weight = node.link()
    _, pinned = named(node, weight, 5, 8, DAY)
    free(node, weight, 5)
    fill(node, weight, 7, 7)
    assert find(node, weight, pinned) == [True, False]
    fill(node, weight, 8, 1)
    assert find(node, weight, pinned) == [False, False]
    counts = node.pool.blocks.pin_counts
    assert (counts.num_taken, counts.num_yielded, node.pool.blocks.num_pinned) == (2, 2, 0)


def test_room_beyond_what_is_needed_takes_no_pins() -> None:
    node = Node(num_pages=256, pinned_share=1.0)  # so large that four pages go at once
    weight = node.link()
    _, pinned = named(node, weight, 5, 16, DAY)
    free(node, weight, 5)
    _, other = named(node, weight, 6, 8)
    free(node, weight, 6)
    fill(node, weight, 7, 251)
    assert find(node, weight, other) == [False, False]
    assert find(node, weight, pinned) == [True] * 4


def test_the_share_takes_the_beginning_of_a_prompt_that_exceeds_it() -> None:
    node = pinned_node(share=0.25)
    weight = node.link()
    _, blocks = named(node, weight, 5, 16, DAY)
    assert node.pool.blocks.num_pinned == node.pool.blocks.max_pinned == 2
    assert node.pool.blocks.pin_counts.num_refused == 1
    free(node, weight, 5)
    fill(node, weight, 7, 6)
    assert find(node, weight, blocks) == [True, True, False, False]


def test_a_newer_pin_ends_the_one_unused_for_longest() -> None:
    node = pinned_node(share=0.25)
    weight = node.link()
    _, first = named(node, weight, 5, 4, DAY)
    free(node, weight, 5)
    _, second = named(node, weight, 6, 4, DAY)
    free(node, weight, 6)
    assert find(node, weight, first) == [True]  # now the second is the one unused for longest
    _, third = named(node, weight, 7, 4, DAY)
    free(node, weight, 7)
    assert node.pool.blocks.pin_counts.num_displaced == 1
    fill(node, weight, 8, 6)
    assert [find(node, weight, blocks) for blocks in (first, second, third)] == [[True], [False], [True]]


def test_pins_of_running_sequences_are_not_displaced() -> None:
    node = pinned_node(share=0.25)
    weight = node.link()
    _, first = named(node, weight, 5, 8, DAY)
    _, second = named(node, weight, 6, 8, DAY)
    free(node, weight, 6)
    free(node, weight, 5)
    fill(node, weight, 7, 6)
    assert find(node, weight, first) == [True, True]
    assert find(node, weight, second) == [False, False]


def test_a_pin_ends_a_day_after_its_last_use_by_whomever() -> None:
    node = pinned_node(ttl_s=10.0)
    weight = node.link()
    _, blocks = named(node, weight, 5, 8, DAY)
    free(node, weight, 5)
    node.clock.advance(PIN_S - 1)
    assert find(node, weight, blocks[:1]) == [True]  # well past the time to live of others
    node.clock.advance(2)
    assert find(node, weight, blocks) == [True, False]
    node.clock.advance(PIN_S)
    assert find(node, weight, blocks) == [False, False]
    assert node.pool.blocks.pin_counts.num_expired == 2


def test_a_pin_that_ended_leaves_a_block_that_is_cached_as_others() -> None:
    node = pinned_node()
    weight = node.link()
    _, blocks = named(node, weight, 5, 8, DAY)
    free(node, weight, 5)
    _, other = named(node, weight, 6, 8)
    free(node, weight, 6)
    node.clock.advance(PIN_S)
    node.turn()
    assert node.pool.blocks.num_pinned == 0
    fill(node, weight, 7, 6)
    assert find(node, weight, blocks) == [False, False]
    assert find(node, weight, other) == [True, True]


def test_pages_are_dropped_in_the_order_of_use_whatever_became_of_their_pins() -> None:
    node = pinned_node(share=0.25)
    weight = node.link()
    contexts = []
    for sequence, pinning in ((1, DAY), (2, Pinning()), (3, DAY), (4, Pinning()), (5, DAY), (6, DAY)):
        contexts.append(named(node, weight, sequence, 4, pinning)[1])
        free(node, weight, sequence)
    # The pins of the first and the third ended for those of the last two.
    for lost in range(4):
        fill(node, weight, 10 + lost, 1 if lost else 3)
        held = [node.pool.blocks.find(blocks[0][0]) is not None for blocks in contexts]
        assert held == [number > lost for number in range(6)]


def test_asking_for_the_ordinary_rule_ends_pins() -> None:
    node = pinned_node()
    weight = node.link()
    _, blocks = named(node, weight, 5, 12, DAY)
    free(node, weight, 5)
    assert share(node, weight, 6, blocks[:1], IN_MEMORY) == 1
    publish(node, weight, 6, blocks[:2], Pinning(Retention.IN_MEMORY, 7))  # whole blocks of the prompt alone
    assert node.pool.blocks.num_pinned == 2
    free(node, weight, 6)
    assert share(node, weight, 7, blocks, Pinning()) == 3
    assert node.pool.blocks.num_pinned == 2
    assert node.pool.blocks.pin_counts.num_given_up == 1


def test_whole_blocks_of_the_prompt_alone_are_pinned() -> None:
    node = pinned_node()
    weight = node.link()
    named(node, weight, 5, 11, Pinning(Retention.DAY, 7))
    assert node.pool.blocks.num_pinned == 1
    named(node, weight, 6, 6, DAY)
    assert node.pool.blocks.num_pinned == 2


def test_what_was_computed_twice_is_pinned_where_it_was_named() -> None:
    node = pinned_node()
    weight = node.link()
    _, blocks = named(node, weight, 5, 4)
    page = node.pool.blocks.find(blocks[0][0])
    free(node, weight, 5)
    store(node, weight, 6, 4)
    publish(node, weight, 6, blocks, DAY)
    assert node.pool.blocks.pinned_pages == (page,)
    free(node, weight, 6)
    assert node.pool.num_free_pages == 8


@pytest.mark.parametrize("options", [{"share": 0.0}, {"is_cache": False}])
def test_nothing_is_pinned_where_there_is_no_share(options: dict[str, float]) -> None:
    node = pinned_node(**options)
    weight = node.link()
    named(node, weight, 5, 8, DAY)
    assert node.pool.blocks.num_pinned == 0
    free(node, weight, 5)
    fill(node, weight, 7, 8)
    assert find(node, weight, blocks_of("5", 8)) == [False, False]
