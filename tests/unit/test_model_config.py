from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kernelflume.checkpoint.config import ModelConfig
from kernelflume.checkpoint.rope import RopeParameters
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def qwen(number: int, **fields: Any) -> dict[str, Any]:
    return LLAMA | {"architectures": [f"Qwen{number}ForCausalLM"]} | fields


def test_llama_fields() -> None:
    config = ModelConfig.from_dict(LLAMA)

    assert (config.num_layers, config.num_query_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert config.eos_token_ids == (2,)
    assert not any((config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm))


@pytest.mark.parametrize(
    ("stored", "asked", "device", "concrete"),
    [
        ("bfloat16", "auto", "cpu", "float32"),
        ("bfloat16", "auto", "cuda:1", "bfloat16"),
        ("float8_e4m3fn", "auto", "cuda", "float32"),
        ("bfloat16", "float16", "cpu", "float16"),
    ],
)
def test_auto_is_the_checkpoint_s_format_on_a_gpu_alone(
    stored: str, asked: str, device: str, concrete: str
) -> None:
    config = ModelConfig.from_dict(LLAMA | {"torch_dtype": stored})
    assert config.concrete_dtype(asked, device) == concrete


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (qwen(2), {"qkv_bias": True, "output_bias": False, "qk_norm": False}),
        (qwen(3, head_dim=32), {"qkv_bias": False, "qk_norm": True, "head_dim": 32}),
        (LLAMA | {"attention_bias": True}, {"qkv_bias": True, "output_bias": True}),
        (LLAMA | {"num_key_value_heads": None, "head_dim": None}, {"num_kv_heads": 4, "head_dim": 16}),
        (LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": None}, {"head_dim": 16}),
        (LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, {"head_dim": 16}),
        (qwen(2, sliding_window=16, use_sliding_window=False), {"qkv_bias": True}),
        (LLAMA | {"eos_token_id": [5, 6]}, {"eos_token_ids": (5, 6)}),
        (LLAMA | {"torch_dtype": "float16"}, {"dtype": "float16"}),
    ],
)
def test_what_families_and_versions_call_differently(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = ModelConfig.from_dict(fields)

    assert {name: getattr(config, name) for name in expected} == expected


def test_generation_config_says_what_ends_a_text() -> None:
    assert ModelConfig.from_dict(LLAMA, {"eos_token_id": [7, 8]}).eos_token_ids == (7, 8)
    assert ModelConfig.from_dict(LLAMA, {"temperature": 0.6}).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM is not supported"),
        ({"architectures": None, "model_type": "mamba"}, "'mamba' is not supported"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 1024}, "sliding_window 1024"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 64},
            "sliding_wind",
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "layer_types": ["sliding_attention"],
                "sliding_window": 64,
            },
            "sliding_window 64",
        ),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "has no 'low_freq_factor'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "no multiple of 3"),
        ({"head_dim": 15}, "must be even"),
        ({"num_hidden_layers": 0}, "num_layers must be at least 1"),
        ({"hidden_size": "wide"}, "not usable"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ],
)
def test_a_model_that_cannot_be_run_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ModelConfig.from_dict(LLAMA | change)


@pytest.mark.parametrize("field", ["hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        ModelConfig.from_dict({name: value for name, value in LLAMA.items() if name != field})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"architectures": "x'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(ConfigurationError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)


def test_geometry_is_what_attention_nodes_need() -> None:
    geometry = ModelConfig.from_dict(LLAMA).geometry("float32", "bfloat16", "tiny", revision="abc")

    assert (geometry.num_layers, geometry.num_query_heads, geometry.num_kv_heads) == (2, 4, 2)
    assert (geometry.head_dim, geometry.model_id, geometry.model_revision) == (16, "tiny", "abc")
    assert geometry.token_bytes == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 100000.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
    ids=["default", "linear", "llama3"],
)
def test_rotary_frequencies_equal_those_of_transformers(parameters: dict[str, Any]) -> None:
    theirs = LlamaConfig(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=parameters
    )
    rope = RopeParameters.from_config({"rope_parameters": parameters}, max_position_embeddings=131072)

    if parameters["rope_type"] == "default":
        exponents = torch.arange(0, 128, 2, dtype=torch.int64).float() / 128
        expected = 1.0 / (parameters["rope_theta"] ** exponents)
    else:
        expected, _ = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](theirs, torch.device("cpu"))

    np.testing.assert_allclose(rope.inverse_frequencies(128), expected.numpy(), rtol=3e-7)


def test_old_and_new_spelling_of_rotary_scaling_mean_the_same() -> None:
    scaling = {"type": "linear", "factor": 2.0}
    old = RopeParameters.from_config({"rope_theta": 5e4, "rope_scaling": scaling}, max_position_embeddings=64)
    new = RopeParameters.from_config(
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e4, "factor": 2.0}},
        max_position_embeddings=64,
    )

    assert old == new
