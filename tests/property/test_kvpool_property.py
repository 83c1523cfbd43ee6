"""Over any series of appends, names, shares, ends and exhaustion the pool does what a simple model does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.page_model import ModelSequence, PageModel

from kernelflume.anode.block_index import Block, BlockIndex
from kernelflume.anode.host_pages import HostPages
from kernelflume.anode.kvpool import HeldSequence, KvPool
from kernelflume.anode.pages import PageAllocator
from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.errors import KvPoolExhaustedError, LifecycleError
from kernelflume.core.geometry import KvGeometry
from kernelflume.core.retention import AS_IT_IS, PIN_S, Pinning, Retention
from kernelflume.runtime.clock import ManualClock

GEOMETRY = KvGeometry(
    model_id="m", model_revision="1", num_layers=2, num_query_heads=2, num_kv_heads=2, head_dim=2,
    dtype="float32", kv_dtype="float32",
)  # fmt: skip
NUM_PAGES, PAGE_TOKENS = 12, 3
IDS = st.integers(0, 3)
KEYS = [bytes([number]) * KEY_BYTES for number in range(16)]
FIRST_KEYS = st.integers(0, len(KEYS) - 1)
GONE = b"-" * KEY_BYTES
PINNINGS = st.one_of(
    st.just(AS_IT_IS),
    st.builds(
        Pinning,
        st.sampled_from([Retention.DAY, Retention.DAY, Retention.IN_MEMORY]),
        st.integers(0, NUM_PAGES * PAGE_TOKENS),
    ),
)
TURNS = st.tuples(IDS, st.integers(1, 4), st.integers(0, 2), FIRST_KEYS, PINNINGS)


class PoolMachine(RuleBasedStateMachine):
    """Tokens carry distinct numbers, so that any mix-up shows; names are drawn at random, so they clash."""

    @initialize(
        is_cache=st.sampled_from([True, True, True, False]),
        ttl_s=st.sampled_from([0.0, 5.0]),
        pinned_share=st.sampled_from([0.0, 0.25, 0.25, 0.5, 1.0]),
        turns=st.lists(TURNS, min_size=3, max_size=6),
    )
    def begin(
        self,
        is_cache: bool,
        ttl_s: float,
        pinned_share: float,
        turns: list[tuple[int, int, int, int, Pinning]],
    ) -> None:
        self.clock = ManualClock()
        self.pool = KvPool(
            GEOMETRY,
            page_tokens=PAGE_TOKENS,
            num_bytes=NUM_PAGES * PAGE_TOKENS * GEOMETRY.token_bytes,
            blocks=BlockIndex(self.clock, is_cache=is_cache, ttl_s=ttl_s, pinned_share=pinned_share),
        )
        assert isinstance(self.pool.storage, HostPages)
        self.pages = self.pool.storage
        self.sequences: dict[int, HeldSequence] = {}
        max_pinned = int(NUM_PAGES * pinned_share) if is_cache else 0
        self.model = PageModel(NUM_PAGES, PAGE_TOKENS, is_cache, ttl_s, max_pinned)
        self.last_number = 0
        for turn in turns:
            self.turn(turn)

    def pair(self, sequence_id: int) -> tuple[HeldSequence, ModelSequence]:
        return (
            self.sequences.setdefault(sequence_id, HeldSequence()),
            self.model.sequences.setdefault(sequence_id, ModelSequence()),
        )

    def known(self, index: int) -> int:
        """Return the id of a sequence that holds something, if there is one."""
        known = [key for key, item in sorted(self.model.sequences.items()) if item.numbers]
        return known[index % len(known)] if known else index

    @rule(turn=TURNS)
    def turn(self, turn: tuple[int, int, int, int, Pinning]) -> None:
        """What a request does: it grows, and names what it holds."""
        sequence_id, num_pages, num_more, first_key, pinning = turn
        sequence, model = self.pair(sequence_id)
        padding = -len(model.numbers) % PAGE_TOKENS
        self.append(sequence_id, padding + num_pages * PAGE_TOKENS + num_more, 0, one_by_one=False)
        self.publish_of(sequence, model, first_key, pinning)

    @rule(
        sequence_id=IDS,
        num_tokens=st.integers(1, 10),
        gap=st.sampled_from([0, 0, 0, 1, PAGE_TOKENS]),
        one_by_one=st.booleans(),
    )
    def append(self, sequence_id: int, num_tokens: int, gap: int, one_by_one: bool) -> None:
        sequence, model = self.pair(sequence_id)
        before = (list(sequence.pages), list(sequence.extents), self.pool.blocks.idle_pages)
        pinned = {page.block for page in self.model.pinned}
        num_pinned_idle = sum(page.is_pinned for page, _ in self.model.idle)
        num_unpinned = self.model.num_free - num_pinned_idle
        start = model.end + gap
        num_tokens = 1 if one_by_one else num_tokens
        try:
            if one_by_one:
                slots = np.array([self.pool.append_one(sequence, start)])
            else:
                slots = self.pool.append(sequence, start, num_tokens)
        except KvPoolExhaustedError:
            assert self.model.num_needed(model, num_tokens) > self.model.num_free
            assert before == (list(sequence.pages), sequence.extents, self.pool.blocks.idle_pages)
            return
        if self.model.num_needed(model, num_tokens) <= num_unpinned:
            # There was other room: no pin, and no pinned block, went for it.
            assert pinned == {self.pool.blocks.block_of(page) for page in self.pool.blocks.pinned_pages}
        numbers = list(range(self.last_number + 1, self.last_number + 1 + num_tokens))
        self.last_number += num_tokens
        rows = np.zeros((2, num_tokens, 2, 2, 2), np.float32)
        rows[:] = np.array(numbers)[None, :, None, None, None]
        self.pool.store(slots, torch.from_numpy(rows))
        self.model.append(model, start, numbers)

    @rule(index=IDS, num_tokens=st.integers(1, 3))
    def retract(self, index: int, num_tokens: int) -> None:
        sequence, model = self.pair(self.known(index))
        for _ in range(min(num_tokens, len(model.numbers))):
            self.pool.retract(sequence)
            self.model.retract(model)

    @rule(index=IDS)
    def release(self, index: int) -> None:
        sequence_id = self.known(index)
        self.pair(sequence_id)
        self.pool.release(self.sequences.pop(sequence_id))
        self.model.release(sequence_id)

    @rule(index=IDS, first_key=FIRST_KEYS, pinning=PINNINGS)
    def publish(self, index: int, first_key: int, pinning: Pinning) -> None:
        self.publish_of(*self.pair(self.known(index)), first_key, pinning)

    def publish_of(
        self, sequence: HeldSequence, model: ModelSequence, first_key: int, pinning: Pinning
    ) -> None:
        blocks = self.model.blocks_of(model, KEYS[first_key:] + KEYS[:first_key])
        self.pool.publish(sequence, blocks, pinning)
        self.model.publish(model, blocks, pinning)

    @rule(
        index=IDS,
        key=st.sampled_from(KEYS),
        block=st.integers(0, NUM_PAGES),
        count=st.integers(1, PAGE_TOKENS),
    )
    def publish_what_is_no_block_of_it(self, index: int, key: bytes, block: int, count: int) -> None:
        sequence, model = self.pair(self.known(index))
        start = block * PAGE_TOKENS
        if Block(key, start, count) not in self.model.blocks_of(model, [key] * len(model.pages)):
            self.pool.publish(sequence, [Block(key, start, count)])

    @rule(data=st.data(), sequence_id=IDS, pinning=PINNINGS)
    def share(self, data: st.DataObject, sequence_id: int, pinning: Pinning) -> None:
        """Share what follows, up to a name that nothing has."""
        sequence, model = self.pair(sequence_id)
        blocks: list[Block] = []
        options = sorted(page.block for page in self.model.names.values() if page.block is not None)
        for _ in range(data.draw(st.integers(1, 4))):
            fit = [block for block in options if self.model.can_share(model, [*blocks, block])]
            gone = Block(GONE, blocks[-1].start + PAGE_TOKENS if blocks else model.end, PAGE_TOKENS)
            fit += [gone] if self.model.can_share(model, [*blocks, gone]) else []
            blocks += [data.draw(st.sampled_from(fit))] if fit else []
        num_shared = self.model.share(model, blocks, pinning)
        assert self.pool.share(sequence, blocks, pinning) == num_shared

    @rule(data=st.data(), sequence_id=IDS)
    def share_what_may_not_follow(self, data: st.DataObject, sequence_id: int) -> None:
        sequence, model = self.pair(sequence_id)
        named = sorted(page.block for page in self.model.names.values() if page.block is not None)
        blocks = data.draw(st.lists(st.sampled_from(named), max_size=3)) if named else []
        if not self.model.can_share(model, blocks):
            with pytest.raises(LifecycleError):
                self.pool.share(sequence, blocks)

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        names = self.model.names
        keys = data.draw(st.lists(st.sampled_from(sorted(names)), unique=True)) if names else []
        found = [self.pool.blocks.find(key) for key in keys]
        self.pool.blocks.touch([page for page in found if page is not None])
        self.model.touch([names[key] for key in keys])

    @rule(seconds=st.sampled_from([0, 1, 2, 3, 4, PIN_S / 2, PIN_S]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds
        self.pool.book.expire()
        self.model.expire()

    @invariant()
    def every_page_is_free_idle_or_held_as_often_as_counted(self) -> None:
        held = [page for sequence in self.sequences.values() for page in sequence.pages]
        assert all(0 <= page < NUM_PAGES for page in held)
        assert [self.pool.book.num_holders(page) for page in range(NUM_PAGES)] == [
            held.count(page) for page in range(NUM_PAGES)
        ]
        assert not set(held) & set(self.pool.blocks.idle_pages)
        assert self.pool.num_free_pages == NUM_PAGES - len(set(held)) == self.model.num_free
        assert self.pool.book.allocator.num_free == self.pool.num_free_pages - len(self.model.idle)
        for sequence in self.sequences.values():
            assert len(sequence.pages) == -(-sequence.num_tokens // PAGE_TOKENS)

    @invariant()
    def names_and_their_order_of_use_are_those_of_the_model(self) -> None:
        names = self.model.names
        named = [page for page in range(NUM_PAGES) if self.pool.blocks.is_named(page)]
        assert named == sorted(page for key in names if (page := self.pool.blocks.find(key)) is not None)
        assert len(named) == len(names)
        assert self.pool.blocks.num_idle_tokens == sum(len(page.numbers) for page, _ in self.model.idle)
        assert [self.pool.blocks.block_of(page) for page in self.pool.blocks.idle_pages] == [
            page.block for page in self.model.dropping_order
        ]
        for key, model_page in names.items():
            page = self.pool.blocks.find(key)
            assert page is not None
            assert self.pool.blocks.block_of(page) == model_page.block
            assert model_page.block is not None
            # What a name stands for is there, whatever became of the sequence that wrote it.
            first = page * PAGE_TOKENS
            found = self.pages.bits[0, 0, 0, first : first + model_page.block.num_tokens, 0]
            assert found.view(np.float32).tolist() == model_page.numbers[: model_page.block.num_tokens]

    @invariant()
    def pins_are_those_of_the_model_and_never_more_than_the_share(self) -> None:
        blocks = self.pool.blocks
        assert blocks.num_pinned == len(blocks.pinned_pages) <= blocks.max_pinned == self.model.max_pinned
        assert {blocks.block_of(page) for page in blocks.pinned_pages} == {
            page.block for page in self.model.pinned
        }
        kept = {*blocks.idle_pages, *(page for item in self.sequences.values() for page in item.pages)}
        assert kept.issuperset(blocks.pinned_pages)

    @invariant()
    def the_count_of_tokens_is_exact(self) -> None:
        assert self.pool.num_tokens == sum(len(page.numbers) for page in self.model.held)
        for sequence_id, model in self.model.sequences.items():
            assert self.sequences[sequence_id].num_tokens == len(model.numbers)

    @invariant()
    def every_token_is_where_its_sequence_looks(self) -> None:
        for sequence_id, model in self.model.sequences.items():
            views = [self.pages.view(extent) for extent in self.sequences[sequence_id].extents]
            for layer_and_kind in range(4 if model.numbers else 0):
                found = torch.cat([view[layer_and_kind] for view in views], dim=2)
                expected = torch.tensor(model.numbers, dtype=torch.float32)[None, None, :, None]
                assert found.eq(expected).all()
            positions = [
                position
                for part in self.sequences[sequence_id].held.ranges
                for position in range(part.start, part.end)
            ]
            assert positions == model.positions


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.data())
def test_freeing_everything_leaves_one_gap(data: st.DataObject) -> None:
    allocator = PageAllocator(20)
    owned: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 15))):
        wanted = data.draw(st.integers(1, 6))
        if wanted <= allocator.num_free:
            owned.append(allocator.allocate(wanted))
    for pages in data.draw(st.permutations(owned)):
        allocator.free(pages)
    assert allocator.num_free == 20
    assert allocator.allocate(20) == list(range(20))
