"""Turns GGUF metadata into the ``config.json`` and ``generation_config.json`` of a Hugging Face folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernelflume.checkpoint.rope import RopeParameters
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
"""GGUF architecture -> Hugging Face architecture and model type. Mistral files call themselves llama."""

_HEAD = "output.weight"
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The same in every published model of the llama3 rule; only its factor differs."""


def hf_config(
    metadata: Mapping[str, Any],
    *,
    tensor_shapes: Mapping[str, tuple[int, ...]],
    rope_factors: npt.NDArray[np.float32] | None,
    dtype: str,
) -> dict[str, Any]:
    """Return ``config.json``.

    ``tensor_shapes`` tells what metadata leaves out: the vocabulary, an own output projection, biases.
    ``rope_factors`` [head_dim / 2] divide the rotary frequencies where the file has such a tensor.

    Raises:
        ConfigurationError: the architecture is not supported or a field is missing.
    """
    name = architecture(metadata)
    hf_architecture, model_type = ARCHITECTURES[name]
    head_count = int(_field(metadata, name, "attention.head_count"))
    hidden_size = int(_field(metadata, name, "embedding_length"))
    head_dim = int(metadata.get(f"{name}.attention.key_length") or hidden_size // max(head_count, 1))
    if metadata.get(f"{name}.expert_count"):
        raise ConfigurationError("model: mixture-of-experts GGUF files are not supported")
    if int(metadata.get(f"{name}.attention.value_length") or head_dim) != head_dim:
        raise ConfigurationError("model: values of another width than keys are not supported")
    if int(metadata.get(f"{name}.rope.dimension_count") or head_dim) != head_dim:
        raise ConfigurationError("model: rotary embeddings over part of a head are not supported")
    if "token_embd.weight" not in tensor_shapes:
        raise ConfigurationError("model: the GGUF file has no tensor token_embd.weight")
    return {
        "architectures": [hf_architecture],
        "model_type": model_type,
        "attention_bias": name == "llama" and "blk.0.attn_q.bias" in tensor_shapes,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "dtype": dtype,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": int(_field(metadata, name, "feed_forward_length")),
        "max_position_embeddings": int(_field(metadata, name, "context_length")),
        "num_attention_heads": head_count,
        "num_hidden_layers": int(_field(metadata, name, "block_count")),
        "num_key_value_heads": int(metadata.get(f"{name}.attention.head_count_kv", head_count)),
        "rms_norm_eps": _shortest_float32(_field(metadata, name, "attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(metadata, name, rope_factors, head_dim),
        "tie_word_embeddings": _HEAD not in tensor_shapes,
        "use_cache": True,
        "vocab_size": tensor_shapes["token_embd.weight"][0],
    }


def hf_generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``generation_config.json``: the tokens that begin and end a text."""
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    end_of_turn = metadata.get("tokenizer.ggml.eot_token_id")
    stop = list(dict.fromkeys(token for token in (eos, end_of_turn) if token is not None))
    fields = {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": stop[0] if len(stop) == 1 else stop or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def architecture(metadata: Mapping[str, Any]) -> str:
    """Return the GGUF architecture.

    Raises:
        ConfigurationError: it is not one of ``ARCHITECTURES``.
    """
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ConfigurationError(
            f"model: GGUF architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return str(name)


def _rope(
    metadata: Mapping[str, Any], name: str, factors: npt.NDArray[np.float32] | None, head_dim: int
) -> dict[str, Any]:
    theta = _shortest_float32(metadata.get(f"{name}.rope.freq_base", 10_000.0))
    if factors is not None:
        return _llama3_rope(theta, factors, head_dim)
    kind = metadata.get(f"{name}.rope.scaling.type", "none")
    if kind == "none":
        return {"rope_theta": theta, "rope_type": "default"}
    factor = _shortest_float32(metadata.get(f"{name}.rope.scaling.factor", 1.0))
    # "yarn" and others are written as they are called, so that ModelConfig refuses them by name.
    return {"rope_theta": theta, "rope_type": kind, "factor": factor}


def _llama3_rope(theta: float, factors: npt.NDArray[np.float32], head_dim: int) -> dict[str, Any]:
    """Find the rule behind the factors: the largest is its factor; then the rule must give all of them."""
    rule = RopeParameters(
        theta=theta,
        kind="llama3",
        factor=float(factors.max()),
        low_frequency_factor=_LLAMA3_ROPE["low_freq_factor"],
        high_frequency_factor=_LLAMA3_ROPE["high_freq_factor"],
        original_max_position_embeddings=int(_LLAMA3_ROPE["original_max_position_embeddings"]),
    )
    plain = RopeParameters(theta=theta).inverse_frequencies(head_dim)
    expected = plain / rule.inverse_frequencies(head_dim)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ConfigurationError(
            "model: the GGUF file scales rotary frequencies by another rule than llama3's, "
            "which is not supported"
        )
    return {"rope_theta": theta, "rope_type": "llama3", "factor": rule.factor, **_LLAMA3_ROPE}


def _field(metadata: Mapping[str, Any], name: str, field: str) -> Any:
    try:
        value = metadata[f"{name}.{field}"]
    except KeyError:
        raise ConfigurationError(f"model: the GGUF file has no {name}.{field}") from None
    if isinstance(value, list):
        raise ConfigurationError(f"model: {name}.{field} differs between layers, which is not supported")
    return value


def _shortest_float32(value: float) -> float:
    """Return the shortest decimal that is the same float32: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))
