"""One request's choices, from their start on weight nodes to their end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import DeadlineError, KernelFlumeError
from kernelflume.core.sampling import FinishReason
from kernelflume.router.choice import TOOL_CALLS
from kernelflume.router.prepared import Prepared
from kernelflume.router.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from kernelflume.router.choice import ChoiceText, Delta
    from kernelflume.router.dispatch import Dispatcher
    from kernelflume.router.generation import Generation
    from kernelflume.router.job import ChoiceJob
    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.router.moves import EndedMove
    from kernelflume.router.placer import Decision
    from kernelflume.router.traces import RequestTrace
    from kernelflume.runtime.clock import Clock

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int


class _Progress:
    """Counts one choice's life into the metrics, whatever number of attempts it takes."""

    def __init__(self, metrics: RouterMetrics, trace: RequestTrace, clock: Clock, arrived_at: float) -> None:
        self._metrics = metrics
        self._trace = trace
        self._clock = clock
        self._arrived_at = arrived_at
        self._waiting = True
        metrics.waiting.inc()

    def placed(self, decision: Decision, *, node_id: str, is_resumed: bool) -> None:
        self._trace.placed(decision, node_id=node_id, is_resumed=is_resumed)

    def moved(self, move: EndedMove) -> None:
        self._trace.moved(move)

    def started(self, num_tokens: int) -> None:
        self.given_up()
        self._metrics.running.inc()
        seconds = self._clock.now() - self._arrived_at
        self._metrics.time_to_first_token.observe(seconds)
        self._trace.first_token(seconds)
        self._metrics.generation_tokens.inc(num_tokens)

    def received(self, num_tokens: int, seconds: float) -> None:
        self._metrics.received(num_tokens, seconds)

    def ended(self, *, was_started: bool) -> None:
        if was_started:
            self._metrics.running.dec()

    def given_up(self) -> None:
        """Stop to count it as waiting: it runs, or no attempt is left."""
        if self._waiting:
            self._waiting = False
            self._metrics.waiting.dec()


class Completion:
    """Runs the choices of one request; ``close`` it at the end, however that comes."""

    def __init__(
        self,
        jobs: Sequence[ChoiceJob],
        new_text: Callable[[], ChoiceText],
        *,
        num_prompt_tokens: int,
        choices_per_prompt: int,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        trace: RequestTrace,
        charge: Callable[[int], None],
        clock: Clock,
        arrived_at: float,
        stall_timeout_s: float,
    ) -> None:
        """Make a completion that has not begun.

        Args:
            jobs: one for each choice, in the order of their indexes.
            new_text: makes the text of a choice.
            num_prompt_tokens: of all prompts together.
            choices_per_prompt: `n`: neighbouring jobs share a prompt.
            dispatcher: starts the choices.
            metrics: counts them.
            trace: told of the first token and the end.
            charge: told of tokens as they are generated.
            clock: for latencies.
            arrived_at: when the request came, by ``clock``.
            stall_timeout_s: bound of the wait for the next token of any choice.
        """
        self._jobs = jobs
        self._new_text = new_text
        self._texts: Sequence[ChoiceText] = ()
        self._num_prompt_tokens = num_prompt_tokens
        self._choices_per_prompt = choices_per_prompt
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._trace = trace
        self._charge = charge
        self._clock = clock
        self._arrived_at = arrived_at
        self._finish_reasons: dict[int, str] = {}
        stalled = DeadlineError(f"no token came within {stall_timeout_s:g} s")
        self._watchdog = Watchdog(stall_timeout_s, partial(self.fail, stalled))
        self._arrived = asyncio.Event()
        self._starting: list[asyncio.Task[Generation]] = []
        self._starter: asyncio.Task[Any] | None = None
        self._generations: list[Generation] = []
        self._open: set[int] = set()
        self._error: KernelFlumeError | None = None
        self._closed = False

    @property
    def num_choices(self) -> int:
        """Choices that were asked for."""
        return len(self._jobs)

    async def start(self) -> None:
        """Start every choice and wait until each has its first token.

        Raises:
            KernelFlumeError: a choice cannot run; none runs then.
        """
        self._open = set(range(len(self._jobs)))
        texts = Prepared(lambda: [self._new_text() for _ in self._jobs])
        try:
            if len(self._jobs) == 1:
                # The usual case needs no task of its own, which would cost time before the first token.
                self._starter = asyncio.current_task()
                self._generations = [await self._start(self._jobs[0])]
            else:
                self._starting = [asyncio.create_task(self._start(job)) for job in self._jobs]
                self._generations = list(await asyncio.gather(*self._starting))
        except BaseException as error:  # noqa: BLE001 - cancelled or failed, none may be left running
            await self._give_up_start()
            if self._starter is not None and self._error is not None:
                self._starter.uncancel()  # it was cancelled by ``fail``, to raise that error
            if isinstance(error, KernelFlumeError):
                # Refused, not ended: nothing of it ran to an end that would be counted.
                self._open = set()
            raise self._error or error from None
        finally:
            self._starting, self._starter = [], None
        self._texts = texts.get()
        self._metrics.prompt_tokens.inc(self._num_prompt_tokens)

    async def deltas(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Give what is added to the choices, with each one's index; all that came meanwhile at once.

        Raises:
            KernelFlumeError: a choice failed; what it had was given before.
        """
        arrived, watchdog = self._arrived, self._watchdog
        while self._open:
            # Set as long as something is there to take, so that a token costs one look.
            if not arrived.is_set():
                watchdog.arm()
                await arrived.wait()
                watchdog.disarm()
            arrived.clear()
            news = self._take()
            if self._error is not None:
                arrived.set()
            if news:
                yield news
            elif self._error is not None:
                raise self._error

    @property
    def node_ids(self) -> Sequence[str]:
        """Names of the weight nodes that the choices run on now, or did last; each once."""
        sites = (generation.site for generation in self._generations)
        return tuple(dict.fromkeys(site.node_id for site in sites if site is not None))

    def usage(self) -> Usage:
        """Return the tokens so far."""
        told = [generation.num_cached_tokens for generation in self._generations]
        size = self._choices_per_prompt
        return Usage(
            num_prompt_tokens=self._num_prompt_tokens,
            num_completion_tokens=sum(text.num_tokens for text in self._texts),
            # A prompt counts once, however many choices it has: what it was computed for, others then found.
            num_cached_tokens=sum(min(told[first : first + size]) for first in range(0, len(told), size)),
        )

    def fail(self, error: KernelFlumeError) -> None:
        """End all choices with an error for whoever reads."""
        if self._starter is not None and self._error is None:
            self._starter.cancel()
        self._error = self._error or error
        for task in self._starting:
            task.cancel()
        for generation in self._generations:
            generation.fail(error)
        self._arrived.set()

    def close(self) -> None:
        """End whatever still runs. Harmless when all has ended."""
        if self._closed:
            return
        self._closed = True
        self._watchdog.close()
        for generation in self._generations:
            generation.close()
        for index in self._open:
            self._count_end(index, "abort")
        self._open = set()
        reasons = (self._finish_reasons[index] for index in sorted(self._finish_reasons))
        self._trace.completed(self.usage(), reasons, self._error)

    async def _give_up_start(self) -> None:
        for task in self._starting:
            task.cancel()
        for outcome in await asyncio.gather(*self._starting, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                outcome.close()

    def _take(self) -> list[tuple[int, Delta]]:
        news: list[tuple[int, Delta]] = []
        for index in sorted(self._open):
            try:
                batch = self._generations[index].take()
            except KernelFlumeError as error:
                self._error = self._error or error
                continue
            if batch is None:
                continue
            delta = self._texts[index].add(batch)
            news.append((index, delta))
            self._charge(len(delta.token_ids))
            if delta.finish_reason is not None:
                # A stop string ends it here while the weight node goes on: tell it at once.
                self._generations[index].close()
                self._open.discard(index)
                self._count_end(index, delta.finish_reason)
        return news

    async def _start(self, job: ChoiceJob) -> Generation:
        progress = _Progress(self._metrics, self._trace, self._clock, self._arrived_at)
        try:
            return await self._dispatcher.start(
                job, arrived=self._arrived, observer=progress, headers=self._trace.headers
            )
        finally:
            progress.given_up()

    def _count_end(self, index: int, reason: str) -> None:
        self._finish_reasons[index] = reason
        seconds = self._clock.now() - self._arrived_at
        job = self._jobs[index]
        num_tokens = self._texts[index].num_tokens if self._texts else 0
        self._metrics.ended(
            # Weight nodes, and vLLM's metric, know no tools: the text was stopped.
            reason=FinishReason.STOP if reason == TOOL_CALLS else reason,
            num_prompt_tokens=len(job.prompt.token_ids),
            num_tokens=num_tokens,
            seconds=seconds,
        )
        logger.info(
            "choice ended",
            extra={
                "choice_id": job.request_id,
                "reason": reason,
                "num_prompt_tokens": len(job.prompt.token_ids),
                "num_tokens": num_tokens,
                "seconds": round(seconds, 3),
            },
        )
