"""Putting a schedule's load on an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from kernelflume.cli.bench.answer import CANCELLED
from kernelflume.cli.bench.details import Detail
from kernelflume.cli.bench.dialogue import Api, Dialogue
from kernelflume.cli.bench.lag import LagMeter
from kernelflume.cli.bench.outcome import Outcome, Sample
from kernelflume.cli.bench.workload import ExtendingPrompt

if TYPE_CHECKING:
    from array import array

    from kernelflume.cli.bench.answer import Answer
    from kernelflume.cli.bench.endpoint import Endpoint
    from kernelflume.cli.bench.schedule import Launch, Schedule
    from kernelflume.cli.bench.tokens import TokenSource
    from kernelflume.cli.bench.workload import Turn

_MAX_GAPS = 2_000_000
SESSION_HEADER = "x-session-id"


@dataclass(frozen=True, slots=True)
class Asking:
    """What every request says besides its prompt."""

    api: Api
    model: str
    timeout_s: float
    ignore_eos: bool = True
    openai_only: bool = False
    """Leave out fields that are no part of OpenAI's own API."""
    temperature: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    def fields(self, turn: Turn) -> dict[str, Any]:
        """Return a body's fields without the prompt."""
        limit = "max_tokens" if self.api is Api.COMPLETIONS else "max_completion_tokens"
        fields: dict[str, Any] = {
            "model": self.model,
            limit: turn.num_output,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if turn.conversation:
            fields["user"] = turn.conversation
        if not self.openai_only:
            fields |= {"ignore_eos": self.ignore_eos, "return_token_ids": True}
        return fields | self.extra


class Watcher(Protocol):
    """Who is told how a run goes."""

    def sent(self) -> None:
        """A request was sent."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """A request ended."""
        ...


@dataclass(slots=True)
class Measured:
    """What a run gave."""

    outcomes: list[Outcome]
    gaps: Sample
    """Seconds between events of all whole answers."""
    lags_s: array[float]
    """By how much the client's event loop was late, at each look."""
    begun_s: float
    """On the event loop's clock; the times of outcomes count from here."""
    duration_s: float
    client_cpu_s: float
    """Processor time that the client took."""
    num_skipped: int
    interrupted: bool
    details: list[Detail] | None = None
    """Of the same requests as ``outcomes``, where they were to be kept."""


class Load:
    """One run. Owns the dialogues of the sessions that are under way."""

    def __init__(
        self,
        schedule: Schedule,
        endpoint: Endpoint,
        asking: Asking,
        source: TokenSource,
        watcher: Watcher,
        *,
        keeps_details: bool = False,
    ) -> None:
        self._schedule = schedule
        self._endpoint = endpoint
        self._asking = asking
        self._source = source
        self._watcher = watcher
        self._dialogues: dict[int, dict[str, Dialogue]] = {}
        self._outcomes: list[Outcome] = []
        self._details: list[Detail] | None = [] if keeps_details else None
        self._gaps = Sample(_MAX_GAPS, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._fault: BaseException | None = None
        self._begun_s = 0.0

    async def run(self, stop: asyncio.Event) -> Measured:
        """Send everything that is due when it is due, until all has ended or ``stop`` is set."""
        loop = asyncio.get_running_loop()
        self._begun_s, cpu_begun_s = loop.time(), time.process_time()
        meter = LagMeter(loop.time)
        metering = asyncio.create_task(meter.measure())
        stopping = asyncio.create_task(self._announce(stop))
        try:
            while not self._schedule.done and not stop.is_set():
                self._changed.clear()
                for launch in self._schedule.take(self._now_s()):
                    task = asyncio.create_task(self._ask(launch))
                    self._tasks.add(task)
                    task.add_done_callback(self._finished)
                await self._wait_change(self._schedule.wake_s)
                if self._fault is not None:
                    raise self._fault
            duration_s = self._now_s()
            interrupted = not self._schedule.done
        finally:
            for task in (*self._tasks, metering, stopping):
                task.cancel()
            await asyncio.gather(*self._tasks, metering, stopping, return_exceptions=True)
        return Measured(
            outcomes=self._outcomes,
            details=self._details,
            gaps=self._gaps,
            lags_s=meter.lags_s,
            begun_s=self._begun_s,
            duration_s=duration_s,
            client_cpu_s=time.process_time() - cpu_begun_s,
            num_skipped=self._schedule.num_skipped,
            interrupted=interrupted,
        )

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._begun_s

    def _finished(self, task: asyncio.Task[None]) -> None:
        """Let no request that failed in the client itself leave the run waiting for it."""
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault
            self._changed.set()

    async def _announce(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _wait_change(self, until_s: float | None) -> None:
        """Wait until a request ended, the run is to stop, or the next is due; each request has a deadline."""
        timeout_s = None if until_s is None else max(0.0, until_s - self._now_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def _ask(self, launch: Launch) -> None:
        turn, asking = launch.turn, self._asking
        dialogues = self._dialogues.setdefault(launch.session_index, {})
        name = turn.conversation or launch.session.name
        if name not in dialogues:
            dialogues[name] = Dialogue(name, self._source, asking.api)
        prompt = dialogues[name].prompt(turn)
        body = json.dumps(asking.fields(turn) | prompt.fields, separators=(",", ":")).encode()
        # A trace may name its sessions as it likes; a header may not.
        headers = {SESSION_HEADER: quote(turn.conversation)} if turn.conversation else {}
        extends = isinstance(turn.prompt, ExtendingPrompt)
        self._watcher.sent()
        answer = await self._endpoint.stream(
            asking.api.path,
            body,
            headers,
            timeout_s=asking.timeout_s,
            keep_text=self._details is not None or (extends and asking.api is Api.CHAT),
        )
        if answer.ok:
            dialogues[name].answered(turn, answer)
            self._gaps.add(answer.gaps_s)
        outcome = self._outcome(launch, answer, prompt.num_tokens, prompt.hit_tokens)
        self._outcomes.append(outcome)
        if self._details is not None:
            self._details.append(Detail.of(outcome, answer))
        if answer.status == CANCELLED:
            return  # the run is over, and its schedule with it
        # A prompt that extends an answer cannot be made without it; the others stand for themselves.
        goes_on = answer.ok or not extends
        if not goes_on or launch.place + 1 == len(launch.session.turns):
            del self._dialogues[launch.session_index]
        self._schedule.end(launch, self._now_s(), goes_on=goes_on)
        self._watcher.ended(outcome)
        self._changed.set()

    def _outcome(self, launch: Launch, answer: Answer, num_prompt: int, hit_tokens: int) -> Outcome:
        return Outcome(
            session=launch.turn.conversation or launch.session.name,
            turn=launch.place,
            status=answer.status,
            detail=answer.detail,
            due_s=launch.due_s,
            sent_s=answer.sent_s - self._begun_s,
            ttft_s=answer.ttft_s,
            e2e_s=answer.e2e_s,
            num_prompt=num_prompt if answer.num_prompt is None else answer.num_prompt,
            num_output=answer.num_output,
            num_cached=answer.num_cached,
            hit_tokens=hit_tokens,
            node=answer.node,
        )
