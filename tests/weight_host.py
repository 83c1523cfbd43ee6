"""The host of a weight node on Ray in its own process, over a stand-in for the weight node."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 120.0
CLUSTER = "test"
FAKE_WNODE = str(Path(__file__).with_name("fake_wnode.py"))


class WeightHost:
    """A host that runs, and what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self.process = process
        self._path = path

    def lines(self) -> list[str]:
        """What was said so far, by the host and by the weight node."""
        return [
            str(json.loads(line)["message"]) if line.startswith("{") else line
            for line in self._path.read_text(encoding="utf-8").splitlines()
        ]

    def wait_line(self, start: str) -> dict[str, str]:
        """Wait for the weight node's line that begins so and return what it tells."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for line in self.lines():
                if line.startswith(f"{start} "):
                    return dict(word.split("=", 1) for word in line.split()[1:])
            assert self.process.poll() is None, self.lines()
            time.sleep(0.05)
        raise AssertionError(self.lines())

    def wait_weight_node(self) -> tuple[psutil.Process, str]:
        """Wait for the weight node and return its process and the address that it is to serve at."""
        told = self.wait_line("up")
        return psutil.Process(int(told["pid"])), told["at"]

    def wait_end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the last line."""
        code = self.process.wait(WAIT_S)
        return code, self.lines()[-1]


@contextlib.contextmanager
def weight_host(
    folder: Path, ray_address: str, *flags: str, fake: tuple[str, ...] = (), **environment: str
) -> Iterator[WeightHost]:
    """Run a host with a weight node that behaves as ``fake`` says."""
    command = [sys.executable, FAKE_WNODE, *fake]
    told = [
        *("--ray.address", ray_address, "--ray.namespace", "tests", "--cluster", CLUSTER),
        *("--log-dir", str(folder / "logs"), "--model", str(folder)),
        *("--weight-node-command", json.dumps(command)),
    ]
    path = folder / "host.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kernelflume.scaler.weight_host", *told, *flags],
            stdout=log,
            stderr=log,
            env=os.environ | environment,
        )
    try:
        yield WeightHost(process, path)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(WAIT_S)
