from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.decoding import DenseSequence
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kernelflume.checkpoint.source import resolve
from kernelflume.wnode.model.decoder import load_decoder, random_decoder

if TYPE_CHECKING:
    from pathlib import Path

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES: dict[str, tuple[type[PreTrainedModel], PretrainedConfig]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "llama tied": (LlamaForCausalLM, LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama biases": (LlamaForCausalLM, LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "llama head_dim": (LlamaForCausalLM, LlamaConfig(**SHAPE, head_dim=32)),
    "llama3 rope": (LlamaForCausalLM, LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE)),
    "llama linear rope": (
        LlamaForCausalLM,
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "qwen2 tied": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=16)),
    "qwen3 biases": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=32, attention_bias=True)),
}


def random_model(name: str, *, dtype: torch.dtype) -> PreTrainedModel:
    kind, config = CASES[name]
    torch.manual_seed(7)
    model = kind(config).eval()
    for parameter in model.parameters():  # biases and norms are not left at zero and one
        values = torch.randn_like(parameter) * 0.1 + (1.0 if parameter.ndim == 1 else 0.0)
        parameter.data = values.to(dtype)  # not model.to(dtype), which would round rotary frequencies too
    return model


def expected_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model.float()(torch.tensor([token_ids])).logits[0]
    return logits


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32], ids=["packed", "plain"])
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name: str, stored: torch.dtype, tmp_path: Path) -> None:
    model = random_model(name, dtype=stored)
    model.save_pretrained(tmp_path)
    token_ids = torch.randint(128, (100,), generator=torch.Generator().manual_seed(3)).tolist()

    decoder = load_decoder(resolve(str(tmp_path)), dtype=torch.float32, device="cpu")
    sequence = DenseSequence(decoder)
    logits = torch.cat((sequence.extend(token_ids[:60]), sequence.extend(token_ids[60:])))

    assert (decoder.layers[0].down.gain != 1.0) == (stored is torch.bfloat16)
    torch.testing.assert_close(logits, expected_logits(model, token_ids), rtol=1e-4, atol=1e-4)


def test_sharded_weights_give_the_same_logits(tmp_path: Path) -> None:
    model = random_model("qwen2", dtype=torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    token_ids = list(range(1, 40))

    decoder = load_decoder(resolve(str(tmp_path)), dtype=torch.float32, device="cpu")

    torch.testing.assert_close(
        DenseSequence(decoder).extend(token_ids), expected_logits(model, token_ids), rtol=1e-4, atol=1e-4
    )


def test_rows_do_not_depend_on_the_rows_beside_them(tmp_path: Path) -> None:
    random_model("qwen3", dtype=torch.bfloat16).save_pretrained(tmp_path)
    decoder = load_decoder(resolve(str(tmp_path)), dtype=torch.float32, device="cpu")
    token_ids, positions = torch.tensor([5, 9, 70, 3]), torch.tensor([0, 400, 17, 2])

    together = decoder.begin(token_ids, positions)
    query = decoder.project_query(0, together)
    key, value = decoder.project_kv(0, together)

    for row in range(4):
        alone = decoder.begin(token_ids[row : row + 1], positions[row : row + 1])
        torch.testing.assert_close(decoder.project_query(0, alone), query[row : row + 1])
        alone_key, alone_value = decoder.project_kv(0, alone)
        torch.testing.assert_close(alone_key, key[row : row + 1])
        torch.testing.assert_close(alone_value, value[row : row + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_keys_and_values_go_where_the_caller_says(dtype: torch.dtype, tmp_path: Path) -> None:
    random_model("llama", dtype=torch.bfloat16).save_pretrained(tmp_path)
    decoder = load_decoder(resolve(str(tmp_path)), dtype=dtype, device="cpu")
    slots = torch.zeros(3, 5, 2, 2, 16, dtype=dtype)

    state = decoder.begin(torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]))
    decoder.project_query(1, state)
    key, value = decoder.project_kv(1, state, slots[:, 2])
    decoder.project_query(1, state)
    own_key, own_value = decoder.project_kv(1, state)

    assert torch.equal(slots[:, 2, 0], own_key)
    assert torch.equal(slots[:, 2, 1], own_value)
    assert key.data_ptr() == slots[0, 2, 0].data_ptr()
    assert value.dtype == dtype
    assert not slots[:, [0, 1, 3, 4]].any()


def test_logits_of_chosen_rows_only(tmp_path: Path) -> None:
    random_model("llama", dtype=torch.float32).save_pretrained(tmp_path)
    decoder = load_decoder(resolve(str(tmp_path)), dtype=torch.bfloat16, device="cpu")
    state = decoder.begin(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2]))

    chosen = decoder.logits(state, torch.tensor([2, 0]))

    assert chosen.dtype == torch.float32
    assert chosen.shape == (2, 128)
    torch.testing.assert_close(chosen, decoder.logits(state)[[2, 0]])


def test_key_and_value_need_the_query_first(tmp_path: Path) -> None:
    random_model("llama", dtype=torch.float32).save_pretrained(tmp_path)
    decoder = load_decoder(resolve(str(tmp_path)), dtype=torch.float32, device="cpu")

    with pytest.raises(RuntimeError, match="project_query"):
        decoder.project_kv(0, decoder.begin(torch.tensor([1]), torch.tensor([0])))


def test_random_weights_follow_their_seed(tmp_path: Path) -> None:
    random_model("qwen3", dtype=torch.float32).save_pretrained(tmp_path)
    config = replace(resolve(str(tmp_path)).config, num_layers=1, hidden_size=32)

    def logits(seed: int) -> torch.Tensor:
        decoder = random_decoder(config, dtype=torch.float32, device="cpu", seed=seed)
        return DenseSequence(decoder).extend([1, 2, 3])

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))
    assert logits(1).isfinite().all()
