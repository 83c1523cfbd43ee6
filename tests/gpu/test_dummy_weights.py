"""Weights drawn from a seed on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks.gpu.model_folder import write_model_folder

from kernelflume.checkpoint.source import resolve
from kernelflume.wnode.model.decoder import load_decoder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(300),
]


def test_they_follow_their_seed_and_look_like_weights(tmp_path: Path) -> None:
    write_model_folder(tmp_path / "model", "llama-8b", layers=2)

    def embedding(seed: int) -> torch.Tensor:
        checkpoint = resolve(str(tmp_path / "model"), dummy_seed=seed)
        decoder = load_decoder(checkpoint, dtype=torch.bfloat16, device="cuda", pack_weights=False)
        return decoder.embedding

    first = embedding(1)

    assert first.device.type == "cuda"
    assert torch.equal(first, embedding(1))
    assert not torch.equal(first, embedding(2))
    assert first.float().std().item() == pytest.approx(0.02, rel=0.01)
