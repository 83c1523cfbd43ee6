"""Model folders without weights, to be served with ``--load-format dummy``."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from kernelflume.checkpoint.source import SMOLLM2, Checkpoint, resolve

if TYPE_CHECKING:
    from pathlib import Path

_COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
GEOMETRIES: dict[str, dict[str, Any]] = {
    "llama-8b": _COMMON
    | {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
    },
    "tiny": _COMMON
    | {
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 65536,
    },
}
"""``llama-8b`` has Llama-3.1-8B's shape; ``tiny`` tries a benchmark on a CPU. Vocabularies are larger than
the tokenizer's, and ids past its end have no text."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write_model_folder(folder: Path, geometry: str, *, layers: int | None = None) -> Checkpoint:
    """Write a configuration beside SmolLM2's tokenizer; return the model as it is with seed 0.

    Args:
        folder: where to; made if it is not there.
        geometry: a name of ``GEOMETRIES``.
        layers: layers in place of the geometry's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fields = GEOMETRIES[geometry] | ({"num_hidden_layers": layers} if layers else {})
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    tokenizer = resolve(SMOLLM2).path
    for name in _TOKENIZER_FILES:
        shutil.copy(tokenizer / name, folder / name)
    return resolve(str(folder), dummy_seed=0)
