from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from kernelflume.checkpoint.index import WeightIndex
from kernelflume.checkpoint.source import resolve
from kernelflume.core.errors import ConfigurationError
from kernelflume.wnode.model.decoder import load_decoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

CONFIG = LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    vocab_size=64,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LlamaForCausalLM(CONFIG).save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def load(folder: Path) -> None:
    load_decoder(resolve(str(folder)), dtype=torch.float32, device="cpu")


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.__delitem__(DOWN))

    with pytest.raises(ConfigurationError, match=f"has no tensor {DOWN}"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.__setitem__(DOWN, torch.zeros(32, 47)))

    with pytest.raises(ConfigurationError, match=rf"{DOWN} has shape \[32, 47\].* \[32, 48\]"):
        load(folder)


def test_a_tensor_nobody_uses_is_named(folder: Path) -> None:
    rewrite(
        folder, lambda tensors: tensors.__setitem__("model.layers.0.mlp.router.weight", torch.zeros(2, 2))
    )

    with pytest.raises(ConfigurationError, match=r"does not use: model\.layers\.0\.mlp\.router\.weight"):
        load(folder)


def test_a_tensor_of_integers_is_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.__setitem__(DOWN, torch.zeros(32, 48, dtype=torch.int8)))

    with pytest.raises(ConfigurationError, match=f"{DOWN} is stored as I8"):
        load(folder)


def test_what_follows_from_the_rest_may_be_stored_too(folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    rewrite(folder, change)

    load(folder)


def test_names_without_the_prefix_are_found(folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(folder, change)

    load(folder)


def test_no_embedding_is_an_error(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.__delitem__("model.embed_tokens.weight"))

    with pytest.raises(ConfigurationError, match=r"model\.embed_tokens\.weight"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1], ids=["empty", "length", "header", "data"])
def test_a_file_cut_short_is_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(ConfigurationError, match=r"model\.safetensors"):
        WeightIndex.from_folder(folder)


@pytest.mark.parametrize(
    "header", [b"[]", b"{]", b'{"a":1}', b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}']
)
def test_a_damaged_header_is_refused(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)

    with pytest.raises(ConfigurationError, match="damaged safetensors header"):
        WeightIndex.from_folder(folder)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds neither"):
        WeightIndex.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({}, "no weight_map"),
        ({"a": "gone.safetensors"}, r"cannot read .*gone\.safetensors"),
        ({"a": "shard.safetensors"}, "places a in"),
        ({"a": "../shard.safetensors"}, "no file of its folder"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(
    tmp_path: Path, weight_map: dict[str, str], message: str
) -> None:
    save_file({"b": torch.zeros(2)}, tmp_path / "shard.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(ConfigurationError, match=message):
        WeightIndex.from_folder(tmp_path)


def test_the_revision_follows_the_weights(folder: Path) -> None:
    before = resolve(str(folder)).revision
    assert resolve(str(folder)).revision == before

    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.embed_tokens.weight"].mul_(2)

    rewrite(folder, change)

    assert resolve(str(folder)).revision != before
    assert len(before) == 12
