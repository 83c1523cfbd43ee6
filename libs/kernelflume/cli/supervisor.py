"""Starting the parts of a stack in order, watching them, and ending them in the opposite order."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
from typing import TYPE_CHECKING

import psutil

from kernelflume.cli.process import ManagedProcess, log_path
from kernelflume.core.errors import DeadlineError, KernelFlumeError, UnavailableError
from kernelflume.runtime.clock import Deadline
from kernelflume.runtime.logfile import last_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from kernelflume.cli.parts import PartSpec
    from kernelflume.cli.progress import StartReporter
    from kernelflume.cli.readiness import Readiness
    from kernelflume.runtime.clock import Clock

_PR_SET_CHILD_SUBREAPER = 36
_PROBE_INTERVAL_S = 0.1
_REAP_S = 2.0
_KILL_ROUNDS = 3
_MAX_REPLACEMENTS = 3
_REPLACEMENT_WINDOW_S = 600.0
"""A part that ends more often within this time would do so for ever."""


def _say_nothing(text: str) -> None:
    del text


class StackInterruptedError(KernelFlumeError):
    """A person asked the stack to end before it was ready."""


class Supervisor:
    """Owner of every process of one stack. Use it in the event loop of the main thread."""

    def __init__(
        self,
        *,
        log_dir: Path,
        readiness: Readiness,
        clock: Clock,
        tell: Callable[[str], object] = _say_nothing,
    ) -> None:
        """Own nothing yet.

        Args:
            log_dir: folder of the log files.
            readiness: asks parts whether they are ready.
            clock: for deadlines.
            tell: says to a person what happens while the stack runs.
        """
        self._log_dir = log_dir
        self._readiness = readiness
        self._clock = clock
        self._tell = tell
        self._replaced_at: dict[str, list[float]] = {}
        """Times at which each part was started again, of late."""
        self._parts: list[ManagedProcess] = []
        self._stop_asked = asyncio.Event()
        self._kill_asked = asyncio.Event()

    def ask_stop(self) -> None:
        """End the stack: in order when asked once, at once when asked again."""
        if self._stop_asked.is_set():
            self._kill_asked.set()
            for part in self._parts:
                part.kill()
        self._stop_asked.set()

    async def start(
        self, stages: Sequence[Sequence[PartSpec]], reporter: StartReporter, *, timeout_s: float
    ) -> None:
        """Start every part, stage by stage, and wait until all are ready.

        Raises:
            UnavailableError: a part ended or cannot become ready; the message says which, why, and its log.
            DeadlineError: a part was not ready in time; the message says what is missing.
            StackInterruptedError: ``ask_stop`` was called.
        """
        deadline = Deadline(self._clock, timeout_s)
        for stage in stages:
            for spec in stage:
                reporter.working(spec.name, spec.title)
                self._parts.append(await ManagedProcess.start(spec, self._log_dir))
            ready = asyncio.gather(*(self._wait_ready(spec, reporter, deadline) for spec in stage))
            if (ended := await self._watch(ready)) is not None:
                raise UnavailableError(explain_exit(ended.spec, ended.exit_code or 0, ended.log_path))
            if self._stop_asked.is_set():
                raise StackInterruptedError("interrupted before it was ready")

    async def wait_end(self) -> None:
        """Wait until ``ask_stop`` is called.

        A part that others stand in for is started again when it ends by itself, a few times.

        Raises:
            UnavailableError: another part ended, or such a part once too often; the message says which, why,
                and its log.
        """
        while (ended := await self._watch(self._stop_asked.wait())) is not None:
            explained = explain_exit(ended.spec, ended.exit_code or 0, ended.log_path)
            if not (ended.spec.is_replaceable and self._may_replace(ended.spec.name)):
                raise UnavailableError(explained)
            self._tell(f"{explained}\nit is started again")
            self._parts[self._parts.index(ended)] = await ManagedProcess.start(
                ended.spec, self._log_dir, again=True
            )

    def _may_replace(self, name: str) -> bool:
        now = self._clock.now()
        latest = [at for at in self._replaced_at.get(name, []) if now - at < _REPLACEMENT_WINDOW_S]
        self._replaced_at[name] = [*latest, now]
        return len(latest) < _MAX_REPLACEMENTS

    async def stop(self) -> None:
        """End all parts, the last started first, each within its grace, and leave no process behind."""
        for part in reversed(self._parts):
            within_s = 0.0 if self._kill_asked.is_set() else part.spec.stop_grace_s
            await part.stop(within_s=within_s)
        await asyncio.to_thread(kill_descendants)

    async def _wait_ready(self, spec: PartSpec, reporter: StartReporter, deadline: Deadline) -> None:
        began = self._clock.now()
        for probe, address in spec.probes:
            while (missing := await self._readiness.missing(probe, address)) is not None:
                if deadline.expired:
                    raise DeadlineError(explain_delay(spec, deadline, missing, log_path(self._log_dir, spec)))
                reporter.working(spec.name, spec.title, missing)
                await asyncio.sleep(_PROBE_INTERVAL_S)
        reporter.ready(spec.name, spec.title, self._clock.now() - began)

    async def _watch(self, goal: Awaitable[object]) -> ManagedProcess | None:
        """Wait for ``goal``, but no longer than until ``ask_stop`` or until a part ends, which is returned.

        Raises:
            KernelFlumeError: as ``goal`` does.
        """
        reached = asyncio.ensure_future(goal)
        stop = asyncio.ensure_future(self._stop_asked.wait())
        exits = {asyncio.ensure_future(part.wait_exit()): part for part in self._parts}
        tasks = {reached, stop, *exits}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                return None
            # In order of their start: when one part took others with it, it comes first.
            for ended, part in exits.items():
                if ended.done():
                    return part
            reached.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return None


def explain_exit(spec: PartSpec, exit_code: int, path: Path) -> str:
    """Say which part ended, how, why as far as its log knows, and where that is."""
    logged = last_error(path)
    if exit_code < 0:
        # What is killed has no say: the end of its log is news of before, not the reason.
        said = f"was ended by {signal.Signals(-exit_code).name}; it last logged: {logged or 'nothing'}"
    else:
        said = f"ended with exit code {exit_code}: {logged or 'it logged nothing'}"
    return f"the {spec.title} {said}\nits log: {path}"


def explain_delay(spec: PartSpec, deadline: Deadline, missing: str, path: Path) -> str:
    """Say which part is late, what is missing, what it logged last, and where."""
    logged = last_error(path)
    return (
        f"the {spec.title} was not ready within {deadline.seconds:g} s: {missing}\n"
        f"{f'it logged: {logged}{chr(10)}' if logged else ''}its log: {path}"
    )


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can be overlooked."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kill whatever this process started that still runs."""
    # More than one look: a process may start another one while it is being found.
    for _ in range(_KILL_ROUNDS):
        left = psutil.Process().children(recursive=True)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=_REAP_S)
