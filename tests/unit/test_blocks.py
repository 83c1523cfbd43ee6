"""Keys of blocks: equal contexts have equal keys, however they grew, and no others do."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.blocks import KEY_BYTES, BlockKeys, block_keys

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=60)


@given(tokens=TOKENS, cuts=st.lists(st.integers(0, 60), max_size=5), block_tokens=st.integers(1, 9))
def test_keys_do_not_depend_on_how_the_context_grew(
    tokens: list[int], cuts: list[int], block_tokens: int
) -> None:
    grown = BlockKeys(block_tokens)
    bounds = sorted({0, len(tokens), *(min(cut, len(tokens)) for cut in cuts)})
    for start, end in itertools.pairwise(bounds):
        grown.extend(tokens[start:end])
    assert grown.keys == block_keys(tokens, block_tokens)
    assert grown.num_tokens == len(tokens)
    assert len(grown.keys) == len(tokens) // block_tokens
    assert all(len(key) == KEY_BYTES for key in grown.keys)


@given(tokens=st.lists(st.integers(0, 100), min_size=12, max_size=30), index=st.integers(0, 11))
def test_another_token_changes_the_keys_from_its_block_on(tokens: list[int], index: int) -> None:
    other = list(tokens)
    other[index] += 1
    before, after = block_keys(tokens, 4), block_keys(other, 4)
    same = index // 4
    assert before[:same] == after[:same]
    assert not set(before[same:]) & set(after)


def test_the_last_key_of_full_blocks_is_the_key_of_the_context() -> None:
    keys = BlockKeys(2)
    keys.extend([1, 2, 3, 4])
    assert keys.key() == keys.keys[-1]
    keys.extend([5])
    assert keys.key() not in keys.keys


@pytest.mark.parametrize("salt", ["a", "b" * 64, "c" * 65, "ü" * 40])
def test_a_salt_parts_equal_contexts(salt: str) -> None:
    assert not set(block_keys([1, 2, 3, 4], 2)) & set(block_keys([1, 2, 3, 4], 2, salt=salt))


def test_long_salts_are_not_cut() -> None:
    assert block_keys([1], 1, salt="s" * 65) != block_keys([1], 1, salt="s" * 66)
