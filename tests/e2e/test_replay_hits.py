"""`kernelflume bench` against two weight nodes: every reusable token comes from the cache, and answers stay.

What can be found is what earlier requests computed: whole blocks of it, and of an answer all tokens but the
last, which was never an input. So a request may find less than the trace's own hit by what does not fill a
block, page_tokens - 1 tokens at most, and by no more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.replay import Replayed, replay
from tests.stack import WAIT_S, Stack, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(900)]

PAGE_TOKENS = 16
FLAGS = ("--weight-nodes", "2", "--attention-nodes", "2", "--attention-node-memory", "256MiB")
SETTINGS = {
    "KERNELFLUME_ANODE_PAGE_TOKENS": str(PAGE_TOKENS),
    # Two weight nodes load their weights at once with the attention nodes' start.
    "KERNELFLUME_SCALER_OPERATION_DEADLINE_S": str(WAIT_S),
}
COMMON = ("--time-scale", "50", "--max-think-time", "0.1", "--active-sessions", "3", "--warmups", "2")
GENERATED = (
    "generated", "--num-requests", "12", "--turns", "4", "--length-scale", "64", "--output-scale", "64",
)  # fmt: skip
NUM_SESSIONS, NUM_TURNS = 3, 4
BLOCK_TOKENS = 8
"""Of the trace below, other than the server's."""


def session(number: int) -> dict[str, Any]:
    """Make up a session in kv-cache-tester's form: prompts grow, one is cut, a sub-agent begins alike."""
    requests: list[dict[str, Any]] = []
    for turn in range(NUM_TURNS):
        blocks = 9 + 4 * turn - (7 if turn == NUM_TURNS - 1 else 0)
        known = 0 if turn == 0 else min(blocks, 9 + 4 * (turn - 1))
        requests.append(
            {
                "t": float(turn),
                "in": blocks * BLOCK_TOKENS + 1 + number + turn,
                "out": 3 + number,
                "think_time": 1.0,
                "hit_blocks": known,
                "hash_rle": [[0, blocks]],
            }
        )
    helper = {"in": 90, "out": 3, "hit_blocks": 5, "hash_rle": [[0, 5], [500, 6]]}
    aside = {"t": 1.5, "agent_id": "helper", "requests": [{"t": 0.0, "think_time": 0.0, **helper}]}
    return {"id": f"s{number}", "block_size": BLOCK_TOKENS, "requests": [*requests[:2], aside, *requests[2:]]}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl"
    path.write_text("".join(json.dumps(session(number)) + "\n" for number in range(NUM_SESSIONS)))
    return path


@pytest.fixture(scope="module")
def caching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serve(tmp_path_factory.mktemp("caching"), *FLAGS, **SETTINGS) as stack:
        yield stack


def check_hits(run: Replayed) -> None:
    """Compare what was found with what a cache without an end would hold, request by request."""
    assert run.result["kernelflume"]["dropped_past_context"] == 0
    bounds = run.findable(PAGE_TOKENS)
    for key, line in run.requests.items():
        least, most = bounds[key]
        assert least <= line["cached_tokens"] <= most, line
    own = run.result["kernelflume"]
    lacking = (own["infinite_cache_hit"] - own["prefix_hit"]) * run.result["total_input_tokens"]
    early = sum(most - least for least, most in bounds.values())
    assert -0.5 <= lacking <= (PAGE_TOKENS - 1) * len(bounds) + early + 0.5
    assert own["prefix_hit"] > 0.4  # it is a test of hits


def check_spread(run: Replayed) -> None:
    """Turns of some session ran on both weight nodes."""
    assert set.union(*run.places.values()) == {"w-1", "w-2"}
    assert max(map(len, run.places.values())) == 2


def test_a_replay_finds_all_that_was_computed_before_and_answers_alike(
    caching: Stack, trace: Path, tmp_path: Path
) -> None:
    workloads = [(str(trace), "--num-requests", str(NUM_SESSIONS * (NUM_TURNS + 1))), GENERATED]
    found = []
    for workload in workloads:
        run = replay(caching, *workload, *COMMON, timeout_s=WAIT_S)
        check_hits(run)
        check_spread(run)
        found.append(run)
    with serve(tmp_path, *FLAGS, "--no-enable-prefix-caching", **SETTINGS) as computing:
        for workload, cached in zip(workloads, found, strict=True):
            run = replay(computing, *workload, *COMMON, timeout_s=WAIT_S)
            assert run.result["kernelflume"]["cached_tokens"] == 0
            assert run.answers == cached.answers
            assert all(len(token_ids) > 1 for token_ids in run.answers.values())
