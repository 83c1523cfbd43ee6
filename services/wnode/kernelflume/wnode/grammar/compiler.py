"""Compiling grammars beside the engine: in processes of their own, each grammar within a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from kernelflume.core.errors import KernelFlumeError
from kernelflume.wnode.grammar.turns import Turns
from kernelflume.wnode.grammar.worker import CompilerWorker

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.core.grammar import Grammar

logger = logging.getLogger(__name__)

_NUM_WORKERS = 2
"""One, and one for others while it is busy with a tenant's slow grammar."""
_MAX_WAITING = 128
_MAX_WAITING_OF_ONE = 32
_MAX_CACHED = 256
_MAX_CACHED_BYTES = 64 * 1024 * 1024


class _Job:
    """One grammar that is compiled or waits to be, for all choices of a request that ask for it."""

    def __init__(self, task: asyncio.Task[bytes]) -> None:
        self.task = task
        self.num_callers = 0


class GrammarCompiler:
    """Compiles grammars for one model, one of a tenant at a time; used in one event loop.

    Processes start when they are needed: the second one when two tenants ask at once, the first one earlier
    where ``prepare`` was called.
    """

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
        self._workers = [
            CompilerWorker(folder, vocab_size=vocab_size, eos_token_ids=eos_token_ids, timeout_s=timeout_s)
            for _ in range(_NUM_WORKERS)
        ]
        self._turns = Turns(_NUM_WORKERS, max_waiting=_MAX_WAITING, max_waiting_of_one=_MAX_WAITING_OF_ONE)
        self._jobs: dict[tuple[str, Grammar], _Job] = {}
        self._compiled: OrderedDict[Grammar, bytes] = OrderedDict()
        self._num_bytes = 0
        self._preparing: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Begin to start the first process, so that the first grammar need not wait for all of that."""
        if self._preparing is None:
            self._preparing = asyncio.create_task(self._prepare())

    async def _prepare(self) -> None:
        try:
            # The lowest place is given first: a grammar that comes meanwhile waits for this very process.
            await asyncio.to_thread(self._workers[0].start)
        except KernelFlumeError as error:
            # Whoever asks for a grammar is told the same.
            logger.info("grammars are not prepared for: %s", error)

    async def compile(self, grammar: Grammar, tenant: str) -> bytes:
        """Return the compiled grammar, for ``MatcherSource.open``.

        Args:
            grammar: what to compile.
            tenant: whom it is for; slow ones of one tenant hold up that tenant.

        Raises:
            InvalidRequestError: it cannot be compiled, not in time, or not in a sane amount of memory.
            OverloadedError: too many others wait.
            UnavailableError: the process does not start.
        """
        found = self._cached(grammar)
        if found is not None:
            return found
        job = self._jobs.get((tenant, grammar))
        if job is None:
            job = self._jobs[tenant, grammar] = _Job(asyncio.create_task(self._compile(grammar, tenant)))
        job.num_callers += 1
        try:
            return await asyncio.shield(job.task)
        finally:
            job.num_callers -= 1
            if not job.num_callers:
                del self._jobs[tenant, grammar]
                job.task.cancel()

    async def _compile(self, grammar: Grammar, tenant: str) -> bytes:
        async with self._turns.turn(tenant) as place:
            found = self._cached(grammar)
            if found is not None:
                return found
            # Shielded, for whoever comes next must not talk into an answer that nobody waited for.
            work = asyncio.create_task(asyncio.to_thread(self._workers[place].compile, grammar))
            try:
                content = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                if work.exception() is None:
                    # Whoever asks again, as for a request that moves here a second time, has it at once.
                    self._keep(grammar, work.result())
                raise
            self._keep(grammar, content)
            return content

    async def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()
        if self._preparing is not None:
            # Its process was ended, so it has nothing to wait for.
            await asyncio.wait([self._preparing])

    def _cached(self, grammar: Grammar) -> bytes | None:
        found = self._compiled.get(grammar)
        if found is not None:
            self._compiled.move_to_end(grammar)
        return found

    def _keep(self, grammar: Grammar, content: bytes) -> None:
        # Two tenants may have had it compiled at the same time.
        self._num_bytes += len(content) - len(self._compiled.get(grammar, b""))
        self._compiled[grammar] = content
        while len(self._compiled) > _MAX_CACHED or (
            self._num_bytes > _MAX_CACHED_BYTES and len(self._compiled) > 1
        ):
            _, dropped = self._compiled.popitem(last=False)
            self._num_bytes -= len(dropped)
