from __future__ import annotations

import pytest
import torch

from kernelflume.tensor.partials import merge, merge_into
from kernelflume.tensor.reference import causal_mask, dense_attention


def test_an_absent_partial_counts_for_nothing_whatever_it_holds() -> None:
    out = torch.randn(2, 3, 4)
    lse = torch.randn(2, 3)
    outs = torch.stack([torch.full_like(out, torch.nan), out])
    lses = torch.stack([torch.full_like(lse, -torch.inf), lse])
    merged = merge(outs, lses)
    torch.testing.assert_close(merged.out, out)
    torch.testing.assert_close(merged.lse, lse)


def test_a_row_that_no_partial_covers_is_zero_and_absent() -> None:
    merged = merge(torch.full((2, 1, 1, 4), torch.nan), torch.full((2, 1, 1), -torch.inf))
    assert merged.out.eq(0).all()
    assert merged.lse.eq(-torch.inf).all()


@pytest.mark.parametrize("distance", [0.0, 1e-3, 30.0, 100.0, 1e4])
def test_merge_into_equals_merge_at_any_distance(distance: float) -> None:
    outs = torch.randn(2, 3, 2, 4)
    lses = torch.stack([torch.randn(3, 2), torch.randn(3, 2) + distance])
    expected = merge(outs, lses)
    for first, second in ((0, 1), (1, 0)):
        out, lse = outs[first].clone(), lses[first].clone()
        merge_into(out, lse, outs[second], lses[second])
        torch.testing.assert_close(out, expected.out)
        torch.testing.assert_close(lse, expected.lse)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_merging_keeps_a_narrow_output_format(dtype: torch.dtype) -> None:
    outs = torch.randn(2, 3, 2, 4).to(dtype)
    lses = torch.randn(2, 3, 2)
    merged = merge(outs, lses)
    assert merged.out.dtype is dtype
    assert merged.lse.dtype is torch.float32
    expected = merge(outs.double(), lses.double())
    torch.testing.assert_close(merged.out.double(), expected.out, rtol=0, atol=0.03)


def test_the_oracle_groups_heads_and_masks_the_future() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    partial = dense_attention(query, key, value, mask=causal_mask(3, 5))
    # Row 1 of 3 sees all but the last token; query head 3 uses KV head 1.
    scores = (key[:4, 1] @ query[1, 3]) * 8**-0.5
    torch.testing.assert_close(partial.lse[1, 3].float(), scores.logsumexp(0))
    torch.testing.assert_close(partial.out[1, 3].float(), scores.softmax(0) @ value[:4, 1])


def test_the_oracle_gives_an_absent_partial_for_a_row_without_tokens() -> None:
    partial = dense_attention(torch.randn(1, 2, 4), torch.randn(0, 1, 4), torch.randn(0, 1, 4))
    assert partial.lse.eq(-torch.inf).all()
    assert partial.out.eq(0).all()
