"""Hardware and models as data: YAML files of the package, or of the user."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import Field, ValidationError

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.sim.config import read_text
from kernelflume.scaler.sim.section import Section

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]
_GB = 1e9


class Hardware(Section):
    """One kind of GPU."""

    name: str
    memory_gb: _Positive
    memory_gb_per_s: _Positive
    bf16_tflops: _Positive
    """Dense."""
    fp8_tflops: _Positive | None = None
    intra_gb_per_s: _Positive
    """Between GPUs of one machine, one direction."""
    inter_gb_per_s: _Positive
    """Between machines, one direction and GPU."""
    gemm_table: str | None = None
    attention_table: str | None = None
    all_reduce_table: str | None = None
    """Files in the folder of kernel tables; without them a roofline counts."""
    source: str

    @property
    def memory_bytes(self) -> float:
        """Bytes of memory."""
        return self.memory_gb * _GB

    def link_bytes_per_s(self, link: str) -> float:
        """Return the bytes a second of a link, ``intra`` or ``inter``."""
        return _GB * (self.intra_gb_per_s if link == "intra" else self.inter_gb_per_s)


class Model(Section):
    """The shape of a dense decoder."""

    name: str
    num_layers: _Count
    hidden_size: _Count
    num_query_heads: _Count
    num_kv_heads: _Count
    head_dim: _Count
    ffn_size: _Count
    vocabulary_size: _Count
    kv_dtype_bytes: Annotated[float, Field(gt=0, le=4)] = 2.0
    source: str

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return round(2 * self.num_kv_heads * self.head_dim * self.num_layers * self.kv_dtype_bytes)

    @property
    def layer_parameters(self) -> int:
        """Weights of all layers."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_query_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.ffn_size)

    def weight_bytes(self, dtype_bytes: float) -> float:
        """Return the bytes of all weights; embedding and head, which are two matrices, keep 16 bits."""
        return self.layer_parameters * dtype_bytes + 4 * self.vocabulary_size * self.hidden_size


_Profile = TypeVar("_Profile", Hardware, Model)


def load_hardware(name: str, folder: Path) -> Hardware:
    """Return a profile of the package by its name, or the one in a file.

    Raises:
        ConfigurationError: there is none, or it is no good.
    """
    return _load(Hardware, "hardware", name, folder)


def load_model(name: str, folder: Path) -> Model:
    """Return a profile of the package by its name, or the one in a file.

    Raises:
        ConfigurationError: there is none, or it is no good.
    """
    return _load(Model, "models", name, folder)


def known(kind: str) -> list[str]:
    """Return the names of the package's profiles: of ``hardware`` or ``models``."""
    return sorted(Path(entry.name).stem for entry in _folder(kind).iterdir() if entry.name.endswith(".yaml"))


def _folder(kind: str) -> Traversable:
    return files("kernelflume.scaler.sim") / "data" / kind


@lru_cache(maxsize=64)  # a sweep reads the same few for every combination
def _parsed(form: type[_Profile], text: str) -> _Profile:
    return form.model_validate(parse_mapping(text))


def _load(form: type[_Profile], kind: str, name: str, folder: Path) -> _Profile:
    if name.endswith((".yaml", ".yml")):
        text = read_text(folder / name)
    elif name in known(kind):
        text = (_folder(kind) / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        raise ConfigurationError(
            f"{kind}: no profile {name!r}; there are {', '.join(known(kind))}, or give a YAML file"
        )
    try:
        profile: _Profile = _parsed(form, text)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors())
        raise ConfigurationError(f"{kind} {name}: {faults}") from error
    return profile
