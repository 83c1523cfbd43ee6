"""Drawing in stream order gives the sampler's tokens, or says that it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.gpu import lane_draws
from kernelflume.wnode.gpu.lane_draws import LaneDraws
from kernelflume.wnode.sampler import sample
from kernelflume.wnode.sequence import Sequence

VOCAB = 200
CPU = torch.device("cpu")
MIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
]


def running(*samplings: dict[str, Any]) -> list[Sequence]:
    made = []
    for number, sampling in enumerate(samplings):
        sequence = Sequence("r", [1, 2, 3], SamplingParameters(**sampling), random_key=number)
        sequence.sequence_id = number + 1
        made.append(sequence)
    return made


def step(draws: LaneDraws, sequences: list[Sequence], logits: torch.Tensor) -> list[int]:
    """Do what a captured step does around a draw, with room for two more rows."""
    token_ids = torch.cat([logits.argmax(-1), torch.tensor([7, 7])])
    positions = torch.tensor([*(sequence.num_tokens for sequence in sequences), 0, 0])
    draws.enqueue(sequences, torch.cat([logits, torch.zeros(2, VOCAB)]), token_ids, positions)
    assert token_ids[-2:].tolist() == [7, 7]
    return token_ids[:-2].tolist()


@pytest.mark.parametrize("samplings", [MIXED, MIXED[:2], MIXED[1:], MIXED[2:3]])
def test_tokens_are_the_samplers_over_many_steps(samplings: list[dict[str, Any]]) -> None:
    sequences = running(*samplings)
    draws = LaneDraws(8, CPU)
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        logits = torch.randn(len(sequences), VOCAB, generator=generator) * 3
        tokens = step(draws, sequences, logits)
        assert draws.unsettled(sequences) == []
        assert tokens == sample(logits.clone(), sequences, frozenset()).tokens
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)


def test_rows_that_change_places_or_leave_keep_their_own_draws() -> None:
    sequences = running(*MIXED)
    draws = LaneDraws(8, CPU)
    logits = torch.randn(len(MIXED), VOCAB, generator=torch.Generator().manual_seed(4))
    step(draws, sequences, logits)
    others = [sequences[3], sequences[1], sequences[0]]
    assert step(draws, others, logits[:3]) == sample(logits[:3].clone(), others, frozenset()).tokens


def test_a_row_whose_filter_does_not_end_in_the_head_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_draws, "HEAD", 4)
    sequences = running(
        {"temperature": 1.0, "top_p": 0.99}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}
    )
    draws = LaneDraws(8, CPU)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(5))
    tokens = step(draws, sequences, logits)
    assert draws.unsettled(sequences) == [0]
    assert tokens[1:] == sample(logits.clone(), sequences, frozenset()).tokens[1:]


@pytest.mark.parametrize(
    "rule", [{"logprobs": 1}, {"presence_penalty": 1.0}, {"min_tokens": 2}, {"logit_bias": ((1, 1.0),)}]
)
def test_rows_with_rules_are_left_to_the_sampler(rule: dict[str, Any]) -> None:
    sequences = running({"temperature": 1.0}, {"temperature": 1.0, **rule})
    draws = LaneDraws(8, CPU)
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(6))
    assert step(draws, sequences, logits) == logits.argmax(-1).tolist()
    assert draws.unsettled(sequences) is None


def test_plain_rows_are_chosen_by_the_step_itself() -> None:
    sequences = running({"temperature": 0.0}, {"temperature": 0.0})
    draws = LaneDraws(8, CPU)
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(7))
    assert step(draws, sequences, logits) == logits.argmax(-1).tolist()
    assert draws.unsettled(sequences) == []
