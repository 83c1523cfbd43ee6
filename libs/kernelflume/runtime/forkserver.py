"""A process that has loaded what a service needs, and forks one on demand: a start without the imports.

It speaks with its owner over a Unix socket of whole messages, one request at a time, and is nothing but one
thread that waits for the next: no event loop, no channel, no kernel thread is there when it forks, which it
checks each time. What it forked has two descriptors of the owner's: the log that it writes to, and the end of
a pipe, the *lifeline*, that reports the owner's end. So it goes on when the fork server itself is gone.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from kernelflume.runtime.forked import ForkedProcess, num_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_MESSAGE_BYTES = 64 * 1024
_MAX_DESCRIPTORS = 2
_MAX_CODES = 1024
"""Exit codes kept for an owner that may never ask for them."""
_REAP_INTERVAL_S = 1.0

Message = dict[str, Any]


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return the owner's and the server's end of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send a message.

    Raises:
        OSError: the other end is gone, or the message is too long.
    """
    socket.send_fds(end, [json.dumps(message).encode()], list(descriptors))


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """Return the next message and its descriptors, which the caller owns; None when the other end is closed.

    Raises:
        OSError: nothing can be received, such as BlockingIOError.
    """
    data, descriptors, _, _ = socket.recv_fds(end, _MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
    return (json.loads(data), descriptors) if data else None


class ForkServer:
    """The server's side. It is asked ``{"fork": [arguments]}`` or ``{"exit_code": pid}``, each with an id."""

    def __init__(self, control: socket.socket, main: Callable[[list[str], int], None]) -> None:
        """Make a server.

        Args:
            control: this side's end of ``make_pair``.
            main: what a forked process runs: arguments, and the descriptor of its lifeline.
        """
        self._control = control
        self._main = main
        self._children: dict[int, ForkedProcess] = {}
        self._codes: dict[int, int] = {}

    def run(self) -> None:
        """Serve until the owner closes the connection.

        Raises:
            SystemExit: this process cannot fork safely.
        """
        if (unsafe := _unsafe()) is not None:
            raise SystemExit(f"this process cannot serve forks: {unsafe}")
        # What was loaded stays for good: a collection in a child must not touch, and so copy, its pages.
        gc.collect()
        gc.freeze()
        # A Ctrl-C reaches every process of the terminal; the owner ends this one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        send(self._control, {"id": 0})
        self._control.settimeout(_REAP_INTERVAL_S)
        while True:
            try:
                received = receive(self._control)
            except TimeoutError:
                self._reap()
                continue
            except ConnectionResetError:
                return
            if received is None:
                return
            request, descriptors = received
            self._reap()
            try:
                self._answer(request, descriptors)
            except BrokenPipeError:
                return
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _answer(self, request: Message, descriptors: list[int]) -> None:
        if "exit_code" in request:
            code = self._codes.pop(request["exit_code"], None)
            send(self._control, {"id": request["id"], "exit_code": code})
            return
        if (unsafe := _unsafe()) is not None:
            send(self._control, {"id": request["id"], "error": unsafe})
            return
        log, lifeline = descriptors
        try:
            child = ForkedProcess(lambda: self._run_child(request["fork"], log, lifeline))
        except OSError as error:
            send(self._control, {"id": request["id"], "error": f"cannot fork: {error.strerror}"})
            return
        self._children[child.pid] = child
        # Opened before the child can be reaped, it is that child's whatever becomes of the number.
        handle = os.pidfd_open(child.pid)
        try:
            send(self._control, {"id": request["id"], "pid": child.pid}, [handle])
        finally:
            os.close(handle)

    def _run_child(self, arguments: list[str], log: int, lifeline: int) -> None:
        self._control.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(log, stream)
        os.close(log)
        self._main(arguments, lifeline)

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[pid]
                self._codes[pid] = code
        while len(self._codes) > _MAX_CODES:
            del self._codes[next(iter(self._codes))]


def _unsafe() -> str | None:
    """Return why a fork of this process could hang, or None."""
    count = num_threads()
    return None if count == 1 else f"it has {count} threads, whose locks a fork would leave locked"
