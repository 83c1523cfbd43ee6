"""The supervisor of `kernelflume serve` over real processes: a real store and stub services."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.redis

WAIT_S = 120.0
"""Bound of every wait; a good run needs a few seconds."""
DRIVER = str(Path(__file__).with_name("stub_stack.py"))


class RunningStack:
    """A stack under test and every process that it was seen to have."""

    def __init__(self, log_dir: Path, behaviours: dict[str, list[str]], **task: Any) -> None:
        self.log_dir = log_dir
        arguments = {
            "log_dir": str(log_dir),
            "ports": [free_port() for _ in range(4)],
            "behaviours": behaviours,
            **task,
        }
        self.process = subprocess.Popen(
            [sys.executable, DRIVER, json.dumps(arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.descendants: list[psutil.Process] = []

    def wait_ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready: "), self.process.communicate()[1]
        self.descendants = psutil.Process(self.process.pid).children(recursive=True)
        return line

    def wait_end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, err

    def assert_nothing_left(self) -> None:
        _, alive = psutil.wait_procs(self.descendants, timeout=WAIT_S)
        assert not alive
        assert not [
            p for p in psutil.process_iter(["cmdline"]) if str(self.log_dir) in (p.info["cmdline"] or ())
        ]

    def part(self, text: str) -> psutil.Process:
        return next(p for p in self.descendants if text in " ".join(p.cmdline()))


def wait_text(path: Path, text: str) -> None:
    """Wait until a file is there and has some text."""
    deadline = time.monotonic() + WAIT_S
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    stacks: list[RunningStack] = []

    def start_stack(behaviours: dict[str, list[str]] | None = None, **task: Any) -> RunningStack:
        stacks.append(RunningStack(tmp_path, behaviours or {}, **task))
        return stacks[-1]

    yield start_stack
    for stack in stacks:
        if stack.process.poll() is None:
            stack.process.kill()
            stack.process.communicate()
        stack.assert_nothing_left()


def test_it_says_once_that_it_is_ready_and_ends_in_order(start: Any, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    stack = start({name: [f"mark={marks}"] for name in ("scaler", "wnode", "router")})
    line = stack.wait_ready()
    assert "http://127.0.0.1:" in line
    assert {path.name for path in tmp_path.glob("*.log")} == {
        "redis.log",
        "scaler.log",
        "wnode.log",
        "router.log",
    }
    stack.process.send_signal(signal.SIGINT)
    code, out, err = stack.wait_end()
    assert (code, out) == (0, "")
    assert marks.read_text().split() == ["http", "grpc", "scaler"]
    assert "router ready after" in err


def test_sigterm_ends_it_too(start: Any) -> None:
    stack = start()
    stack.wait_ready()
    stack.process.terminate()
    assert stack.wait_end()[0] == 0
    stack.assert_nothing_left()


def test_a_part_that_cannot_start_is_named_with_its_reason_and_log(start: Any, tmp_path: Path) -> None:
    code, out, err = start({"wnode": ["fail"]}).wait_end()
    assert (code, out) == (1, "")
    assert "kernelflume: the wnode ended with exit code 1: stopped: the stub cannot work" in err
    assert f"its log: {tmp_path / 'wnode.log'}" in err


def test_a_part_that_breaks_later_ends_the_whole_stack(start: Any, tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    stack = start({"wnode": [f"fail-on={trigger}"]})
    stack.wait_ready()
    trigger.touch()
    code, _, err = stack.wait_end()
    assert code == 1
    assert "the wnode ended with exit code 1: stopped: the stub broke" in err
    stack.assert_nothing_left()


def test_a_part_that_others_stand_in_for_is_started_again_a_few_times(start: Any, tmp_path: Path) -> None:
    stack = start(replaceable=["wnode"])
    stack.wait_ready()
    supervisor, wnode = psutil.Process(stack.process.pid), stack.part("grpc")
    log_size = (tmp_path / "wnode.log").stat().st_size
    for _ in range(4):
        wnode.kill()
        psutil.wait_procs([wnode], timeout=WAIT_S)
        deadline = time.monotonic() + WAIT_S
        found: list[psutil.Process] = []
        while not found and stack.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
            with contextlib.suppress(psutil.NoSuchProcess):
                found = [p for p in supervisor.children(recursive=True) if "grpc" in p.cmdline()]
        if found:
            [wnode] = found
            stack.descendants.append(wnode)
    code, _, err = stack.wait_end()
    assert code == 1
    assert err.count("it is started again") == 3
    assert err.count("the wnode was ended by SIGKILL") == 4
    assert (tmp_path / "wnode.log").stat().st_size >= log_size
    stack.assert_nothing_left()


def test_a_part_that_is_killed_is_told_by_the_signal(start: Any) -> None:
    stack = start()
    stack.wait_ready()
    stack.part("valkey-server").kill()
    code, _, err = stack.wait_end()
    assert code == 1
    assert "the store was ended by SIGKILL; it last logged: " in err
    stack.assert_nothing_left()


def test_attention_nodes_that_cannot_start_are_told_in_the_scaler_s_words(start: Any) -> None:
    code, _, err = start({"scaler": ["no-nodes"]}).wait_end()
    assert code == 1
    assert "attention nodes could not be started: a-1 ran out of memory" in err


def test_a_start_that_takes_too_long_says_what_is_missing(start: Any) -> None:
    code, _, err = start({"router": ["never-ready"]}, only=["router"], start_timeout_s=5.0).wait_end()
    assert code == 1
    assert "the router was not ready within 5 s: " in err
    assert "its log: " in err


def test_an_interrupt_during_the_start_ends_it(start: Any, tmp_path: Path) -> None:
    stack = start({"wnode": ["never-ready"]})
    wait_text(tmp_path / "wnode.log", "")
    stack.process.send_signal(signal.SIGINT)
    code, out, err = stack.wait_end()
    assert (code, out) == (130, "")
    assert "interrupted before it was ready" in err


def test_a_part_that_ignores_sigterm_is_killed_with_what_it_started(start: Any, tmp_path: Path) -> None:
    child_file = tmp_path / "child"
    stack = start({"wnode": ["stubborn", f"child={child_file}"]}, grace_s=0.5)
    stack.wait_ready()
    child = psutil.Process(int(child_file.read_text()))
    stack.process.terminate()
    assert stack.wait_end()[0] == 0
    assert not child.is_running()
    stack.assert_nothing_left()


def test_a_second_interrupt_ends_it_at_once(start: Any, tmp_path: Path) -> None:
    stack = start({"router": ["stubborn"]}, grace_s=3600.0)
    stack.wait_ready()
    stack.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        stack.process.wait(0.5)
    wait_text(tmp_path / "router.log", "not me")  # the first one is heeded: two at once may come as one
    stack.process.send_signal(signal.SIGINT)
    assert stack.wait_end()[0] == 0
    stack.assert_nothing_left()


def test_no_process_outlives_a_killed_supervisor(start: Any) -> None:
    stack = start()
    stack.wait_ready()
    stack.process.kill()
    stack.process.communicate()
    stack.assert_nothing_left()
