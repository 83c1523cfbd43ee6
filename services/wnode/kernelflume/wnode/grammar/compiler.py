"""Compiling grammars beside the engine: in a process of its own, one by one, each within a deadline."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import multiprocessing
import os
import signal
from collections import OrderedDict
from typing import TYPE_CHECKING

from kernelflume.core.errors import InvalidRequestError, OverloadedError, UnavailableError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from kernelflume.core.grammar import Grammar

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
"""Importing what compiles takes seconds on an idle machine."""
_MAX_WAITING = 32
_MAX_CACHED = 256
_MAX_CACHED_BYTES = 64 * 1024 * 1024


class GrammarCompiler:
    """Compiles grammars for one model; used in one event loop. The process starts with the first grammar."""

    def __init__(
        self, folder: Path, *, vocab_size: int, eos_token_ids: tuple[int, ...], timeout_s: float
    ) -> None:
        """Make a compiler; nothing is started.

        Args:
            folder: of the model, with its tokenizer.json.
            vocab_size: logits of a row.
            eos_token_ids: tokens that may follow a complete text.
            timeout_s: longest time that one grammar may take.
        """
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._compiled: OrderedDict[Grammar, bytes] = OrderedDict()
        self._num_bytes = 0

    async def compile(self, grammar: Grammar) -> bytes:
        """Return the compiled grammar, for ``MatcherSource.open``.

        Raises:
            InvalidRequestError: it cannot be compiled, not in time, or not in a sane amount of memory.
            OverloadedError: too many others wait.
            UnavailableError: the process does not start.
        """
        found = self._cached(grammar)
        if found is not None:
            return found
        if self._num_waiting >= _MAX_WAITING:
            raise OverloadedError(f"{self._num_waiting} grammars wait to be compiled", retry_after_s=2.0)
        self._num_waiting += 1
        try:
            async with self._turn:
                found = self._cached(grammar)
                if found is not None:
                    return found
                # Shielded, for whoever comes next must not talk into an answer that nobody waited for.
                work = asyncio.create_task(asyncio.to_thread(self._compile, grammar))
                try:
                    content = await asyncio.shield(work)
                except asyncio.CancelledError:
                    await asyncio.wait([work])
                    work.exception()
                    raise
                self._keep(grammar, content)
                return content
        finally:
            self._num_waiting -= 1

    async def close(self) -> None:
        """End the process."""
        self._kill()

    def _cached(self, grammar: Grammar) -> bytes | None:
        found = self._compiled.get(grammar)
        if found is not None:
            self._compiled.move_to_end(grammar)
        return found

    def _keep(self, grammar: Grammar, content: bytes) -> None:
        self._compiled[grammar] = content
        self._num_bytes += len(content)
        while len(self._compiled) > _MAX_CACHED or (
            self._num_bytes > _MAX_CACHED_BYTES and len(self._compiled) > 1
        ):
            _, dropped = self._compiled.popitem(last=False)
            self._num_bytes -= len(dropped)

    def _compile(self, grammar: Grammar) -> bytes:
        connection = self._connect()
        try:
            connection.send(grammar)
            if not connection.poll(self._timeout_s):
                self._kill()
                raise InvalidRequestError(
                    f"the {grammar.kind} is too complex: it does not compile within {self._timeout_s:g} s",
                    parameter=grammar.parameter,
                )
            answer: bytes | str = connection.recv()
        except (EOFError, OSError):
            logger.warning(
                "the grammar compiler died of a %s of %d characters", grammar.kind, len(grammar.text)
            )
            self._kill()
            raise InvalidRequestError(
                f"the {grammar.kind} cannot be compiled", parameter=grammar.parameter
            ) from None
        if isinstance(answer, str):
            raise InvalidRequestError(answer, parameter=grammar.parameter)
        return answer

    def _connect(self) -> Connection:
        if self._connection is not None and self._process is not None and self._process.is_alive():
            return self._connection
        self._kill()
        if importlib.util.find_spec("xgrammar") is None:
            raise InvalidRequestError(
                "structured output needs the package xgrammar, which this server does not have"
            )
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(theirs, self._folder, self._vocab_size, self._eos_token_ids, os.getpid()),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        try:
            started = connection.poll(_START_TIMEOUT_S) and connection.recv() == b""
        except (EOFError, OSError):
            started = False
        if not started:
            connection.close()
            self._kill()
            raise UnavailableError("the grammar compiler did not start")
        self._connection = connection
        return connection

    def _kill(self) -> None:
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
