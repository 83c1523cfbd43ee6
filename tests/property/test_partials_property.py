"""Merging partials is exact whatever the split and the order, against dense attention in float64."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelflume.tensor.partials import Partial, merge, merge_into
from kernelflume.tensor.reference import dense_attention

NUM_ROWS, NUM_QUERY_HEADS, NUM_KV_HEADS, HEAD_DIM = 3, 4, 2, 8


@st.composite
def splits(draw: st.DrawFn) -> list[int]:
    """Lengths of consecutive token ranges, empty ones included, at least one token in all."""
    lengths = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))
    return lengths if sum(lengths) else [*lengths, 1]


def attention_parts(lengths: list[int], seed: int, spread: float) -> tuple[Partial, list[Partial]]:
    """Return attention over all tokens, and over each range; ``spread`` drives the ranges' lse apart."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(lengths)
    query = torch.randn(NUM_ROWS, NUM_QUERY_HEADS, HEAD_DIM, generator=generator)
    value = torch.randn(num_tokens, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    key = torch.randn(num_tokens, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    key *= torch.linspace(0.1, spread, num_tokens)[:, None, None]
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    parts = [dense_attention(query, key[start:end], value[start:end]) for start, end in pairwise(bounds)]
    return dense_attention(query, key, value), parts


def check(merged: Partial, whole: Partial) -> None:
    # A partial's lse is float32: rounding it by half an ulp changes its weight by as much, whoever merges.
    lse_rounding = float(whole.lse.abs().max()) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(
        merged.out.double(), whole.out, rtol=0, atol=1e-5 + lse_rounding * float(whole.out.abs().max())
    )
    torch.testing.assert_close(merged.lse.double(), whole.lse, rtol=1e-6, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    lengths=splits(),
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.1, 1.0, 50.0, 1000.0]),
    data=st.data(),
)
def test_any_split_in_any_order_merges_to_the_whole(
    lengths: list[int], seed: int, spread: float, data: st.DataObject
) -> None:
    whole, parts = attention_parts(lengths, seed, spread)
    order = data.draw(st.permutations(range(len(parts))))
    outs = torch.stack([parts[index].out.float() for index in order])
    lses = torch.stack([parts[index].lse.float() for index in order])
    check(merge(outs, lses), whole)


@settings(deadline=None, max_examples=60)
@given(lengths=splits(), seed=st.integers(0, 2**31), spread=st.sampled_from([0.1, 1.0, 50.0, 1000.0]))
def test_merging_in_steps_equals_merging_at_once(lengths: list[int], seed: int, spread: float) -> None:
    whole, parts = attention_parts([length for length in lengths if length], seed, spread)
    out, lse = parts[0].out.float(), parts[0].lse.float()
    for part in parts[1:]:
        merge_into(out, lse, part.out.float(), part.lse.float())
    check(Partial(out, lse), whole)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.just(float("-inf")), st.floats(-1e4, 1e4, width=32)), min_size=1, max_size=5))
def test_the_result_is_finite_and_inside_the_hull_at_any_distance(distances: list[float]) -> None:
    lses = torch.tensor(distances).view(-1, 1, 1)
    outs = torch.arange(len(distances), dtype=torch.float32).view(-1, 1, 1, 1)
    merged = merge(outs, lses)
    assert merged.out.isfinite().all()
    assert 0 <= merged.out.item() <= len(distances) - 1 + 1e-5
    torch.testing.assert_close(merged.lse, lses.double().logsumexp(0).float())


def test_far_larger_lse_than_float32_resolves_is_merged_within_its_rounding() -> None:
    whole, parts = attention_parts([4, 4], 4, 1000.0)
    check(
        merge(torch.stack([p.out.float() for p in parts]), torch.stack([p.lse.float() for p in parts])), whole
    )
