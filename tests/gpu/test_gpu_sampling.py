"""The sampler on a GPU gives the CPU's tokens for the same logits, enqueued or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.test_lane_draws import MIXED

from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.gpu.lane_draws import LaneDraws
from kernelflume.wnode.sampler import sample
from kernelflume.wnode.sequence import Sequence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

RULED: list[dict[str, Any]] = [
    {"temperature": 1.0, "presence_penalty": 1.0, "repetition_penalty": 1.3},
    {"temperature": 0.8, "logit_bias": ((5, 4.0), (9, -100.0)), "top_p": 0.9},
    {"temperature": 1.0, "allowed_token_ids": (4, 7, 9), "logprobs": 3},
    {"temperature": 0.0, "min_tokens": 5},
]


def running(samplings: list[dict[str, Any]], count: int) -> list[Sequence]:
    made = []
    for number in range(count):
        parameters = SamplingParameters(max_tokens=1000, **samplings[number % len(samplings)])
        sequence = Sequence("r", [1, 2, 3], parameters, random_key=number)
        sequence.sequence_id = number + 1
        made.append(sequence)
    return made


@pytest.mark.parametrize("vocab", [49152, 128256])
@pytest.mark.parametrize("rounded", [False, True])
def test_tokens_are_the_cpus(vocab: int, rounded: bool) -> None:
    sequences = running([*MIXED, *RULED], 64)
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        logits = torch.randn(64, vocab, generator=generator) * 3
        if rounded:
            logits = logits.bfloat16().float()
        cpu = sample(logits.clone(), sequences, frozenset({2}))
        gpu = sample(logits.cuda(), sequences, frozenset({2}))
        assert cpu.tokens == gpu.tokens
        for row, told in cpu.logprobs.items():
            assert gpu.logprobs[row].logprob == pytest.approx(told.logprob, abs=1e-3)
        for sequence, token in zip(sequences, cpu.tokens, strict=True):
            sequence.append(token)


def test_what_is_enqueued_is_what_the_sampler_chooses_and_waits_for_nothing() -> None:
    vocab, count = 128256, 32
    sequences = running(MIXED, count)
    device = torch.device("cuda")
    draws = LaneDraws(count, device)
    generator = torch.Generator().manual_seed(2)
    for round_ in range(8):
        logits = torch.randn(count, vocab, generator=generator) * 4
        on_device = logits.to(device)
        token_ids = on_device.argmax(-1)
        positions = torch.tensor([sequence.num_tokens for sequence in sequences], device=device)
        torch.cuda.synchronize()
        # The first rounds may load kernels; after them any wait for the device is an error.
        torch.cuda.set_sync_debug_mode("error" if round_ >= 2 else "default")
        try:
            draws.enqueue(sequences, on_device, token_ids, positions)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        expected = sample(logits, sequences, frozenset()).tokens
        left = draws.unsettled(sequences)
        assert left is not None
        for row in range(count):
            if row not in left:
                assert int(token_ids[row]) == expected[row]
        assert len(left) <= count // 6  # at most the rows with nothing but a top_p
        for sequence, token in zip(sequences, expected, strict=True):
            sequence.append(token)
