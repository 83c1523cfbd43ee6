"""The vectorised sampler against the plain one, row by row, in batches of unlike requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests import sampling_reference as reference

from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.sampler import sample
from kernelflume.wnode.sampling import draw as draw_module
from kernelflume.wnode.sampling.draw import DrawTable, draw, draw_filtered
from kernelflume.wnode.sampling.randomness import uniform
from kernelflume.wnode.sequence import Sequence

VOCABULARY = 40
EOS = frozenset({2})
TOKENS = st.integers(0, VOCABULARY - 1)


def filters() -> dict[str, Any]:
    return {
        "temperature": st.sampled_from([0.0, 0.01, 0.7, 1.0, 2.5]),
        "top_k": st.sampled_from([0, -1, 1, 3, 10, 39, 40]),
        "top_p": st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
    }


PARAMETERS = st.builds(
    SamplingParameters,
    **filters(),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.5, 0.25, 100.0]), max_size=4).map(
        lambda biases: tuple(biases.items())
    ),
    allowed_token_ids=st.lists(TOKENS, max_size=6, unique=True).map(tuple),
    logprobs=st.sampled_from([None, None, 0, 3, 20]),
)


@st.composite
def sequences(draw_from: st.DrawFn) -> Sequence:
    sequence = Sequence(
        "r",
        draw_from(st.lists(TOKENS, min_size=1, max_size=8)),
        draw_from(PARAMETERS),
        random_key=draw_from(st.integers(-(2**63), 2**63 - 1)),
    )
    for token in draw_from(st.lists(TOKENS, max_size=8)):
        sequence.append(token)
    return sequence


def some_logits(num_rows: int, seed: int, *, coarse: bool) -> torch.Tensor:
    logits = np.random.default_rng(seed).normal(0, 3, (num_rows, VOCABULARY)).astype(np.float32)
    # As bfloat16 gives them: some tokens alike.
    return torch.from_numpy(np.round(logits) if coarse else logits)


@settings(max_examples=150, deadline=None)
@given(
    batch=st.lists(sequences(), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1), coarse=st.booleans()
)
def test_every_row_is_chosen_as_the_reference_does(batch: list[Sequence], seed: int, coarse: bool) -> None:
    logits = some_logits(len(batch), seed, coarse=coarse)
    sampled = sample(logits.clone(), batch, EOS)
    assert sampled.tokens == [
        reference.choose(row, sequence, EOS) for row, sequence in zip(logits.tolist(), batch, strict=True)
    ]
    assert set(sampled.logprobs) == {
        row for row, sequence in enumerate(batch) if sequence.sampling.logprobs is not None
    }
    for row, told in sampled.logprobs.items():
        raw = logits[row].double().log_softmax(-1)
        assert abs(told.logprob - float(raw[sampled.tokens[row]])) < 1e-4
        wanted = batch[row].sampling.logprobs
        assert len(told.top) == wanted
        best = raw.sort(descending=True).values[:wanted]
        assert np.allclose([value for _, value in told.top], best, atol=1e-4)
        assert all(abs(value - float(raw[token])) < 1e-4 for token, value in told.top)


@settings(max_examples=50, deadline=None)
@given(batch=st.lists(sequences(), min_size=2, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_a_row_is_chosen_alone_as_in_company(batch: list[Sequence], seed: int) -> None:
    logits = some_logits(len(batch), seed, coarse=False)
    together = sample(logits.clone(), batch, EOS).tokens
    alone = [sample(logits[row : row + 1].clone(), [each], EOS).tokens[0] for row, each in enumerate(batch)]
    assert together == alone


@settings(max_examples=100, deadline=None)
@given(
    filters_=st.fixed_dictionaries(filters()),
    seed=st.integers(0, 2**32 - 1),
    coarse=st.booleans(),
    head=st.integers(1, VOCABULARY),
)
def test_the_head_looked_at_first_changes_nothing_but_whether_it_suffices(
    filters_: dict[str, Any], seed: int, coarse: bool, head: int
) -> None:
    parameters = SamplingParameters(**{**filters_, "temperature": max(filters_["temperature"], 0.01)})
    rows = [Sequence("r", [1], parameters, random_key=key) for key in range(5)]
    logits = some_logits(5, seed, coarse=coarse)
    table = DrawTable.of(rows, logits.device)
    assume(bool(table.has_filters.all()))
    tokens, settled = draw_filtered(logits, table, head=head)
    exact, all_settled = draw_filtered(logits, table, head=VOCABULARY)
    assert all_settled.all()
    assert torch.equal(tokens[settled], exact[settled])


def test_rows_beyond_one_slice_and_beyond_the_head_are_drawn_all_the_same() -> None:
    vocab = 3 * draw_module._HEADS[-1]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(draw_module._SLICE_ELEMENTS // vocab + 3, vocab, generator=generator)
    parameters = SamplingParameters(top_p=0.99)  # nearly flat: far more than a head is kept
    rows = [Sequence("r", [1], parameters, random_key=key) for key in range(len(logits))]
    table = DrawTable.of(rows, logits.device)
    for head in draw_module._HEADS:
        assert not draw_filtered(logits[:4], table[torch.arange(4)], head=head)[1].any()
    tokens = draw(logits, table).tolist()
    for row in (0, 1, len(rows) - 1):
        assert tokens[row] == reference.choose(logits[row].tolist(), rows[row], EOS)


@given(key=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**40))
def test_the_random_number_is_that_of_splitmix(key: int, position: int) -> None:
    [number] = uniform(torch.tensor([key]), torch.tensor([position])).tolist()
    assert number == reference.uniform(key & reference.MASK, position)
    assert 0.0 <= number < 1.0


def test_random_numbers_are_even_over_positions_and_over_keys() -> None:
    many = torch.arange(1 << 16)
    one = torch.zeros_like(many)
    for numbers in (uniform(one, many), uniform(many, one + 7), uniform(many << 32, one)):
        counts = torch.histc(numbers, bins=64, min=0.0, max=1.0)
        expected = len(many) / 64
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert 25.0 < chi_square < 120.0  # 63 degrees of freedom
        assert abs(float(numbers.mean()) - 0.5) < 0.005
        pairs = torch.corrcoef(torch.stack((numbers[:-1], numbers[1:])))[0, 1]
        assert abs(float(pairs)) < 0.02
