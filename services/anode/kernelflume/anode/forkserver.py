"""Attention nodes by fork: ``python -m kernelflume.anode.forkserver FD``, started by the process provider.

FD is this side's end of ``runtime.forkserver.make_pair``. All that a node needs is imported here, shell and
worker, and none of it is used: gRPC, NIXL and torch start their threads in the forked processes.
"""

from __future__ import annotations

import importlib
import itertools
import os
import socket
import sys
from typing import TYPE_CHECKING

from setproctitle import setproctitle

from kernelflume.anode.launch import WORKER_ENVIRONMENT, fork_worker
from kernelflume.runtime.forkserver import ForkServer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_LOADED = ("kernelflume.anode.shell", "kernelflume.anode.worker")
_ENVIRONMENT = {
    **WORKER_ENVIRONMENT,
    # Its threads would be there as soon as numpy is, and are of no use: torch computes with others.
    "OPENBLAS_NUM_THREADS": "1",
}


def run_node(arguments: list[str], lifeline: int) -> None:
    """Be an attention node, in a process just forked: fork the worker, then run the shell."""
    from kernelflume.anode.shell import run_shell  # noqa: PLC0415 - loaded by ``main``, after the environment

    title = _title(arguments)
    worker = fork_worker(lambda control: _run_worker(control, title), unneeded=lifeline)
    setproctitle(f"kernelflume.anode {title}")
    run_shell(arguments, worker, lifeline=lifeline)


def _run_worker(control: Connection, title: str) -> None:
    from kernelflume.anode.worker import run_worker  # noqa: PLC0415

    setproctitle(f"kernelflume.anode.worker {title}")
    run_worker(control)


def _title(arguments: list[str]) -> str:
    """Return the node's id; the other arguments may hold a password of the store."""
    return next((value for flag, value in itertools.pairwise(arguments) if flag == "--node-id"), "")


def main(file_descriptor: int) -> None:
    """Load a node's modules and fork nodes until the owner is gone."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for module in _LOADED:
        importlib.import_module(module)
    from kernelflume.transport.nixl import load_library  # noqa: PLC0415

    load_library()
    ForkServer(socket.socket(fileno=file_descriptor), run_node).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
