"""A second process with its own NIXL agent, told what to do over a pipe: ``python -m tests.nixl_peer FD``."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from kernelflume.transport.base import Write
from kernelflume.transport.memory import allocate
from kernelflume.transport.nixl import NixlTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelflume.core.regions import MemoryRegion

NUM_BYTES = 1 << 20
ANSWER_DEADLINE_S = 120.0


@dataclass
class Peer:
    """The test's end of the pipe."""

    name: str
    process: subprocess.Popen[bytes]
    control: Connection
    metadata: bytes
    region: MemoryRegion

    def tell(self, command: str, *arguments: Any) -> Any:
        """Have the peer do something and return its answer."""
        self.control.send((command, *arguments))
        if not self.control.poll(ANSWER_DEADLINE_S):
            raise TimeoutError(f"{self.name} did not answer to {command}")
        return self.control.recv()

    def kill(self) -> None:
        """End the process as a crash would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running_peer(name: str, error_handling: str) -> Iterator[Peer]:
    ours, theirs = multiprocessing.Pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.nixl_peer", str(theirs.fileno()), name, error_handling],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    try:
        if not ours.poll(ANSWER_DEADLINE_S):
            raise TimeoutError(f"{name} did not start")
        metadata, region = ours.recv()
        yield Peer(name, process, ours, metadata, region)
    finally:
        process.kill()
        process.wait()
        ours.close()


def main(file_descriptor: int, name: str, error_handling: str) -> None:
    """Poll all the time, as a node's step loop does, and serve commands in between."""
    control = Connection(file_descriptor)
    transport = NixlTransport(name, error_handling=error_handling)
    memory = allocate(NUM_BYTES)
    region = transport.register(memory)
    control.send((transport.metadata(), region))
    notices: list[tuple[str, bytes, bytes]] = []
    plan = None
    while True:
        # Read at the very moment of the notice: the data must be there already.
        notices.extend((peer, payload, memory[:64].tobytes()) for peer, payload in transport.poll())
        if not control.poll():
            continue
        try:
            command, *arguments = control.recv()
        except EOFError:
            return
        match command:
            case "connect":
                peer, metadata, remote = arguments
                transport.connect(peer, metadata)
                plan = transport.plan_writes(peer, [Write(region, 0, remote, 0, NUM_BYTES)])
                control.send(None)
            case "fill":
                memory[:] = arguments[0]
                control.send(None)
            case "write":
                assert plan is not None
                transport.post(plan, 0, arguments[0])
                while not transport.is_done(plan, 0):
                    transport.poll()
                control.send(None)
            case "notices":
                control.send(notices)
                notices = []
            case "read":
                control.send(memory.tobytes())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
