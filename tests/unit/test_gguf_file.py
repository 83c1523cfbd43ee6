from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quantize
from tests.gguf_files import byte_pair_metadata, damaged, write_gguf

from kernelflume.checkpoint.gguf_file import GgufFile
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

WEIGHT = np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(
        path,
        "llama",
        {"block_count": 1, "rope.freq_base": 10000.0},
        [
            ("norm", WEIGHT[0], GGMLQuantizationType.F32),
            ("half", WEIGHT, GGMLQuantizationType.F16),
            ("quantised", WEIGHT, GGMLQuantizationType.Q8_0),
        ],
    )
    return path


def test_metadata_is_read_whole(path: Path) -> None:
    with GgufFile(path) as file:
        metadata = file.metadata

    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 1
    assert metadata["llama.rope.freq_base"] == 10000.0
    expected = byte_pair_metadata("smollm")
    for name in ("tokens", "merges", "token_type"):
        assert metadata[f"tokenizer.ggml.{name}"] == expected[f"tokenizer.ggml.{name}"]


def test_tensors_are_those_of_the_gguf_library(path: Path) -> None:
    with GgufFile(path) as file:
        found = {tensor.name: tensor for tensor in file.tensors}
        for theirs in GGUFReader(path).tensors:
            tensor = found[theirs.name]
            assert tensor.type == theirs.tensor_type
            assert tensor.shape == tuple(reversed(theirs.shape.tolist()))
            assert file.data(tensor).tobytes() == theirs.data.tobytes()
        assert (
            file.data(found["quantised"]).tobytes() == quantize(WEIGHT, GGMLQuantizationType.Q8_0).tobytes()
        )


def test_every_damage_to_the_head_is_an_error_or_harmless(path: Path) -> None:
    data = path.read_bytes()
    messages: list[str] = []
    for seed in range(300):
        path.write_bytes(damaged(data, seed=seed))
        try:
            with GgufFile(path) as file:
                assert all(file.data(tensor).size == tensor.num_bytes for tensor in file.tensors)
        except ConfigurationError as error:
            messages.append(str(error))

    assert len(messages) > 150
    assert all("tiny.gguf" in message for message in messages)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot read"),
        (b"GGUF", "cut short"),
        (b"PK\x03\x04" + bytes(64), "does not begin with GGUF"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(64), "version 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(64), "little-endian"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16, "cut short or damaged"),
    ],
)
def test_what_is_no_gguf_file_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)

    with pytest.raises(ConfigurationError, match=message):
        GgufFile(path)


def test_a_file_without_the_end_of_its_data_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-64])

    with pytest.raises(ConfigurationError, match="before the data of quantised"):
        GgufFile(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        GgufFile(tmp_path / "none.gguf")
