"""One choice's run on a weight node: tokens are received as they come and wait until they are taken."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kernelflume.core.errors import DeadlineError, KernelFlumeError, UnavailableError
from kernelflume.core.sampling import FinishReason
from kernelflume.rpc.codec import logprobs_from_proto

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.router.attachment import Receiver
    from kernelflume.rpc.v1 import wnode_pb2

_MAX_UNTAKEN = 1 << 18
"""Tokens that may wait for their client. A sound weight node stops at max_tokens."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All that came since the last take."""

    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_token_id: int | None
    """The eos or stop token that ended the choice; not among ``token_ids``."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of each of ``token_ids``, where the request asked for it."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens but the first; in the first batch, where the request asked for it."""


class GenerationObserver(Protocol):
    """Told of a run's progress, in the event loop."""

    def started(self, num_tokens: int) -> None:
        """Take note of the first event."""
        ...

    def received(self, num_tokens: int, seconds: float) -> None:
        """Take note of a later event, ``seconds`` after the one before."""
        ...

    def ended(self, *, was_started: bool) -> None:
        """Take note of the end, whatever it was."""
        ...


class Generation:
    """Receives one run's news and keeps them.

    A slow client holds nothing up on the weight node, nor another client; what is kept are token ids, at most
    the request's max_tokens. Owned by one request, used in one event loop.
    """

    def __init__(
        self,
        start: Callable[[Receiver], Callable[[], None]],
        *,
        arrived: asyncio.Event,
        observer: GenerationObserver,
        on_end: Callable[[], None],
    ) -> None:
        """Begin to run.

        Args:
            start: starts the run, whose news go to what it is given; returns what cancels it.
            arrived: set at every event and at the end; may be shared by the choices of one request.
            observer: told of progress.
            on_end: called once, when the run has ended.
        """
        self._arrived = arrived
        self._observer = observer
        self._on_end = on_end
        self._started = asyncio.Event()
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._finish_reason: FinishReason | None = None
        self._stop_token_id: int | None = None
        self._error: KernelFlumeError | None = None
        self._was_started = False
        self._last_at = 0.0
        self.num_cached_tokens = 0
        """Prompt tokens whose keys and values the weight node did not have to compute."""
        self._cancel = start(self)

    async def wait_started(self, *, timeout_s: float) -> None:
        """Wait for the first event, which stays to be taken.

        Raises:
            DeadlineError: none came in time.
            KernelFlumeError: the call failed before it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._started.wait()
        except TimeoutError:
            raise DeadlineError(f"no token came within {timeout_s:g} s") from None
        if not self._was_started and self._error is not None:
            raise self._error

    def take(self) -> Batch | None:
        """Return what came since the last take, or None when that is nothing.

        Raises:
            KernelFlumeError: the call failed, and all that came before was taken.
        """
        if self._token_ids or self._finish_reason is not None:
            batch = Batch(
                self._token_ids,
                self._finish_reason,
                self._stop_token_id,
                self._logprobs,
                self._prompt_logprobs,
            )
            self._token_ids, self._finish_reason = [], None
            self._logprobs, self._prompt_logprobs = [], []
            return batch
        if self._error is not None:
            raise self._error
        return None

    def fail(self, error: KernelFlumeError) -> None:
        """End the run, with this error for whoever takes next."""
        if self._error is None:
            self._error = error
        self.close()
        self._started.set()
        self._arrived.set()

    def close(self) -> None:
        """End the run, if it has not ended; the weight node then frees all it holds for it."""
        self._cancel()

    def token(self, token_id: int, now: float) -> None:
        """Take a token that came at ``now``, with nothing else to tell."""
        self._token_ids.append(token_id)
        self._progressed(1, now)

    def event(self, event: wnode_pb2.GenerateEvent, now: float) -> None:
        """Take an event that came at ``now``."""
        num_tokens = len(event.token_ids) + event.HasField("stop_token_id")
        self._prompt_logprobs += map(logprobs_from_proto, event.prompt_logprobs)
        if not num_tokens and not event.finish_reason:
            return  # it came before the first token
        self._token_ids += event.token_ids
        self._logprobs += map(logprobs_from_proto, event.logprobs)
        if not self._was_started:
            self.num_cached_tokens = event.num_cached_tokens
        if event.finish_reason:
            self._finish(event)
        self._progressed(num_tokens, now)

    def ended(self, error: KernelFlumeError | None) -> None:
        """Take note that nothing more comes."""
        self._error = self._error or error
        if self._error is None and not self._was_started:
            self._error = UnavailableError("the weight node ended the request without a token")
        self._observer.ended(was_started=self._was_started)
        self._on_end()
        self._started.set()
        self._arrived.set()

    def _progressed(self, num_tokens: int, now: float) -> None:
        if self._was_started:
            self._observer.received(num_tokens, now - self._last_at)
        else:
            self._was_started = True
            self._observer.started(num_tokens)
            self._started.set()
        self._last_at = now
        self._arrived.set()
        if len(self._token_ids) > _MAX_UNTAKEN:
            self.fail(UnavailableError("the weight node sent more tokens than were asked for"))

    def _finish(self, event: wnode_pb2.GenerateEvent) -> None:
        if event.finish_reason not in {FinishReason.STOP, FinishReason.LENGTH}:
            self._error = UnavailableError("the weight node gave the request up")
            return
        self._finish_reason = FinishReason(event.finish_reason)
        if event.HasField("stop_token_id"):
            self._stop_token_id = event.stop_token_id
