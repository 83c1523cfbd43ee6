"""Which sequence ahead is about to compute what another needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.wnode_fakes import make_sequence

from kernelflume.core.blocks import block_keys
from kernelflume.wnode.leads import Lead, find_lead, num_common

if TYPE_CHECKING:
    from kernelflume.wnode.sequence import Sequence

PAGE_TOKENS = 4


def keyed(tokens: list[int], *, salt: str = "") -> Sequence:
    """Make a waiting sequence whose blocks have their keys."""
    sequence = make_sequence(1)
    sequence.prompt, sequence.cache_salt = tokens, salt
    sequence.block_keys(len(tokens), PAGE_TOKENS)
    return sequence


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40))
def test_common_blocks_are_those_before_the_first_difference(one: list[int], other: list[int]) -> None:
    equal = [a == b for a, b in zip(one, other, strict=False)]
    num_equal = equal.index(False) if False in equal else len(equal)
    keys = [block_keys(tokens, PAGE_TOKENS) for tokens in (one, other)]
    assert num_common(*keys) == num_equal // PAGE_TOKENS


def test_the_one_with_most_in_common_leads_and_the_first_of_those() -> None:
    sequence = keyed(list(range(20)))
    others = [keyed([*range(length), *[99] * 20]) for length in (9, 17, 17, 5)]
    assert find_lead(sequence, others) == Lead(others[1], 16)
    assert find_lead(sequence, others[3:]) == Lead(others[3], 4)


def test_none_leads_that_has_nothing_in_common_other_blocks_another_salt_or_no_keys() -> None:
    sequence, coarse = keyed(list(range(20))), make_sequence(20)
    coarse.prompt = list(range(20))
    coarse.block_keys(20, 2 * PAGE_TOKENS)
    others = [keyed([7, *range(20)]), keyed(list(range(20)), salt="another"), coarse, make_sequence(20)]
    assert find_lead(sequence, others) is None
    assert find_lead(make_sequence(20), [sequence]) is None
