"""What a weight node promises of a node's pages is enough for whatever the node takes, copies too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.anode import GEOMETRY
from tests.wnode_fakes import FakeLink, make_ledger, make_sequence

from kernelflume.anode.block_index import Block
from kernelflume.anode.kvpool import HeldSequence, KvPool
from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.ranges import SequenceRoute

if TYPE_CHECKING:
    from kernelflume.wnode.sequence import Sequence

PAGE_TOKENS, NUM_PAGES = 4, 8
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=4)),
        st.tuples(st.just("share"), st.tuples(st.integers(0, 5), st.integers(0, 5))),
        st.tuples(st.just("end"), st.tuples(st.integers(0, 5), st.just(0))),
    ),
    max_size=25,
)


class Course:
    """Sequences as both kinds of node know them; nothing is under way between two steps."""

    def __init__(self) -> None:
        num_bytes = NUM_PAGES * PAGE_TOKENS * GEOMETRY.token_bytes
        self.pool = KvPool(GEOMETRY, page_tokens=PAGE_TOKENS, num_bytes=num_bytes)
        self.link = FakeLink("a", num_pages=NUM_PAGES)
        self.ledger = make_ledger(self.link)
        self.pairs = [self.new(number) for number in range(6)]
        self.num_names = 0

    def new(self, number: int) -> tuple[Sequence, HeldSequence]:
        sequence = make_sequence(1000, request_id=str(number))
        sequence.sequence_id = number + 1
        return sequence, HeldSequence()

    def step(self, rows: list[tuple[int, int]]) -> None:
        self.link.num_usable_pages = self.pool.num_free_pages
        self.ledger.begin_step([sequence for sequence, _ in self.pairs])
        placed = {}
        for number, num_rows in rows:
            if number not in placed:
                placed[number] = self.ledger.place(self.pairs[number][0], num_rows)
        for number, writes in placed.items():
            sequence, held = self.pairs[number]
            if writes is None:
                continue
            for write in writes:
                self.pool.append(held, sequence.num_computed, write.num_rows)  # raises where the pool is full
                self.ledger.commit(sequence, [write])
                sequence.num_computed += write.num_rows

    def share(self, source: int, target: int) -> None:
        """Let a sequence without anything go on from where another stands."""
        sequence, held = self.pairs[source]
        other, other_held = self.pairs[target]
        if source == target or other.num_computed or not sequence.num_computed:
            return
        num_tokens, blocks = sequence.num_computed, []
        for start in range(0, num_tokens, PAGE_TOKENS):
            self.num_names += 1
            key = f"{self.num_names}".encode().ljust(KEY_BYTES)
            blocks.append(Block(key, start, min(PAGE_TOKENS, num_tokens - start)))
        self.pool.publish(held, blocks)
        named = [self.pool.blocks.block_of(page) for page in held.pages]
        assert self.pool.share(other_held, [block for block in named if block is not None]) == len(blocks)
        sequence.copies_last = bool(num_tokens % PAGE_TOKENS)
        other.share(other.sequence_id, SequenceRoute().with_tail("a").extended(num_tokens), PAGE_TOKENS)

    def end(self, number: int, _: int) -> None:
        self.pool.release(self.pairs[number][1])
        self.ledger.forget(number + 1)
        self.pairs[number] = self.new(number)


@settings(max_examples=150)
@given(MOVES)
def test_no_append_finds_the_pool_full(
    moves: list[tuple[str, list[tuple[int, int]] | tuple[int, int]]],
) -> None:
    course = Course()
    for move, arguments in moves:
        if move == "step":
            course.step(arguments)  # type: ignore[arg-type]
        else:
            getattr(course, move)(*arguments)
