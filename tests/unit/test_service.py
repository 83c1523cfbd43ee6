"""Running a service: exit codes, signals, log lines, and the end with the parent."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from kernelflume.runtime.logging import JsonFormatter
from kernelflume.runtime.service import new_incarnation
from kernelflume.runtime.tether import tethered

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 60.0
"""Bound of every wait for a process; a good run needs a fraction of a second."""

SERVICE = """
import asyncio, sys
from kernelflume.core import errors
from kernelflume.runtime.service import run
from kernelflume.runtime.settings import ServiceSettings

async def main(stop: asyncio.Event) -> None:
    {body}

run("sample", ServiceSettings(), main)
"""


def start(body: str) -> subprocess.Popen[str]:
    code = SERVICE.format(body=textwrap.indent(textwrap.dedent(body), "    ").strip())
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} did not end"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("pass", 0, None),
        ("raise errors.ConfigurationError('port: taken')", 2, "refused to start: port: taken"),
        ("raise errors.UnavailableError('no store')", 1, "stopped: no store"),
        ("raise RuntimeError('surprise')", 1, "stopped by an unexpected error"),
    ],
)
def test_the_exit_code_and_the_last_line_say_why(body: str, code: int, message: str | None) -> None:
    _, errors = (process := start(body)).communicate(timeout=WAIT_S)
    assert process.returncode == code
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["message"] for line in lines if line["level"] == "error"] == ([message] if message else [])


def test_an_unexpected_error_is_logged_with_its_traceback() -> None:
    _, errors = start("raise RuntimeError('surprise')").communicate(timeout=WAIT_S)
    assert "RuntimeError: surprise" in json.loads(errors.splitlines()[-1])["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    process = start(
        """
        print("up", flush=True)
        await stop.wait()
        print("cleaned", flush=True)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, output) == (0, "cleaned\n")
    assert json.loads(errors.splitlines()[0])["message"] == f"stopping on {number.name}"


def test_a_second_interrupt_ends_it_at_once_and_a_second_termination_does_not() -> None:
    process = start(
        """
        print("up", flush=True)
        await stop.wait()
        print("stopping", flush=True)
        await asyncio.sleep(3600)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == -signal.SIGINT
    process.communicate()


def test_a_tethered_command_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent_code = textwrap.dedent(
        """
        import subprocess, sys, time
        from kernelflume.runtime.tether import tethered
        print(subprocess.Popen(tethered(["sleep", "3600"])).pid, flush=True)
        time.sleep(3600)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    deadline = time.monotonic() + WAIT_S
    while psutil.Process(child).name() != "sleep":
        assert time.monotonic() < deadline, "the command was not started"
        time.sleep(0.01)
    parent.kill()
    parent.communicate()
    wait_until_gone(child)


def test_a_tether_to_a_parent_that_is_gone_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    command = tethered(["touch", str(mark)])
    command[command.index(str(os.getpid()))] = "1"
    assert subprocess.run(command, timeout=WAIT_S, check=False).returncode == 0
    assert not mark.exists()


def test_a_tether_names_a_command_that_cannot_run() -> None:
    done = subprocess.run(
        tethered(["/nowhere/command"]), timeout=WAIT_S, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "cannot run /nowhere/command: No such file or directory\n"


def test_incarnations_differ() -> None:
    assert len({new_incarnation() for _ in range(100)}) == 100


def test_a_log_line_is_one_json_object_with_its_extra_fields() -> None:
    record = logging.makeLogRecord({"name": "a.b", "levelname": "INFO", "msg": "got %d\nof é", "args": (3,)})
    record.node_id = "a-1"
    record._library_field = 7
    line = JsonFormatter("sample").format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("time").endswith("+00:00")
    assert fields == {
        "level": "info",
        "service": "sample",
        "logger": "a.b",
        "message": "got 3\nof é",
        "node_id": "a-1",
    }
