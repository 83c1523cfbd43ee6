"""Blocks that outlive their sequences, as the notices of weight nodes find, share and name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch
from tests.anode import GEOMETRY, Tokens
from tests.exchange_node import PAGE_TOKENS, Node, ask, check_layer, store

from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.retention import AS_IT_IS
from kernelflume.transport import wire

if TYPE_CHECKING:
    from tests.anode import WeightNode

    from kernelflume.core.retention import Pinning

Blocks = list[tuple[bytes, int, int]]


def blocks_of(name: str, num_tokens: int) -> Blocks:
    """Return the blocks of a context that begins at 0; the last may be less than full."""
    return [
        (f"{name}:{start}".encode().ljust(KEY_BYTES), start, min(PAGE_TOKENS, num_tokens - start))
        for start in range(0, num_tokens, PAGE_TOKENS)
    ]


def answer_of(node: Node, weight: WeightNode) -> wire.WireNotice:
    node.turn()
    (answer,) = weight.poll()
    return answer


def find(node: Node, weight: WeightNode, blocks: Blocks, *, number: int = 1) -> list[bool]:
    weight.find([key for key, _, _ in blocks], number=number)
    answer = answer_of(node, weight)
    assert isinstance(answer, wire.Found)
    assert answer.number == number
    return cast("list[bool]", answer.is_here.tolist())


def share(node: Node, weight: WeightNode, sequence: int, blocks: Blocks, pinning: Pinning = AS_IT_IS) -> int:
    weight.share(sequence, blocks, pinning)
    answer = answer_of(node, weight)
    assert isinstance(answer, wire.Shared)
    assert (answer.sequence, answer.num_free_pages) == (sequence, node.pool.num_free_pages)
    return answer.num_blocks


def publish(
    node: Node, weight: WeightNode, sequence: int, blocks: Blocks, pinning: Pinning = AS_IT_IS
) -> None:
    weight.publish(sequence, blocks, pinning)
    assert answer_of(node, weight) == wire.Published(sequence, len(blocks), node.pool.num_free_pages)


def free(node: Node, weight: WeightNode, *sequences: int) -> None:
    weight.free(*sequences)
    assert answer_of(node, weight) == wire.Freed(node.pool.num_free_pages)


def grow(node: Node, weight: WeightNode, sequence: int, tokens: Tokens, num_tokens: int) -> Tokens:
    """Append to a sequence that holds ``tokens``; return all it holds then."""
    more = Tokens.random(GEOMETRY, num_tokens, torch.Generator().manual_seed(1000 * sequence + num_tokens))
    weight.append(more.rows(0, num_tokens), [(sequence, num_tokens, tokens.num_tokens)])
    answer = answer_of(node, weight)
    assert isinstance(answer, wire.Appended)
    assert not answer.failed
    return Tokens(torch.cat([tokens.keys, more.keys], 1), torch.cat([tokens.values, more.values], 1))


def check(node: Node, weight: WeightNode, sequence: int, tokens: Tokens, *, step: int) -> None:
    """Attend to all that a sequence holds and compare with the oracle."""
    answer, queries = ask(node, weight, [(sequence, 1, tokens.num_tokens)], step=step)
    assert answer.status is wire.RowStatus.OK
    check_layer(weight, queries, [(1, tokens)], 0)


def named(
    node: Node, weight: WeightNode, sequence: int, num_tokens: int, pinning: Pinning = AS_IT_IS
) -> tuple[Tokens, Blocks]:
    """Store a sequence and name its blocks."""
    tokens = store(node, weight, sequence, num_tokens)
    blocks = blocks_of(str(sequence), num_tokens)
    publish(node, weight, sequence, blocks, pinning)
    return tokens, blocks


def test_what_a_sequence_leaves_is_found_and_shared_by_another_weight_node() -> None:
    node = Node(num_pages=16)
    first, second = node.link("w-1#1"), node.link("w-2#1")
    tokens, blocks = named(node, first, 5, 10)
    free(node, first, 5)
    assert node.pool.num_free_pages == 16
    assert node.pool.num_tokens == 0
    assert find(node, second, [*blocks, *blocks_of("other", 4)]) == [True, True, True, False]
    assert share(node, second, 7, blocks[:2]) == 2
    assert node.pool.num_free_pages == 14
    assert node.pool.num_tokens == 8
    prefix = Tokens(tokens.keys[:, :8], tokens.values[:, :8])
    check(node, second, 7, prefix, step=1)
    grown = grow(node, second, 7, prefix, 5)
    check(node, second, 7, grown, step=2)
    assert find(node, first, blocks) == [True, True, True]


def test_two_weight_nodes_hold_one_page_and_the_last_lets_it_go() -> None:
    node = Node(num_pages=16)
    first, second = node.link("w-1#1"), node.link("w-2#1")
    tokens, blocks = named(node, first, 5, 8)
    assert share(node, second, 5, blocks) == 2
    assert node.pool.num_tokens == 8
    assert [link.num_tokens for link in node.exchange.statistics().links] == [8, 8]
    free(node, first, 5)
    assert node.pool.num_free_pages == 14
    check(node, second, 5, tokens, step=1)
    node.exchange.drop("w-2#1", "a test")
    assert node.pool.num_free_pages == 16
    assert find(node, first, blocks) == [True, True]


def test_sharing_ends_before_the_first_block_that_is_gone() -> None:
    node = Node(num_pages=16)
    weight = node.link()
    tokens, blocks = named(node, weight, 5, 12)
    wanted = [blocks[0], blocks_of("gone", 8)[1], blocks[2]]
    assert share(node, weight, 6, wanted) == 1
    check(node, weight, 6, Tokens(tokens.keys[:, :4], tokens.values[:, :4]), step=1)
    assert share(node, weight, 6, blocks[1:]) == 2
    check(node, weight, 6, tokens, step=2)
    assert share(node, weight, 7, wanted[1:]) == 0
    assert 7 not in node.exchange._links["w#1"].sequences


def test_a_shared_page_is_copied_before_it_is_appended_to() -> None:
    node = Node(num_pages=16)
    first, second = node.link("w-1#1"), node.link("w-2#1")
    tokens, blocks = named(node, first, 5, 6)
    assert share(node, second, 5, blocks) == 2
    assert node.pool.num_free_pages == 14
    ours, theirs = grow(node, first, 5, tokens, 1), grow(node, second, 5, tokens, 2)
    check(node, first, 5, ours, step=1)
    check(node, second, 5, theirs, step=1)
    # The first to append left the page to the other, which then was its only holder.
    assert node.pool.num_free_pages == 13
    assert node.pool.num_tokens == 4 + 3 + 4
    assert find(node, first, blocks) == [True, False]


def test_a_named_page_that_nobody_else_holds_is_appended_to_in_place() -> None:
    node = Node(num_pages=16)
    weight = node.link()
    tokens, blocks = named(node, weight, 5, 6)
    check(node, weight, 5, grow(node, weight, 5, tokens, 2), step=1)
    assert node.pool.num_free_pages == 14
    assert find(node, weight, blocks) == [True, False]
    publish(node, weight, 5, blocks_of("5", 8))
    assert find(node, weight, blocks_of("5", 8)) == [True, True]
    publish(node, weight, 5, blocks_of("another", 8))
    assert find(node, weight, blocks_of("another", 8)) == [False, False]  # a page has one name


def test_copying_without_a_free_page_drops_the_sequence_that_appends() -> None:
    node = Node(num_pages=2)
    first, second = node.link("w-1#1"), node.link("w-2#1")
    tokens, blocks = named(node, first, 5, 6)
    assert share(node, second, 6, blocks) == 2
    second.append(tokens.rows(0, 1), [(6, 1, 6)])
    answer = answer_of(node, second)
    assert cast("wire.Appended", answer).failed == (6,)
    check(node, first, 5, tokens, step=1)
    assert share(node, second, 6, blocks) == 0  # it has ended


def test_a_page_without_sequences_goes_when_its_room_is_needed_the_oldest_first() -> None:
    node = Node(num_pages=6)
    weight = node.link()
    _, old = named(node, weight, 5, 8)
    _, new = named(node, weight, 6, 8)
    free(node, weight, 5)
    free(node, weight, 6)
    store(node, weight, 7, 12)
    assert find(node, weight, old) == [True, False]  # the end of a context goes before its beginning
    assert find(node, weight, new) == [True, True]
    assert find(node, weight, old) == [True, False]  # now it is the one used last
    store(node, weight, 8, 8)
    assert find(node, weight, new) == [False, False]
    assert find(node, weight, old) == [True, False]
    assert node.pool.blocks.num_evicted == 3


def test_a_page_with_a_sequence_never_goes() -> None:
    node = Node(num_pages=4)
    weight = node.link()
    tokens, _ = named(node, weight, 5, 12)
    weight.append(tokens.rows(0, 8), [(6, 8, 0)])
    assert cast("wire.Appended", answer_of(node, weight)).failed == (6,)
    check(node, weight, 5, tokens, step=1)


def test_a_time_to_live_ends_what_is_not_used() -> None:
    node = Node(num_pages=16, ttl_s=10.0)
    weight = node.link()
    _, blocks = named(node, weight, 5, 8)
    free(node, weight, 5)
    node.clock.advance(9)
    assert find(node, weight, blocks[:1]) == [True]
    node.clock.advance(2)
    assert find(node, weight, blocks) == [True, False]
    node.clock.advance(10)
    assert find(node, weight, blocks) == [False, False]
    assert node.pool.blocks.num_expired == 2
    assert node.pool.book.allocator.num_free == 16


def test_a_node_that_keeps_nothing_shares_what_sequences_hold() -> None:
    node = Node(num_pages=16, is_cache=False)
    first, second = node.link("w-1#1"), node.link("w-2#1")
    tokens, blocks = named(node, first, 5, 6)
    assert find(node, second, blocks) == [False, False]
    assert share(node, second, 6, blocks) == 2
    free(node, first, 5)
    check(node, second, 6, tokens, step=1)
    free(node, second, 6)
    assert share(node, first, 7, blocks) == 0
    assert node.pool.book.allocator.num_free == 16


def test_names_wait_for_the_appends_that_they_rely_on() -> None:
    node = Node(num_pages=16)
    weight = node.link()
    tokens = Tokens.random(GEOMETRY, 8, torch.Generator().manual_seed(1))
    send = weight.append(tokens.rows(0, 8), [(5, 8, 0)], notice_later=True)
    weight.publish(5, blocks_of("5", 8))
    node.turn()
    assert not weight.poll()
    send()
    node.turn()
    appended, published = weight.poll()
    assert isinstance(appended, wire.Appended)
    assert published == wire.Published(5, 2, 14)
    assert find(node, weight, blocks_of("5", 8)) == [True, True]


def test_what_one_weight_node_named_another_finds_that_asks_in_the_same_turn() -> None:
    node = Node(num_pages=16)
    first, second = node.link(), node.link("v#1")
    blocks = blocks_of("5", 8)
    tokens = Tokens.random(GEOMETRY, 8, torch.Generator().manual_seed(1))
    first.append(tokens.rows(0, 8), [(5, 8, 0)])
    first.publish(5, blocks)
    second.find([key for key, _, _ in blocks], number=1)
    answer = answer_of(node, second)
    assert isinstance(answer, wire.Found)
    assert answer.is_here.tolist() == [True, True]
    assert [type(each) for each in first.poll()] == [wire.Appended, wire.Published]


def test_a_question_does_not_wait_for_names_whose_appends_are_not_there() -> None:
    node = Node(num_pages=16)
    first, second = node.link(), node.link("v#1")
    first.publish(5, blocks_of("5", 8), appends=7)
    assert find(node, second, blocks_of("5", 8)) == [False, False]


def test_a_sequence_that_ends_is_named_first_as_far_as_it_is_there() -> None:
    node = Node(num_pages=16)
    weight = node.link()
    store(node, weight, 5, 4)
    weight.publish(5, blocks_of("5", 8), appends=7)
    weight.free(5)
    node.turn()
    assert weight.poll() == [wire.Published(5, 2, 15), wire.Freed(16)]
    assert find(node, weight, blocks_of("5", 8)) == [True, False]


def test_the_page_that_was_named_first_keeps_the_name() -> None:
    node = Node(num_pages=16)
    weight = node.link()
    _, blocks = named(node, weight, 5, 4)
    page = node.pool.blocks.find(blocks[0][0])
    store(node, weight, 6, 4)
    publish(node, weight, 6, blocks)
    assert node.pool.blocks.find(blocks[0][0]) == page
    free(node, weight, 6)
    assert node.pool.book.allocator.num_free == 15


@pytest.mark.parametrize(
    "blocks",
    [
        [(b"a", 0, 4), (b"b", 4, 3)],  # the last page holds 2 tokens
        [(b"a", 0, 4), (b"b", 4, 1)],
        [(b"a", 0, 4), (b"b", 8, 2)],
    ],
)
def test_a_block_that_the_sequence_does_not_hold_stays_unnamed(blocks: Blocks) -> None:
    node = Node(num_pages=16)
    weight = node.link()
    store(node, weight, 5, 6)
    publish(node, weight, 5, blocks)
    publish(node, weight, 99, blocks)
    padded = [(key.ljust(KEY_BYTES, b"\0"), start, count) for key, start, count in blocks]
    assert find(node, weight, padded) == [True, False]


def test_ranges_apart_are_named_and_shared_each_for_itself() -> None:
    node = Node(num_pages=16)
    weight = node.link()
    tokens = Tokens.random(GEOMETRY, 10, torch.Generator().manual_seed(1))
    weight.append(tokens.rows(0, 10), [(5, 4, 0), (5, 6, 16)])
    node.turn()
    weight.poll()
    blocks = [(b"a" * KEY_BYTES, 0, 4), (b"b" * KEY_BYTES, 16, 4), (b"c" * KEY_BYTES, 20, 2)]
    publish(node, weight, 5, blocks)
    assert share(node, weight, 6, blocks) == 3
    check(node, weight, 6, tokens, step=1)
    held = node.exchange._links["w#1"].sequences[6].held.ranges
    assert [(part.start, part.end) for part in held] == [(0, 4), (16, 22)]


def share_of(*blocks: tuple[bytes, int, int]) -> bytes:
    return wire.Share(5, np.array(list(blocks), wire.BLOCK_DTYPE)).encode()


def bad_notices() -> dict[str, bytes]:
    many = np.zeros(wire.MAX_BLOCKS + 1, wire.BLOCK_DTYPE)
    return {
        "a block of too many tokens": share_of((b"x", 0, PAGE_TOKENS + 1)),
        "a block of no tokens": share_of((b"x", 0, 0)),
        "a block between two pages": share_of((b"x", 2, 2)),
        "blocks that go back": share_of((b"x", 8, 4), (b"y", 4, 4)),
        "a block behind one that is not full": share_of((b"x", 0, 2), (b"y", 4, 4)),
        "a block before those held": share_of((b"x", 0, 4)),
        "too many keys": wire.Find(1, many["key"]).encode(),
        "too many blocks": wire.Share(5, many).encode(),
        "too many names": wire.Publish(5, 0, many).encode(),
        "a name between two pages": wire.Publish(5, 0, np.array([(b"x", 1, 4)], wire.BLOCK_DTYPE)).encode(),
        "fewer keys than counted": wire.Find(1, many["key"][:4]).encode()[:-1],
    }


@pytest.mark.parametrize("name", bad_notices())
def test_a_notice_about_blocks_that_breaks_the_protocol_ends_that_link_alone(name: str) -> None:
    node = Node(num_pages=16)
    first, second = node.link("w-1#1"), node.link("w-2#1")
    store(node, first, 5, 4)
    tokens = store(node, second, 5, 4)
    first.transport.notify("a#1", bad_notices()[name])
    node.turn()
    assert node.exchange.links == ("w-2#1",)
    assert node.pool.num_free_pages == 15
    check(node, second, 5, tokens, step=1)


def test_names_that_wait_are_bounded() -> None:
    node = Node(num_pages=16)
    weight = node.link()
    for _ in range(4096):
        weight.publish(5, [], appends=9)
    node.turn()
    assert node.exchange.links == ("w#1",)
    weight.publish(5, [], appends=9)
    node.turn()
    assert not node.exchange.links


def test_hits_are_counted_in_tokens() -> None:
    node = Node(num_pages=16)
    weight = node.link()
    _, blocks = named(node, weight, 5, 10)
    find(node, weight, blocks)
    share(node, weight, 6, blocks[:2])
    assert (node.exchange._blocks.tokens_found, node.exchange._blocks.tokens_shared) == (10, 8)
