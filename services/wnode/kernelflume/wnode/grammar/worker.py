"""One process that compiles grammars, from the side of those who ask it."""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import signal
import threading
from typing import TYPE_CHECKING

from kernelflume.core.errors import InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from kernelflume.core.grammar import Grammar

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
"""Importing what compiles takes seconds on an idle machine."""


class CompilerWorker:
    """Compiles one grammar at a time.

    The process starts with the first, if not before, and anew once one has killed it.
    """

    def __init__(
        self, folder: Path, *, vocab_size: int, eos_token_ids: tuple[int, ...], timeout_s: float
    ) -> None:
        """Make a worker; nothing is started. Arguments are those of ``GrammarCompiler``."""
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._timeout_s = timeout_s
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._is_closed = False
        self._busy = threading.Lock()
        """Held while the process starts or compiles."""

    def start(self) -> None:
        """Start the process, if it does not run. Blocks.

        Raises:
            InvalidRequestError: what it needs is not installed.
            UnavailableError: it does not start.
        """
        with self._busy:
            self._connect()

    def compile(self, grammar: Grammar) -> bytes:
        """Return the compiled grammar. Blocks.

        Raises:
            InvalidRequestError: it cannot be compiled, not in time, or not in a sane amount of memory.
            UnavailableError: the process does not start.
        """
        with self._busy:
            return self._compile(grammar)

    def _compile(self, grammar: Grammar) -> bytes:
        connection = self._connect()
        try:
            connection.send(grammar)
            if not connection.poll(self._timeout_s):
                self._stop()
                raise InvalidRequestError(
                    f"the {grammar.kind} is too complex: it does not compile within {self._timeout_s:g} s",
                    parameter=grammar.parameter,
                )
            answer: bytes | str = connection.recv()
        except (EOFError, OSError):
            logger.warning(
                "the grammar compiler died of a %s of %d characters", grammar.kind, len(grammar.text)
            )
            self._stop()
            raise InvalidRequestError(
                f"the {grammar.kind} cannot be compiled", parameter=grammar.parameter
            ) from None
        if isinstance(answer, str):
            raise InvalidRequestError(answer, parameter=grammar.parameter)
        return answer

    def _connect(self) -> Connection:
        if self._connection is not None and self._process is not None and self._process.is_alive():
            return self._connection
        self._stop()
        if importlib.util.find_spec("xgrammar") is None:
            raise InvalidRequestError(
                "structured output needs the package xgrammar, which this server does not have"
            )
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        process = context.Process(
            target=_serve,
            args=(theirs, self._folder, self._vocab_size, self._eos_token_ids, os.getpid()),
            daemon=True,
        )
        process.start()
        self._process = process
        theirs.close()
        if self._is_closed:
            self._stop()
        try:
            started = connection.poll(_START_TIMEOUT_S) and connection.recv() == b""
        except (EOFError, OSError):
            started = False
        if not started:
            connection.close()
            self._stop()
            raise UnavailableError("the grammar compiler did not start")
        self._connection = connection
        return connection

    def close(self) -> None:
        """End the process, also one that just starts, for good."""
        self._is_closed = True
        self._stop()

    def _stop(self) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.join()


def _serve(
    connection: Connection, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...], parent_pid: int
) -> None:
    # A Ctrl-C reaches every process of the terminal; the shell ends this one in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from kernelflume.wnode.grammar.compiler_process import serve  # noqa: PLC0415 - torch stays out of the shell

    serve(connection, folder, vocab_size, eos_token_ids, parent_pid)
