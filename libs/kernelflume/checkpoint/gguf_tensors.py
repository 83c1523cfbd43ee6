"""Turns GGUF tensors into the names, row order and number formats of a Hugging Face checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGMLQuantizationType, dequantize

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from kernelflume.checkpoint.gguf_file import GgufFile, GgufTensor

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_CHUNK_ELEMENTS = 1 << 18
"""Dequantising goes by as many rows as stay in a core's cache; numpy makes several passes over them."""

ROPE_FREQUENCIES = "rope_freqs.weight"
"""Not a weight: frequency factors of the llama3 rule, which goes into config.json."""

_KEPT = {
    GGMLQuantizationType.F32: "F32",
    GGMLQuantizationType.F16: "F16",
    GGMLQuantizationType.BF16: "BF16",
}
_QUANTIZED_BECOMES = "BF16"

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

HF_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""safetensors' names of number formats -> config.json's."""


@dataclass(frozen=True, slots=True)
class ConvertedTensor:
    """What one GGUF tensor becomes."""

    source: GgufTensor
    name: str
    dtype: str
    """safetensors' name: quantised tensors become BF16."""
    num_bytes: int
    num_heads: int | None
    """Heads whose rows are stored in interleaved rotary order and must be put back; None if in order."""


def plan(file: GgufFile, metadata: Mapping[str, Any], architecture: str) -> tuple[ConvertedTensor, ...]:
    """Decide name, format and row order of every tensor; the wider formats first, so that all are aligned.

    Raises:
        ConfigurationError: a tensor is of no known name.
    """
    planned = (
        _planned(tensor, metadata, architecture) for tensor in file.tensors if tensor.name != ROPE_FREQUENCIES
    )
    return tuple(sorted(planned, key=lambda tensor: -ITEM_BYTES[tensor.dtype]))


def rope_factors(file: GgufFile) -> npt.NDArray[np.float32] | None:
    """Return the factors [head_dim / 2] by which the file divides rotary frequencies, or None."""
    for tensor in file.tensors:
        if tensor.name == ROPE_FREQUENCIES and tensor.type is GGMLQuantizationType.F32:
            return file.data(tensor).view(np.float32).copy()
    return None


def _planned(tensor: GgufTensor, metadata: Mapping[str, Any], architecture: str) -> ConvertedTensor:
    name = _hf_name(tensor.name)
    dtype = _KEPT.get(tensor.type, _QUANTIZED_BECOMES)
    num_elements = int(np.prod(tensor.shape))
    num_heads = None
    if architecture == "llama":
        query_heads = int(metadata["llama.attention.head_count"])
        if ".self_attn.q_proj." in name:
            num_heads = query_heads
        elif ".self_attn.k_proj." in name:
            num_heads = int(metadata.get("llama.attention.head_count_kv", query_heads))
        if num_heads is not None and tensor.shape[0] % (2 * num_heads):
            raise ConfigurationError(
                f"model: {tensor.shape[0]} rows of {tensor.name} do not split into heads"
            )
    return ConvertedTensor(tensor, name, dtype, num_elements * ITEM_BYTES[dtype], num_heads)


def converted_bytes(file: GgufFile, tensor: ConvertedTensor) -> Iterator[npt.NDArray[Any]]:
    """Yield the tensor's rows in order, in pieces small enough to stay in cache.

    Raises:
        ConfigurationError: the gguf library cannot dequantise this type.
    """
    source = tensor.source
    rows = file.data(source)
    if tensor.num_heads is not None:
        # A bias is permuted like the rows of its matrix: one element a row.
        rows = _half_split(rows.reshape(source.shape[0], -1), tensor.num_heads)
    else:
        rows = rows.reshape(-1, rows.shape[-1])
    step = max(1, _CHUNK_ELEMENTS // source.shape[-1])
    for start in range(0, rows.shape[0], step):
        yield _converted(rows[start : start + step], tensor)


def _half_split(rows: npt.NDArray[np.uint8], num_heads: int) -> npt.NDArray[np.uint8]:
    """Put rows (2i, 2i + 1) of each head back to (i, i + D / 2); quantised rows can be moved as bytes."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _converted(rows: npt.NDArray[np.uint8], tensor: ConvertedTensor) -> npt.NDArray[Any]:
    kind = tensor.source.type
    if kind in _KEPT:
        return np.ascontiguousarray(rows)
    try:
        return _bfloat16(np.ascontiguousarray(dequantize(rows, kind), dtype=np.float32))
    except NotImplementedError as error:
        raise ConfigurationError(
            f"model: {tensor.source.name} has type {kind.name}, which cannot be read"
        ) from error


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest even; the values are finite, as block scales are."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _hf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _PARTS:
        raise ConfigurationError(f"model: the GGUF file has a tensor this product does not know: {name}")
    return f"model.layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}"
