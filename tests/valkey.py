"""A real Valkey (or Redis) server for tests: ``running_valkey()`` or the fixture ``valkey_url``."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelflume.runtime.service import free_port
from kernelflume.store.embedded import embedded_command

if TYPE_CHECKING:
    from collections.abc import Iterator

START_DEADLINE_S = 60.0
PATIENCE_S = 60.0
"""How long a test's own handle on a store waits for an answer: one that comes late is no outage."""


class ValkeyProcess:
    """One server process on a fixed port; it can be killed, paused and started again, each time empty."""

    def __init__(self, port: int, directory: Path, program: str | None = None) -> None:
        self.port = port
        self._command = embedded_command(port, directory)
        if program is not None:
            self._command[0] = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._command[0]} ended with code {self._process.returncode}")
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"{self._command[0]} does not answer on port {self.port}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it hang: connections are accepted by the kernel and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running_valkey(program: str | None = None) -> Iterator[ValkeyProcess]:
    """Run a server for the length of the block; ``program`` is another one than the embedded default."""
    with tempfile.TemporaryDirectory(prefix="valkey-") as directory:
        server = ValkeyProcess(free_port(), Path(directory), program)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def server_programs() -> list[str | None]:
    """Return the programs to test against: the embedded one and, where installed, Redis."""
    return [None, *filter(None, [shutil.which("redis-server")])]


@pytest.fixture
def valkey() -> Iterator[ValkeyProcess]:
    with running_valkey() as server:
        yield server


@pytest.fixture
def valkey_url(valkey: ValkeyProcess) -> str:
    """URL of an empty server that nothing else uses."""
    return valkey.url
