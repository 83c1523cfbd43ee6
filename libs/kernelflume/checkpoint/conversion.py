"""Converts a GGUF file, once, into a Hugging Face folder in a cache."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from kernelflume.checkpoint import gguf_config, gguf_tensors, gguf_tokenizer
from kernelflume.checkpoint.fingerprint import sampled_digest
from kernelflume.checkpoint.gguf_file import GgufFile
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kernelflume.checkpoint.gguf_tensors import ConvertedTensor

CONVERTER_VERSION = 1
"""Part of the cache key: raise it when the output changes. History: 1 = llama, qwen2, qwen3."""

LOCK_TIMEOUT_S = 3600.0
"""Longest wait for another process that converts the same file; large models take minutes."""

_SPARE_BYTES = 64 << 20
_SHARD_ALIGNMENT = 8
_PROGRESS_BYTES = 4 << 20


def convert_gguf(file: Path, *, cache_dir: Path, progress: Callable[[int, int], None] | None = None) -> Path:
    """Return the folder that holds ``file`` in Hugging Face layout, converting it if none does yet.

    The folder appears under its final name only when complete. Processes that want the same file at once wait
    for the first.

    Args:
        file: a GGUF file.
        cache_dir: converted models go to ``models/`` inside.
        progress: called with bytes of weights written and to write.

    Raises:
        ConfigurationError: the file cannot be used, the cache not be written, or the wait took too long.
    """
    try:
        key = f"{file.stem}-{sampled_digest(file).hex()[:16]}-v{CONVERTER_VERSION}"
        folder = cache_dir / "models" / key
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{key}.lock"), timeout=LOCK_TIMEOUT_S):
            if not folder.is_dir():
                _convert(file, folder, progress)
    except Timeout as error:
        raise ConfigurationError(
            f"model: another process has been converting {file} for {LOCK_TIMEOUT_S:.0f} s; "
            f"its lock is {error.lock_file}"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"model: cannot convert {file} into {cache_dir}: {error}") from error
    return folder


def _convert(file: Path, folder: Path, progress: Callable[[int, int], None] | None) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    # The lock is ours, so a folder of that name was left by a process that died.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        with GgufFile(file) as source:
            _write_folder(source, partial, progress)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_folder(source: GgufFile, folder: Path, progress: Callable[[int, int], None] | None) -> None:
    metadata = source.metadata
    architecture = gguf_config.architecture(metadata)
    shapes = {tensor.name: tensor.shape for tensor in source.tensors}
    tensors = gguf_tensors.plan(source, metadata, architecture)
    config = gguf_config.hf_config(
        metadata,
        tensor_shapes=shapes,
        rope_factors=gguf_tensors.rope_factors(source),
        dtype=_weights_dtype(tensors),
    )
    tokenizer = gguf_tokenizer.build_tokenizer(metadata)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", gguf_config.hf_generation_config(metadata))
    _write_json(folder / "tokenizer_config.json", gguf_tokenizer.tokenizer_config(metadata))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_weights(source, tensors, folder / "model.safetensors", progress)


def _weights_dtype(tensors: tuple[ConvertedTensor, ...]) -> str:
    """Return the format of the embedding table: norms are float32 in nearly every file."""
    formats = {tensor.name: tensor.dtype for tensor in tensors}
    return gguf_tensors.HF_DTYPES[formats.get("model.embed_tokens.weight", "BF16")]


def _write_weights(
    source: GgufFile,
    tensors: tuple[ConvertedTensor, ...],
    path: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Stream the tensors into a safetensors file, so that no more than a piece is in memory at a time.

    The safetensors library writes only what is in memory as a whole; reading is left to it.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.source.shape),
            "data_offsets": [total, total + tensor.num_bytes],
        }
        total += tensor.num_bytes
    if len(header) != len(tensors) + 1:
        raise ConfigurationError(f"model: {source.path} has two tensors of one name")
    free = shutil.disk_usage(path.parent).free
    if free < total + _SPARE_BYTES:
        raise ConfigurationError(
            f"model: converting {source.path} takes {total + _SPARE_BYTES} bytes in {path.parent.parent}, "
            f"which has {free} free"
        )
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _SHARD_ALIGNMENT)
    done = reported = 0
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for piece in gguf_tensors.converted_bytes(source, tensor):
                done += file.write(piece.data)
                if progress is not None and (done - reported >= _PROGRESS_BYTES or done == total):
                    progress(done, total)
                    reported = done
        # The rename that follows must not outlive the data in a crash.
        file.flush()
        os.fsync(file.fileno())


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
