"""A model whose weights are drawn from a seed, served as a whole (``--load-format dummy``)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import torch
from tests.decoding import greedy
from tests.router_parts import write_model
from tests.stack import Stack, serve

from kernelflume.checkpoint.source import resolve
from kernelflume.wnode.model.decoder import load_decoder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

SEED = 5
PROMPT = [*range(3, 40)] * 2
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration and a tokenizer."""
    path = write_model(tmp_path_factory.mktemp("model"))
    (path / "model.safetensors").unlink()
    # Wide enough for attention to weigh as much as the embedding.
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "tie_word_embeddings": False}
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps(config | shape), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def stack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    flags = ("--attention-nodes", "1", "--load-format", "dummy", "--seed", str(SEED), "--dtype", "float32")
    # Ranges so short that the prompt lies on every node.
    with serve(
        tmp_path_factory.mktemp("logs"),
        *flags,
        "--served-model-name",
        "smollm2",
        model=str(folder),
        KERNELFLUME_WNODE_MAX_RANGE_TOKENS="16",
    ) as served:
        yield served


@pytest.mark.parametrize("num_nodes", [1, 2])
async def test_greedy_tokens_are_the_decoder_s_over_any_number_of_nodes(
    stack: Stack, folder: Path, num_nodes: int
) -> None:
    decoder = load_decoder(resolve(str(folder), dummy_seed=SEED), dtype=torch.float32, device="cpu")
    await asyncio.to_thread(stack.scale, num_nodes)

    found = await stack.generate(PROMPT, NUM_TOKENS)

    assert found == greedy(decoder, PROMPT, NUM_TOKENS)


def test_the_log_says_that_answers_are_meaningless(stack: Stack) -> None:
    assert "meaningless" in (stack.log_dir / "wnode.log").read_text(encoding="utf-8")
