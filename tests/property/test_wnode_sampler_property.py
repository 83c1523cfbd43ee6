"""Whatever a request may ask for, a draw is a token: a failure here would end the step loop for everybody."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wnode_fakes import make_sequence

from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.sampler import sample
from kernelflume.wnode.sequence import Sequence

VOCABULARY = 16
SMALLEST = 5e-324


def within(low: float, high: float, *, exclude_min: bool = False) -> st.SearchStrategy[float]:
    """Numbers of a range, its ends often among them."""
    ends = [high] if exclude_min else [low, high]
    return st.sampled_from(ends) | st.floats(low, high, exclude_min=exclude_min)


PARAMETERS = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([SMALLEST, 1e-5]) | within(0.0, 100.0),
    top_p=st.just(SMALLEST) | within(0.0, 1.0, exclude_min=True),
    top_k=st.integers(-1, VOCABULARY + 1),
    min_p=within(0.0, 1.0),
    presence_penalty=within(-2.0, 2.0),
    frequency_penalty=within(-2.0, 2.0),
    repetition_penalty=st.just(SMALLEST) | within(0.0, 10.0, exclude_min=True),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=3).map(tuple),
)
LOGITS = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=VOCABULARY, max_size=VOCABULARY)


@given(
    sampling=PARAMETERS,
    logits=LOGITS,
    output=st.lists(st.integers(0, VOCABULARY - 1), max_size=4),
    key=st.integers(-(2**63), 2**63 - 1),
)
@example(
    sampling=SamplingParameters(top_p=SMALLEST, min_p=1.0), logits=[0.0] * VOCABULARY, output=[], key=0
).via("the mass to keep is rounded to nothing")
@example(
    sampling=SamplingParameters(top_p=SMALLEST, min_p=0.5),
    logits=[1.0, 1.0, 1.0] + [0.0] * (VOCABULARY - 3),
    output=[],
    key=0,
).via("the mass to keep is rounded to nothing")
def test_a_draw_is_always_a_token(
    sampling: SamplingParameters, logits: list[float], output: list[int], key: int
) -> None:
    sequence = Sequence("r", [1, 2, 3], sampling, random_key=key)
    for number in output:
        sequence.append(number)
    [token] = sample(torch.tensor([logits]), [sequence], frozenset({2})).tokens
    assert 0 <= token < VOCABULARY


@given(
    temperature=st.sampled_from([0.0, SMALLEST, 1e-40, 1e-5]),
    penalty=st.sampled_from([SMALLEST, 1e-40, 1.0]),
    banned=st.integers(0, 3),
)
def test_the_smallest_values_still_choose_by_likelihood(
    temperature: float, penalty: float, banned: int
) -> None:
    """Token 7 is far ahead, also of those that a tiny penalty raises beyond all floats."""
    sequence = make_sequence(  # its prompt is 1, 2, 3
        3, temperature=temperature, repetition_penalty=penalty, min_tokens=1, stop_token_ids=(banned,)
    )
    logits = torch.linspace(-2.0, -1.0, VOCABULARY)
    logits[7] = 20.0
    logits[3] = 10.0
    [token] = sample(logits[None].clone(), [sequence], frozenset()).tokens
    assert token == (3 if penalty < 1.0 and banned != 3 else 7)
