"""`kernelflume serve` with the real services and the real model, from the start to the end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest
from tests.stack import WAIT_S, Stack, serve

from kernelflume.checkpoint.source import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all tests of this file but the last, which are in the order of a stack's life."""
    with serve(tmp_path_factory.mktemp("logs"), "--attention-nodes", "1") as served:
        yield served


def test_the_readme_s_examples_answer(stack: Stack) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code.replace("http://127.0.0.1:8000", stack.url)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 5

    [(path, body)] = re.findall(r"curl -s http://127.0.0.1:8000(\S+) .*?-d '(.*?)'", readme, re.DOTALL)
    answer = httpx.post(f"{stack.url}{path}", json=json.loads(body), timeout=WAIT_S).json()
    assert "gravity" in answer["choices"][0]["message"]["content"].lower()


async def test_scaling_up_and_down_changes_no_answer(stack: Stack) -> None:
    expected = await stack.generate("Gravity is", 8)
    assert len(expected) == 8
    for num_before, num_nodes in ((1, 2), (2, 1)):
        said = await asyncio.to_thread(stack.scale, num_nodes)
        assert said.startswith(f"succeeded: {num_before} -> {num_nodes}")
        assert len(await asyncio.to_thread(stack.nodes)) == num_nodes
        assert await stack.generate("Gravity is", 8) == expected


def test_an_attention_node_never_learns_where_the_weights_are(stack: Stack) -> None:
    folder = str(resolve("smollm2").path)
    nodes = stack.attention_node_processes()
    assert nodes
    for node in nodes:
        assert folder not in " ".join(node.cmdline())
        assert not [opened for opened in node.open_files() if opened.path.startswith(folder)]


def test_an_interrupt_ends_it_in_order(stack: Stack) -> None:
    descendants = stack.descendants
    stack.process.send_signal(signal.SIGINT)
    out, err = stack.process.communicate(timeout=WAIT_S)
    assert (stack.process.returncode, out) == (0, ""), err
    _, alive = psutil.wait_procs(descendants, timeout=5)  # until the last of them is reaped
    assert not alive
    logs = {path.stem for path in stack.log_dir.glob("*.log")}
    assert {"redis", "scaler", "wnode", "router", "a-1"} <= logs


def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    with serve(tmp_path) as served:  # which looks for processes that are left
        served.process.kill()
