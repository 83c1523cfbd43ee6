"""`kernelflume profile` with the real services and the real model, and what its profile predicts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from tests.stack import COMMAND, WAIT_S, Stream, serve

from kernelflume.core.pipeline_profile import step_s
from kernelflume.core.profile import PerformanceProfile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(900)]

ROWS = (1, 8)
TOKEN_BYTES = 46_080
"""Of smollm2 in float32: 30 layers, 3 heads, 64 wide, key and value."""


def profile(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "profile", "smollm2", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=3 * WAIT_S,
        check=False,
    )


def test_a_quick_profile_is_plausible_and_predicts_the_steps_it_measured(tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    rows = ",".join(map(str, ROWS))
    done = profile("--quick", "--rows", rows, "--output", str(output), "--start-timeout", str(WAIT_S))
    assert done.returncode == 0, done.stderr
    found = PerformanceProfile.from_dict(json.loads(output.read_text()))
    assert found.num_layers == 30
    assert found.hardware
    for curve in (found.projection_s, found.post_attention_s, found.step_overhead_s, found.exchange_s):
        assert [row for row, _ in curve.points] == [float(row) for row in ROWS]
        assert all(0 <= seconds < 10 for _, seconds in curve.points)
    assert 1e8 < found.attention_bytes_per_s < 1e12
    assert 0.1 < found.prewarm_s < WAIT_S
    assert found.prefill_s is not None
    assert 0 < found.prefill_s.at(16) < found.prefill_s.at(256)
    assert found.further_node_share is not None
    assert found.further_node_share < 5

    # The summary tells the steps themselves, which the profile does not hold.
    lines = [line.split() for line in done.stdout.splitlines()]
    steps = {int(line[0]): float(line[1]) / 1e3 for line in lines if line and line[0] in rows.split(",")}
    assert tuple(steps) == ROWS
    ratios = [
        step_s(found, rows=count, most_held_bytes=40 * count * TOKEN_BYTES) / measured_s
        for count, measured_s in steps.items()
    ]
    # Both were measured on a machine that others may use too; benchmarks/ has how near they come without.
    assert all(0.25 < ratio < 4 for ratio in ratios), (ratios, done.stdout)


def test_what_cannot_be_had_is_said_before_anything_starts(tmp_path: Path) -> None:
    unwritable = profile("--output", str(tmp_path / "no" / "folder" / "profile.json"))
    assert unwritable.returncode == 2
    assert unwritable.stderr.startswith("kernelflume: --output: cannot write")
    small = profile("--attention-node-memory", "16MiB", "--output", str(tmp_path / "profile.json"))
    assert small.returncode == 2
    assert "--attention-node-memory: 16MiB is too small: 120MiB is the least" in small.stderr
    assert not (tmp_path / "profile.json").exists()
    assert profile("--rows", "1,x").returncode == 2


def test_more_rows_than_the_stack_decodes_together_are_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    output = tmp_path / "profile.json"
    refused = profile("--rows", "1,3", "--output", str(output), KERNELFLUME_WNODE_MAX_NUM_SEQS="2")
    assert refused.returncode == 2
    assert "--rows: 3 sequences are to decode together" in refused.stderr
    assert "at most 2 at once: max_num_seqs, which KERNELFLUME_WNODE_MAX_NUM_SEQS sets" in refused.stderr
    assert "steps of 1 row" not in refused.stderr
    assert not output.exists()


async def test_a_served_model_tells_its_own_profile(tmp_path: Path) -> None:
    """No file gives one: the scaler begins it from the leases, once sequences are long enough to time."""
    with serve(tmp_path, "--attention-nodes", "1") as stack:
        prompt = [5 + position % 1000 for position in range(2000)]
        streaming = asyncio.create_task(stack.stream(prompt, 5000, Stream()))
        begun: list[str] = []
        deadline = time.monotonic() + WAIT_S
        while not begun and time.monotonic() < deadline and not streaming.done():
            await asyncio.sleep(0.5)
            lines = (tmp_path / "scaler.log").read_text().splitlines()
            begun = [line for line in lines if "profile was begun from what the nodes measured" in line]
        streaming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await streaming
    [line] = begun
    message = json.loads(line)["message"]
    found = PerformanceProfile.from_dict(json.loads(message.partition(": ")[2]))
    assert (found.model_id, found.num_layers) == ("smollm2", 30)
    assert [row for row, _ in found.projection_s.points] == [1.0]
    assert 1e8 < found.attention_bytes_per_s < 1e12
    # The stages fill the step that the weight node told.
    assert 5e-3 < step_s(found, rows=1, most_held_bytes=2000 * TOKEN_BYTES) < 5
