"""Over any series of appends, frees and exhaustion no page is lost or owned twice, and every token stays."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kernelflume.anode.host_pages import HostPages
from kernelflume.anode.kvpool import HeldSequence, KvPool
from kernelflume.anode.pages import PageAllocator
from kernelflume.core.errors import KvPoolExhaustedError
from kernelflume.core.geometry import KvGeometry

GEOMETRY = KvGeometry(
    model_id="m", model_revision="1", num_layers=2, num_query_heads=2, num_kv_heads=2, head_dim=2,
    dtype="float32", kv_dtype="float32",
)  # fmt: skip
NUM_PAGES, PAGE_TOKENS = 12, 3


class PoolMachine(RuleBasedStateMachine):
    """Tokens carry distinct numbers, so that any mix-up shows."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = KvPool(
            GEOMETRY, page_tokens=PAGE_TOKENS, num_bytes=NUM_PAGES * PAGE_TOKENS * GEOMETRY.token_bytes
        )
        assert isinstance(self.pool.storage, HostPages)
        self.pages = self.pool.storage
        self.sequences: dict[int, HeldSequence] = {}
        self.numbers: dict[int, list[int]] = {}
        self.last_number = 0

    @rule(
        sequence_id=st.integers(0, 4),
        num_tokens=st.integers(1, 10),
        gap=st.integers(0, 2),
        one_by_one=st.booleans(),
    )
    def append(self, sequence_id: int, num_tokens: int, gap: int, one_by_one: bool) -> None:
        sequence = self.sequences.setdefault(sequence_id, HeldSequence())
        before = (list(sequence.pages), list(sequence.extents), self.pool.num_free_pages)
        missing = -(-(sequence.num_tokens + num_tokens) // PAGE_TOKENS) - len(sequence.pages)
        try:
            start = sequence.held.end + gap
            if one_by_one and num_tokens == 1:
                slots = np.array([self.pool.append_one(sequence, start)])
            else:
                slots = self.pool.append(sequence, start, num_tokens)
        except KvPoolExhaustedError:
            assert missing > self.pool.num_free_pages
            assert before == (list(sequence.pages), sequence.extents, self.pool.num_free_pages)
            return
        numbers = list(range(self.last_number + 1, self.last_number + 1 + num_tokens))
        self.last_number += num_tokens
        rows = np.zeros((2, num_tokens, 2, 2, 2), np.float32)
        rows[:] = np.array(numbers)[None, :, None, None, None]
        self.pool.store(slots, torch.from_numpy(rows))
        self.numbers.setdefault(sequence_id, []).extend(numbers)

    @precondition(lambda self: any(self.numbers.values()))
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(key for key, held in self.numbers.items() if held)))
        self.pool.retract(self.sequences[sequence_id])
        self.numbers[sequence_id].pop()

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.sequences)))
        self.pool.release(self.sequences.pop(sequence_id))
        self.numbers.pop(sequence_id, None)

    @invariant()
    def every_page_has_one_owner(self) -> None:
        owned = [page for sequence in self.sequences.values() for page in sequence.pages]
        assert len(owned) == len(set(owned))
        assert all(0 <= page < NUM_PAGES for page in owned)
        assert len(owned) + self.pool.num_free_pages == NUM_PAGES
        for sequence in self.sequences.values():
            assert len(sequence.pages) == -(-sequence.num_tokens // PAGE_TOKENS)

    @invariant()
    def the_count_of_tokens_is_exact(self) -> None:
        held = {sequence_id: sequence.num_tokens for sequence_id, sequence in self.sequences.items()}
        assert self.pool.num_tokens == sum(held.values())
        assert {sequence_id: len(numbers) for sequence_id, numbers in self.numbers.items() if numbers} == {
            sequence_id: count for sequence_id, count in held.items() if count
        }

    @invariant()
    def every_token_is_where_its_sequence_looks(self) -> None:
        for sequence_id, numbers in self.numbers.items():
            views = [self.pages.view(extent) for extent in self.sequences[sequence_id].extents]
            for layer_and_kind in range(4 if numbers else 0):
                found = torch.cat([view[layer_and_kind] for view in views], dim=2)
                expected = torch.tensor(numbers, dtype=torch.float32)[None, None, :, None]
                assert found.eq(expected).all()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30)


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
