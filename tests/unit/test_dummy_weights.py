"""Models whose weights are drawn from a seed: ``load_format=dummy``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from tests.decoding import DenseSequence
from tests.router_parts import write_model
from transformers import AutoConfig, AutoModelForCausalLM

from kernelflume.checkpoint.dummy import DummyWeights
from kernelflume.checkpoint.source import resolve
from kernelflume.core.errors import ConfigurationError
from kernelflume.router.settings import RouterSettings
from kernelflume.wnode.model.decoder import load_decoder
from kernelflume.wnode.settings import WeightNodeSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A model folder without weights."""
    write_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    return tmp_path


def logits(folder: Path, seed: int) -> torch.Tensor:
    decoder = load_decoder(resolve(str(folder), dummy_seed=seed), dtype=torch.float32, device="cpu")
    return DenseSequence(decoder).extend([1, 2, 3])


def test_a_folder_without_weights_is_a_model_only_when_they_are_drawn(bare: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"neither model\.safetensors"):
        resolve(str(bare))

    found = logits(bare, 1)

    assert found.isfinite().all()
    assert torch.equal(found, logits(bare, 1))
    assert not torch.equal(found, logits(bare, 2))


def test_weights_that_are_there_are_left_alone(tmp_path: Path) -> None:
    (write_model(tmp_path) / "model.safetensors").write_bytes(b"no tensors")

    assert isinstance(resolve(str(tmp_path), dummy_seed=3).weights, DummyWeights)


def test_the_revision_follows_seed_and_configuration(bare: Path) -> None:
    def revision(seed: int) -> str:
        return resolve(str(bare), dummy_seed=seed).revision

    first = revision(1)
    assert revision(1) == first
    assert revision(2) != first

    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(config | {"rope_theta": 500000.0}))
    assert revision(1) != first


def test_no_stored_model_has_the_revision_of_a_drawn_one(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path))

    assert resolve(folder).revision != resolve(folder, dummy_seed=0).revision


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_number_of_weights_is_told_without_them(tmp_path: Path, architecture: str, tied: bool) -> None:
    config = AutoConfig.for_model(
        architecture,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=50,
        tie_word_embeddings=tied,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    stored = resolve(str(tmp_path)).weights

    assert resolve(str(tmp_path), dummy_seed=0).weights.num_elements == stored.num_elements


def test_biases_are_counted(bare: Path) -> None:
    config = json.loads((bare / "config.json").read_text())
    plain = resolve(str(bare), dummy_seed=0).weights.num_elements
    (bare / "config.json").write_text(json.dumps(config | {"attention_bias": True, "mlp_bias": True}))

    # q 8, k and v 4 each, o 8; gate and up 8 each, down 8.
    assert resolve(str(bare), dummy_seed=0).weights.num_elements == plain + 24 + 24


def test_the_seed_of_requests_is_the_weights_too() -> None:
    assert WeightNodeSettings(model="x", seed=7).dummy_seed is None
    assert WeightNodeSettings(model="x", seed=7, load_format="dummy").dummy_seed == 7
    assert RouterSettings(model="x", seed=7).dummy_seed is None
    assert RouterSettings(model="x", seed=7, load_format="dummy").dummy_seed == 7
