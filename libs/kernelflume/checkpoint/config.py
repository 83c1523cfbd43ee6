"""A decoder's architecture, read from the ``config.json`` of a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelflume.checkpoint.rope import RopeParameters
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import DTYPE_BYTES, KvGeometry

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Decoders that differ only in biases, query and key norms, and head width."""

_WINDOWED_LAYER = "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and constants of one decoder-only transformer."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    """Width of the feed-forward network's gate and up projections."""
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeParameters
    max_position_embeddings: int
    """Positions the model was trained for; a longer sequence is refused by the engine."""
    tie_word_embeddings: bool = False
    """The output projection is the embedding table."""
    qkv_bias: bool = False
    output_bias: bool = False
    """The attention output projection has a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are RMS-normalised per head before the rotation (Qwen3)."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    """Number format of the stored weights, as the checkpoint names it."""

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "intermediate_size",
            "num_query_heads",
            "num_kv_heads",
            "head_dim",
            "vocab_size",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"model: {name} must be at least 1, not {getattr(self, name)}")
        if self.num_query_heads % self.num_kv_heads:
            raise ConfigurationError(
                f"model: {self.num_query_heads} query heads are no multiple of {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise ConfigurationError(
                f"model: head_dim must be even for rotary embeddings, not {self.head_dim}"
            )

    @property
    def num_weights(self) -> int:
        """Numbers in all tensors of this architecture together."""
        hidden, query, key_value = (
            self.hidden_size,
            self.num_query_heads * self.head_dim,
            self.num_kv_heads * self.head_dim,
        )
        layer = 2 * hidden + 2 * (query + key_value) * hidden + 3 * self.intermediate_size * hidden
        layer += self.qkv_bias * (query + 2 * key_value) + self.output_bias * hidden
        layer += self.mlp_bias * (2 * self.intermediate_size + hidden) + self.qk_norm * 2 * self.head_dim
        tables = 1 if self.tie_word_embeddings else 2
        return tables * self.vocab_size * hidden + self.num_layers * layer + hidden

    def concrete_dtype(self, asked: str, device: str) -> str:
        """Return the number format to compute in: as asked for, or what ``auto`` means on a device.

        That is float32 on a CPU, where others are slower, and the checkpoint's own on a GPU.
        """
        if asked != "auto":
            return asked
        return "float32" if device == "cpu" or self.dtype not in DTYPE_BYTES else self.dtype

    def geometry(self, dtype: str, kv_dtype: str, model_id: str, *, revision: str) -> KvGeometry:
        """Return what an attention node learns of this model."""
        return KvGeometry(
            model_id=model_id,
            model_revision=revision,
            num_layers=self.num_layers,
            num_query_heads=self.num_query_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
            kv_dtype=kv_dtype,
        )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read ``config.json`` and, where there is one, ``generation_config.json``.

        Raises:
            ConfigurationError: a file cannot be read, or describes a model that is not supported.
        """
        fields = read_json(folder / "config.json")
        generation_path = folder / "generation_config.json"
        generation = read_json(generation_path) if generation_path.is_file() else {}
        return cls.from_dict(fields, generation)

    @classmethod
    def from_dict(cls, fields: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
        """Build from the parsed ``config.json``; ``generation``'s stop tokens go before the config's.

        Raises:
            ConfigurationError: the model is not supported, or a field is missing or of the wrong kind.
        """
        architecture = _architecture(fields)
        _refuse_sliding_window(architecture, fields)
        if quantization := fields.get("quantization_config"):
            method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
            raise ConfigurationError(f"model: weights quantised by {method!r} are not supported")
        activation = fields.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise ConfigurationError(f"model: activation {activation!r} is not supported, only silu")
        try:
            return cls._parse(architecture, fields, generation or {})
        except KeyError as error:
            raise ConfigurationError(f"model: config.json has no {error.args[0]!r}") from error
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"model: config.json is not usable: {error}") from error

    @classmethod
    def _parse(cls, architecture: str, fields: dict[str, Any], generation: dict[str, Any]) -> ModelConfig:
        num_query_heads = int(fields["num_attention_heads"])
        hidden_size = int(fields["hidden_size"])
        head_dim = int(fields.get("head_dim") or hidden_size // max(num_query_heads, 1))
        max_position_embeddings = int(fields.get("max_position_embeddings", 2048))
        attention_bias = bool(fields.get("attention_bias", False))
        is_qwen2 = architecture == "Qwen2ForCausalLM"  # its q, k and v have a bias that no field tells of
        stop = generation.get("eos_token_id")
        return cls(
            architecture=architecture,
            num_layers=int(fields["num_hidden_layers"]),
            hidden_size=hidden_size,
            intermediate_size=int(fields["intermediate_size"]),
            num_query_heads=num_query_heads,
            num_kv_heads=int(fields.get("num_key_value_heads") or num_query_heads),
            head_dim=head_dim,
            vocab_size=int(fields["vocab_size"]),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            rope=RopeParameters.from_config(fields, max_position_embeddings=max_position_embeddings),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
            qkv_bias=is_qwen2 or attention_bias,
            output_bias=attention_bias and not is_qwen2,
            mlp_bias=bool(fields.get("mlp_bias", False)),
            qk_norm=architecture == "Qwen3ForCausalLM",
            bos_token_id=fields.get("bos_token_id"),
            eos_token_ids=_token_ids(stop if stop is not None else fields.get("eos_token_id")),
            dtype=str(fields.get("dtype") or fields.get("torch_dtype") or "float32"),
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ConfigurationError: the file is missing, unreadable, or holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model: cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"model: {path} holds no JSON object")
    return value


def _architecture(fields: dict[str, Any]) -> str:
    named = fields.get("architectures") or []
    for architecture in named:
        if architecture in ARCHITECTURES:
            return str(architecture)
    shown = ", ".join(map(str, named)) or f"model_type {fields.get('model_type')!r}"
    raise ConfigurationError(
        f"model: architecture {shown} is not supported; supported are {', '.join(ARCHITECTURES)}"
    )


def _refuse_sliding_window(architecture: str, fields: dict[str, Any]) -> None:
    """Attention here reads every earlier token; a window that could ever cut one off changes the result."""
    window = fields.get("sliding_window")
    if architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        windowed = bool(fields.get("use_sliding_window", False)) or _WINDOWED_LAYER in (
            fields.get("layer_types") or ()
        )
    else:
        windowed = True
    if windowed and window is not None and window < fields.get("max_position_embeddings", 2048):
        raise ConfigurationError(
            f"model: sliding_window {window} below max_position_embeddings "
            f"{fields.get('max_position_embeddings', 2048)} is not supported"
        )


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(value),)
