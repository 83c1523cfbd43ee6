"""`kernelflume serve` with the real services and the real model, from the start to the end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from kernelflume.checkpoint.source import resolve
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

WAIT_S = 240.0
COMMAND = [sys.executable, "-m", "kernelflume.cli.main"]


class Stack:
    """A served model: where it listens, and what processes it has."""

    def __init__(self, process: subprocess.Popen[str], line: str, log_dir: Path) -> None:
        self.process = process
        self.log_dir = log_dir
        self.url = line.split()[1]
        self.scaler = line.partition("(scaler ")[2].partition(",")[0]
        self.descendants = psutil.Process(process.pid).children(recursive=True)

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [*COMMAND, *arguments, "--scaler", self.scaler],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def complete(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        answer = httpx.post(
            f"{self.url}/v1/completions",
            json={"model": "smollm2", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0},
            timeout=WAIT_S,
        )
        assert answer.status_code == 200, answer.text
        fields: dict[str, Any] = answer.json()
        return fields

    def active(self) -> list[str]:
        nodes = json.loads(self.command("status", "--json"))["attention_nodes"]
        return [node["node_id"] for node in nodes if node["state"] == "active"]

    def node_processes(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if " kernelflume.anode" in " ".join(child.cmdline())]


@contextmanager
def serving(log_dir: Path) -> Iterator[Stack]:
    """Serve the small model until the block ends; whatever happened in it, no process may be left."""
    try:
        resolve("smollm2")
    except ConfigurationError as error:
        pytest.skip(str(error))
    flags = {
        "--port": "0",
        "--scaler-port": "0",
        "--attention-nodes": "1",
        "--attention-node-memory": "128MiB",
        "--log-dir": str(log_dir),
        "--start-timeout": str(WAIT_S),
    }
    process = subprocess.Popen(
        [*COMMAND, "serve", "smollm2", *(word for flag in flags.items() for word in flag)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(process.communicate()[1])
    served = Stack(process, line, log_dir)
    yield served
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(served.descendants, timeout=WAIT_S)
    assert not alive


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all tests of this file but the last, which are in the order of a stack's life."""
    with serving(tmp_path_factory.mktemp("logs")) as served:
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


def test_scaling_up_and_down_changes_no_answer(stack: Stack) -> None:
    first = stack.complete("Gravity is", 8)
    assert first["usage"]["completion_tokens"] == 8
    assert stack.active() == ["a-1"]

    assert stack.command("scale", "--attention-nodes", "2", "--wait").startswith("succeeded: 1 -> 2")
    assert len(stack.active()) == 2
    assert stack.complete("Gravity is", 8)["choices"][0]["text"] == first["choices"][0]["text"]

    assert stack.command("scale", "--attention-nodes", "1", "--wait").startswith("succeeded: 2 -> 1")
    assert len(stack.active()) == 1
    assert stack.complete("Gravity is", 8)["choices"][0]["text"] == first["choices"][0]["text"]


def test_an_attention_node_never_learns_where_the_weights_are(stack: Stack) -> None:
    folder = str(resolve("smollm2").path)
    nodes = stack.node_processes()
    assert nodes
    for node in nodes:
        assert folder not in " ".join(node.cmdline())
        assert not [opened for opened in node.open_files() if opened.path.startswith(folder)]


def test_an_interrupt_ends_it_in_order(stack: Stack) -> None:
    stack.process.send_signal(signal.SIGINT)
    out, err = stack.process.communicate(timeout=WAIT_S)
    assert (stack.process.returncode, out) == (0, ""), err
    _, alive = psutil.wait_procs(stack.descendants, timeout=0)
    assert not alive
    logs = {path.stem for path in stack.log_dir.glob("*.log")}
    assert {"redis", "scaler", "wnode", "router", "a-1"} <= logs


def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.process.kill()
