"""Sampling meanings, and that a draw depends on the request and its position alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.wnode_fakes import make_sequence

if TYPE_CHECKING:
    from kernelflume.wnode.sequence import Sequence

from kernelflume.wnode.sampler import sample

NO_EOS: frozenset[int] = frozenset()
LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0, -1.0]])


def draw(sequence: Sequence, logits: torch.Tensor = LOGITS, eos: frozenset[int] = NO_EOS) -> int:
    return sample(logits.clone(), [sequence], eos).tokens[0]


def draws(count: int, logits: torch.Tensor = LOGITS, **sampling: Any) -> Counter[int]:
    sequences = [make_sequence(1, **({"temperature": 1.0} | sampling)) for _ in range(count)]
    for key, sequence in enumerate(sequences):
        sequence.random_key = key
    return Counter(sample(logits.repeat(count, 1), sequences, NO_EOS).tokens)


def test_greedy_takes_the_most_likely() -> None:
    assert draw(make_sequence(1)) == 3


def test_draws_follow_the_distribution() -> None:
    found = draws(4000)
    expected = torch.softmax(LOGITS[0], -1)
    for token, share in enumerate(expected.tolist()):
        assert found[token] / 4000 == pytest.approx(share, abs=0.03)


def test_temperature_sharpens() -> None:
    assert draws(300, temperature=0.01) == Counter({3: 300})


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 2}, {2, 3}),
        ({"top_k": 1}, {3}),
        ({"top_k": 0}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.6}, {3}),
        ({"top_p": 0.7}, {2, 3}),
        ({"min_p": 0.3}, {2, 3}),
        ({"min_p": 1.0}, {3}),
        ({"top_k": 3, "top_p": 0.95}, {1, 2, 3}),
    ],
)
def test_filters_keep_only_the_head(sampling: dict[str, Any], kept: set[int]) -> None:
    assert set(draws(1500, **sampling)) == kept


def test_same_seed_same_token_whatever_the_batch() -> None:
    one = make_sequence(5, temperature=1.0, seed=3)
    alone = [draw(one, torch.randn(1, 100, generator=torch.Generator().manual_seed(1)))]
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(1))
    batch = torch.cat([torch.zeros(2, 100), logits])
    together = sample(batch, [make_sequence(2, temperature=1.0), make_sequence(9), one], NO_EOS).tokens
    assert together[2] == alone[0]


def test_draws_differ_by_position() -> None:
    sequence = make_sequence(1, temperature=1.0)
    found = set()
    for _ in range(50):
        found.add(draw(sequence))
        sequence.append(0)
    assert len(found) > 1


def test_negative_seed_works() -> None:
    sequence = make_sequence(1, temperature=1.0)
    sequence.random_key = -1
    assert draw(sequence) in range(5)


def test_min_tokens_bans_eos_and_stop_tokens() -> None:
    sequence = make_sequence(1, min_tokens=1, stop_token_ids=(2,))
    assert draw(sequence, eos=frozenset({3})) == 1
    sequence.append(0)
    assert draw(sequence, eos=frozenset({3})) == 3


def test_repetition_penalty_counts_the_prompt() -> None:
    sequence = make_sequence(3, repetition_penalty=10.0)  # prompt is 1, 2, 3
    assert draw(sequence) == 3
    logits = torch.tensor([[0.5, 1.0, 2.0, 3.0, 0.4]])
    assert draw(sequence, logits) == 0


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    sequence = make_sequence(3, presence_penalty=2.0)
    assert draw(sequence) == 3
    sequence.append(3)
    assert draw(sequence) == 2
    sequence = make_sequence(3, frequency_penalty=0.6)
    sequence.append(3)
    assert draw(sequence) == 3
    sequence.append(3)
    assert draw(sequence) == 2
