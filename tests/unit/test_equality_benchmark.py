"""What the equality benchmark on GPUs compares with, as far as it can be checked without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.gpu.model_folder import GEOMETRIES
from benchmarks.gpu.split import MOVE_AT, Kind, Split, ragged_contexts
from benchmarks.gpu.truth import exact_logits
from tests.decoding import DenseSequence

from kernelflume.checkpoint.config import ModelConfig
from kernelflume.wnode.model.decoder import random_decoder

STEPS = 6
CONTEXTS = ragged_contexts(13, 400, page_tokens=64)
CASES: tuple[tuple[Kind, int], ...] = (
    ("uneven", 1),
    ("uneven", 2),
    ("uneven", 3),
    ("uneven", 4),
    ("join", 2),
    ("join", 4),
)


def test_ragged_contexts_have_the_borders_of_pages() -> None:
    assert {1, 63, 64, 65, 400} <= set(CONTEXTS)
    assert max(CONTEXTS) == 400
    assert len(ragged_contexts(2, 400, page_tokens=64)) == 2


@pytest.mark.parametrize(("kind", "num_nodes"), CASES)
@pytest.mark.parametrize("tail_attends", [False, True])
def test_every_token_lies_on_one_node_and_is_asked_for(
    kind: Kind, num_nodes: int, tail_attends: bool
) -> None:
    split = Split.make(kind, CONTEXTS, num_nodes=num_nodes, num_steps=STEPS)
    rows = range(4, 11)

    for step in range(STEPS):
        held = split.held_before(step)
        assert (held >= 0).all()
        assert (held.sum(0) == np.asarray(CONTEXTS) + step).all()
        lanes = [split.lane(step, node, rows, tail_attends=tail_attends) for node in range(num_nodes)]
        stores = np.concatenate([lane.stores for lane in lanes])
        assert sorted(stores.tolist()) == list(range(len(rows))), "each row's token is stored once"
        for node, lane in enumerate(lanes):
            wanted = set(np.flatnonzero(held[node, rows.start : rows.stop]).tolist())
            assert set(lane.asks.tolist()) == wanted | (set(lane.stores.tolist()) if tail_attends else set())


def test_routes_change_in_the_middle() -> None:
    uneven = Split.make("uneven", CONTEXTS, num_nodes=3, num_steps=STEPS)
    assert (uneven.tails[0] == uneven.tails[MOVE_AT - 1]).all()
    assert (uneven.tails[0] != uneven.tails[MOVE_AT]).all()
    assert len(set(uneven.held[:, 0].tolist())) == 3

    join = Split.make("join", CONTEXTS, num_nodes=3, num_steps=STEPS)
    assert not join.held_before(MOVE_AT)[2].any()
    assert join.held_before(STEPS)[2].any()
    assert set(join.tails[MOVE_AT].tolist()) > {2}


def test_exact_logits_are_the_model_s() -> None:
    config = ModelConfig.from_dict(GEOMETRIES["tiny"] | {"vocab_size": 97})
    decoder = random_decoder(config, dtype=torch.float32, device="cpu", seed=1)
    token_ids = torch.randint(0, 97, (5, 3), generator=torch.Generator().manual_seed(2))
    positions = torch.arange(5).unsqueeze(1).expand(5, 3)
    nothing = torch.empty(config.num_layers, 0, 2, config.num_kv_heads, config.head_dim)

    found = torch.stack(exact_logits(decoder, [nothing] * 3, token_ids, positions))

    for row in range(3):
        expected = DenseSequence(decoder).extend(token_ids[:, row].tolist())
        torch.testing.assert_close(found[:, row], expected, atol=1e-5, rtol=1e-4)
