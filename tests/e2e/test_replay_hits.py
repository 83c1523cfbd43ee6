"""`kernelflume bench` against two weight nodes: every reusable token comes from the cache, and answers stay.

What can be found is what earlier requests computed: whole blocks of it, and of an answer all tokens but the
last, which was never an input. So a request may find less than the trace's own hit by what does not fill a
block, page_tokens - 1 tokens at most, and by no more.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from tests.stack import COMMAND, WAIT_S, Stack, serve

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

Requests = dict[tuple[str, int], dict[str, Any]]


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


def replay(stack: Stack, *workload: str) -> tuple[dict[str, Any], Requests]:
    """Run `kernelflume bench`; return its result, and each request by session and turn."""
    done = subprocess.run(
        [*COMMAND, "bench", *workload, *COMMON, "--base-url", stack.url, "--json", "--save-detailed"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["failed"] == result["kernelflume"]["dropped_past_context"] == 0
    requests = result["kernelflume"]["requests"]
    for line, sent_s, ttft_s in zip(requests, result["start_times"], result["ttfts"], strict=True):
        line |= {"sent_s": sent_s, "first_token_s": sent_s + ttft_s}
    return result, {(line["session"], line["turn"]): line for line in requests}


def check_hits(result: dict[str, Any], requests: Requests) -> None:
    """Compare what was found with what a cache without an end would hold, request by request."""
    # What all sessions begin with can be found once somebody has computed it: not by those that begin before.
    known_s = min(line["first_token_s"] for line in requests.values())
    num_exempt = 0
    for line in requests.values():
        expected = line["infinite_cache_tokens"] // PAGE_TOKENS * PAGE_TOKENS
        if line["turn"] == 0 and line["sent_s"] < known_s:
            num_exempt += expected
            assert line["cached_tokens"] <= expected
        else:
            assert line["cached_tokens"] == expected, line
    own = result["kernelflume"]
    num_rounded = (PAGE_TOKENS - 1) * len(requests)
    lacking = (own["infinite_cache_hit"] - own["prefix_hit"]) * result["total_input_tokens"]
    assert -0.5 <= lacking <= num_rounded + num_exempt + 0.5
    assert own["prefix_hit"] > 0.4  # it is a test of hits


def check_spread(requests: Requests) -> None:
    """Turns of some session ran on both weight nodes."""
    places: dict[str, set[str]] = {}
    for (name, _), line in requests.items():
        places.setdefault(name.partition("/")[0], set()).add(line["node"])
    assert set.union(*places.values()) == {"w-1", "w-2"}
    assert max(map(len, places.values())) == 2


def test_a_replay_finds_all_that_was_computed_before_and_answers_alike(
    caching: Stack, trace: Path, tmp_path: Path
) -> None:
    workloads = [(str(trace), "--num-requests", str(NUM_SESSIONS * (NUM_TURNS + 1))), GENERATED]
    found = []
    for workload in workloads:
        result, requests = replay(caching, *workload)
        check_hits(result, requests)
        check_spread(requests)
        found.append(requests)
    with serve(tmp_path, *FLAGS, "--no-enable-prefix-caching", **SETTINGS) as computing:
        for workload, cached in zip(workloads, found, strict=True):
            result, requests = replay(computing, *workload)
            assert result["kernelflume"]["cached_tokens"] == 0
            answers = {key: line["token_ids"] for key, line in requests.items()}
            assert answers == {key: line["token_ids"] for key, line in cached.items()}
            assert all(len(token_ids) > 1 for token_ids in answers.values())
