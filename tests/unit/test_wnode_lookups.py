"""Lookups and names against nodes that answer late, with less, or not at all: nothing stays shared."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.wnode_fakes import make_sequence

from kernelflume.core.blocks import block_keys
from kernelflume.core.errors import PeerLostError
from kernelflume.core.ranges import SequenceRoute
from kernelflume.runtime.clock import ManualClock
from kernelflume.transport.wire import BLOCK_DTYPE, MAX_BLOCKS, Found, Published, Shared
from kernelflume.wnode.lookups import MAX_ATTEMPTS, Lookups
from kernelflume.wnode.publisher import MAX_OPEN, MAX_OPEN_MOVING, Publisher

if TYPE_CHECKING:
    from kernelflume.core.retention import Pinning
    from kernelflume.wnode.sequence import Sequence

PAGE_TOKENS = 4
TIMEOUT_S = 1.0


@dataclass
class FakeNode:
    """Holds blocks by number; what it was told is kept until the test lets it answer."""

    node_id: str
    blocks: set[int]
    is_gone: bool = False
    finds: list[tuple[int, np.ndarray]] = field(default_factory=list)
    shares: list[tuple[int, np.ndarray]] = field(default_factory=list)
    publishes: list[tuple[int, np.ndarray]] = field(default_factory=list)
    pinnings: list[Pinning] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    holds: dict[int, list[int]] = field(default_factory=dict)
    num_endings: int = 0

    @property
    def node_name(self) -> str:
        return f"{self.node_id}#1"

    def send_find(self, number: int, keys: np.ndarray) -> None:
        self._check()
        self.finds.append((number, keys))

    def send_share(self, sequence_id: int, blocks: np.ndarray, pinning: Pinning) -> None:
        self._check()
        self.shares.append((sequence_id, blocks))
        self.pinnings.append(pinning)

    def send_publish(self, sequence_id: int, blocks: np.ndarray, pinning: Pinning) -> None:
        self._check()
        self.publishes.append((sequence_id, blocks))
        self.pinnings.append(pinning)

    def send_free(self, sequence_ids: list[int]) -> None:
        self._check()
        self.freed += sequence_ids
        for sequence_id in sequence_ids:
            self.holds.pop(sequence_id, None)

    def _check(self) -> None:
        if self.is_gone:
            raise PeerLostError(self.node_name, "it is gone")


class World:
    """Lookups of one context of some blocks."""

    def __init__(self, num_blocks: int, **held: set[int]) -> None:
        self.clock = ManualClock()
        self.nodes = {node_id: FakeNode(node_id, blocks) for node_id, blocks in held.items()}
        self.ids = count(100)
        links: Any = self
        self.lookups = Lookups(links, self.clock, lambda: next(self.ids), timeout_s=TIMEOUT_S)
        self.sequence = make_sequence(num_blocks * PAGE_TOKENS + 1)
        keys = block_keys(self.sequence.prompt, PAGE_TOKENS)
        self.keys = list(keys)
        self.begin()

    def begin(self) -> None:
        packed = np.frombuffer(b"".join(self.keys), BLOCK_DTYPE["key"])
        self.lookups.begin(self.sequence, packed, list(self.nodes), PAGE_TOKENS)

    def of_node(self, node_id: str) -> FakeNode | None:
        return self.nodes.get(node_id)

    def answer(self, node_id: str, *, misses: int = 0) -> None:
        """Let a node answer all it was told; of each share's last blocks it turns out to miss some."""
        node: Any = self.nodes[node_id]
        for number, keys in node.finds:
            numbers = [self.keys.index(key) for key in keys.tolist()]
            self.lookups.take_found(node, Found(number, np.array([n in node.blocks for n in numbers])))
        node.finds.clear()
        shares, node.shares = node.shares, []
        for sequence_id, blocks in shares:
            numbers = (blocks["start"] // PAGE_TOKENS).tolist()
            assert [self.keys[number] for number in numbers] == blocks["key"].tolist()
            got = numbers[: len(numbers) - misses]
            if got and sequence_id not in node.freed:
                node.holds.setdefault(sequence_id, []).extend(got)
            self.lookups.take_shared(node, Shared(sequence_id, len(got), 0))

    def go_on(self) -> bool:
        """Let lookups go on; tell whether this one is through."""
        return self.lookups.advance() == [self.sequence]

    def check(self, num_blocks: int) -> None:
        """Check that the sequence shares so many blocks, that nodes hold just these, and nobody more."""
        assert len(self.lookups) == 0
        assert self.sequence.num_shared == self.sequence.num_computed == num_blocks * PAGE_TOKENS
        held: list[int] = []
        for node in self.nodes.values():
            assert set(node.holds) <= {self.sequence.sequence_id}
            numbers = node.holds.get(self.sequence.sequence_id, [])
            assert len(numbers) * PAGE_TOKENS == self.sequence.route.num_tokens_on(node.node_id)
            held += numbers
        assert sorted(held) == list(range(num_blocks))


def test_blocks_of_two_nodes_are_shared() -> None:
    world = World(4, a={0, 1}, b={2, 3})
    assert not world.go_on()
    world.answer("a")
    assert not world.go_on()  # the other may hold more
    world.answer("b")
    assert not world.go_on()
    world.answer("a")
    world.answer("b")
    assert world.go_on()
    world.check(4)


def test_nothing_found_is_through_at_once() -> None:
    world = World(2, a=set(), b={1})
    world.answer("a")
    world.answer("b")
    assert world.go_on()
    world.check(0)
    assert not world.nodes["b"].shares


def test_node_that_does_not_answer_is_done_without() -> None:
    world = World(4, a={0, 1}, b={0, 1, 2, 3})
    world.answer("a")
    world.clock.advance(TIMEOUT_S)
    assert not world.go_on()
    world.answer("a")
    assert world.go_on()
    world.check(2)
    world.answer("b")  # too late, and nothing comes of it
    world.check(2)


def test_silent_node_keeps_one_request_waiting_and_not_those_that_follow() -> None:
    world = World(4, a={0, 1}, b={0, 1, 2, 3})
    world.answer("a")
    world.clock.advance(TIMEOUT_S)
    world.lookups.advance()
    world.answer("a")
    assert world.go_on()
    asked = len(world.nodes["b"].finds)
    world.begin()
    world.answer("a")
    world.lookups.advance()
    assert world.nodes["a"].shares  # at once, without b
    assert len(world.nodes["b"].finds) == asked
    world.answer("b")  # it is back
    world.begin()
    assert world.nodes["b"].finds


def test_block_that_is_gone_cuts_what_the_last_node_shares() -> None:
    world = World(4, a={0, 1}, b={2, 3})
    for node_id in "ab":
        world.answer(node_id)
    world.go_on()
    world.answer("a")
    world.answer("b", misses=1)
    assert world.go_on()
    world.check(3)
    assert not any(node.freed for node in world.nodes.values())


def test_block_that_is_gone_before_others_frees_them_under_a_new_name() -> None:
    world = World(4, a={0, 1}, b={2, 3})
    for node_id in "ab":
        world.answer(node_id)
    world.go_on()
    world.answer("a", misses=1)
    world.answer("b")
    first = next(iter(world.nodes["b"].holds))
    assert not world.go_on()
    assert world.nodes["a"].freed == world.nodes["b"].freed == [first]
    world.answer("a")
    assert world.go_on()
    world.check(1)
    assert world.sequence.sequence_id != first


def test_node_that_is_silent_when_it_should_share_is_freed_when_it_answers() -> None:
    world = World(4, a={0, 1}, b={2, 3})
    for node_id in "ab":
        world.answer(node_id)
    world.go_on()
    world.answer("a")
    late = world.nodes["b"].shares[0][0]
    world.clock.advance(TIMEOUT_S)
    assert not world.go_on()
    world.answer("a")
    assert world.go_on()
    world.nodes["b"].freed.clear()  # as if the share overtook what frees it
    world.answer("b")
    assert world.nodes["b"].freed == [late]
    world.check(2)


def test_attempts_are_bounded() -> None:
    world = World(10, a={0, 2, 4, 6, 8}, b={1, 3, 5, 7, 9})
    for node_id in "ab":
        world.answer(node_id)
    world.go_on()
    for attempt in range(MAX_ATTEMPTS):
        world.answer("a", misses=1)
        world.answer("b")
        assert world.go_on() == (attempt == MAX_ATTEMPTS - 1)
    world.check(0)


def test_node_that_is_lost_meanwhile_is_done_without() -> None:
    for has_found in (False, True):
        world = World(4, a={0, 1}, b={2, 3})
        world.answer("a")
        if has_found:
            world.answer("b")
            world.go_on()
            world.answer("a")
        del world.nodes["b"]
        world.lookups.lose("b")
        is_through = world.go_on()  # at once where what is left is shared already
        world.answer("a")
        assert is_through == has_found
        assert is_through or world.go_on()
        world.check(2)


def test_node_that_cannot_be_reached_is_done_without() -> None:
    world = World(4, a={0, 1}, b={2, 3})
    for node_id in "ab":
        world.answer(node_id)
    world.nodes["b"].is_gone = True
    world.go_on()
    world.answer("a")
    world.go_on()
    world.answer("a")
    assert len(world.lookups) == 0 or world.go_on()
    world.check(2)


def test_cancelled_lookup_frees_what_it_asked_for() -> None:
    world = World(4, a={0, 1, 2, 3})
    world.lookups.cancel(world.sequence)
    world.answer("a")
    assert not world.lookups.advance()
    assert not world.nodes["a"].shares
    world = World(4, a={0, 1, 2, 3})
    world.answer("a")
    world.go_on()
    world.lookups.cancel(world.sequence)
    assert len(world.nodes["a"].freed) == 1
    world.answer("a")
    assert not world.nodes["a"].holds
    world.check(0)


def test_long_context_takes_several_notices() -> None:
    num_blocks = 2 * MAX_BLOCKS + 5
    world = World(num_blocks, a=set(range(num_blocks)))
    assert [len(keys) for _, keys in world.nodes["a"].finds] == [MAX_BLOCKS, MAX_BLOCKS, 5]
    world.answer("a")
    world.go_on()
    for size in (MAX_BLOCKS, MAX_BLOCKS, 5):  # one after the other, as a node answers
        assert [len(blocks) for _, blocks in world.nodes["a"].shares] == [size]
        assert not world.go_on()
        world.answer("a")
    assert world.go_on()
    world.check(num_blocks)


class Naming:
    """A sequence of some tokens on two nodes, eight tokens each but the last."""

    def __init__(self, num_computed: int) -> None:
        self.clock = ManualClock()
        self.nodes = {node_id: FakeNode(node_id, set()) for node_id in "ab"}
        links: Any = self
        self.publisher = Publisher(links, self.clock, timeout_s=TIMEOUT_S)
        self.sequence = make_sequence(100)
        self.sequence.sequence_id = 7
        self.compute(num_computed)

    def of_node(self, node_id: str) -> FakeNode | None:
        return self.nodes.get(node_id)

    def compute(self, num_tokens: int) -> None:
        route = SequenceRoute().with_tail("a").extended(min(8, num_tokens))
        self.sequence.route = route.with_tail("b").extended(num_tokens - 8) if num_tokens > 8 else route
        self.sequence.num_computed = num_tokens

    def publish(self) -> None:
        keys = self.sequence.block_keys(self.sequence.num_computed, PAGE_TOKENS).keys
        self.publisher.publish(self.sequence, keys, PAGE_TOKENS)

    def answer(self, node_id: str) -> None:
        node: Any = self.nodes[node_id]
        publishes, node.publishes = node.publishes, []
        for sequence_id, blocks in publishes:
            self.publisher.take_published(node, Published(sequence_id, len(blocks), 0))

    def named(self, node_id: str) -> list[int]:
        return [start for _, blocks in self.nodes[node_id].publishes for start in blocks["start"].tolist()]


def settled(naming: Naming, sequence: Sequence) -> bool:
    return naming.publisher.has_settled(sequence.lookup_after)


def test_full_blocks_are_named_once_where_they_lie() -> None:
    naming = Naming(15)
    naming.publish()
    assert (naming.named("a"), naming.named("b")) == ([0, 4], [8])
    for node_id in "ab":
        naming.answer(node_id)
    naming.compute(17)
    naming.publish()
    assert (naming.named("a"), naming.named("b")) == ([], [12])


def test_pages_are_freed_once_they_are_named() -> None:
    naming = Naming(15)
    naming.publish()
    naming.publisher.release(naming.sequence)
    a, b = naming.nodes.values()
    assert (a.freed, a.num_endings, b.num_endings) == ([], 1, 1)
    naming.answer("a")
    assert (a.freed, a.num_endings) == ([7], 0)
    assert b.freed == []
    naming.clock.advance(TIMEOUT_S)
    naming.publisher.advance()
    assert (b.freed, b.num_endings) == ([7], 0)
    naming.answer("b")
    assert b.freed == [7]


def test_pages_with_nothing_new_are_freed_at_once() -> None:
    naming = Naming(3)
    naming.publish()
    naming.publisher.release(naming.sequence)
    assert naming.nodes["a"].freed == [7]


def test_who_asks_waits_for_names_before_and_not_for_names_after() -> None:
    naming = Naming(8)
    naming.publish()
    before, naming.sequence.lookup_after = make_sequence(1), naming.publisher.last_number
    naming.compute(12)
    naming.publish()
    assert settled(naming, before)
    assert not settled(naming, naming.sequence)
    naming.answer("a")
    assert settled(naming, naming.sequence)
    assert naming.named("b") == [8]


def test_lost_and_overwhelmed_nodes_are_not_waited_for() -> None:
    naming = Naming(15)
    naming.nodes["a"].is_gone = True
    naming.publish()
    naming.publisher.forget("b#1")
    assert naming.publisher.has_settled(naming.publisher.last_number)
    busy = Naming(8)
    for sequence_id in range(MAX_OPEN + 3):
        busy.sequence = make_sequence(100, request_id=str(sequence_id))
        busy.sequence.sequence_id = sequence_id
        busy.compute(8)
        busy.publish()
        busy.publisher.release(busy.sequence)
    assert len(busy.nodes["a"].publishes) == MAX_OPEN
    assert busy.nodes["a"].freed == [MAX_OPEN, MAX_OPEN + 1, MAX_OPEN + 2]


def test_names_that_there_was_no_room_for_are_told_later_and_at_once_for_a_move() -> None:
    naming = Naming(8)
    for sequence_id in range(100, 100 + MAX_OPEN):
        naming.sequence.sequence_id, naming.sequence.num_named = sequence_id, 0
        naming.publish()
    naming.sequence.sequence_id, naming.sequence.num_named = 7, 0
    naming.publish()
    assert naming.sequence.num_named == 0
    keys = naming.sequence.block_keys(8, PAGE_TOKENS).keys
    naming.publisher.publish(naming.sequence, keys, PAGE_TOKENS, most=MAX_OPEN_MOVING)
    assert naming.sequence.num_named == 8
    assert naming.nodes["a"].publishes[-1][0] == 7
