"""One choice's run on a weight node: tokens are received as they come and wait until they are taken."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import grpc

from kernelflume.core.errors import DeadlineError, KernelFlumeError, UnavailableError
from kernelflume.core.sampling import FinishReason
from kernelflume.rpc.codec import logprobs_from_proto
from kernelflume.rpc.status import error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.rpc.v1 import wnode_pb2
    from kernelflume.runtime.clock import Clock

    GenerateCall = grpc.aio.UnaryStreamCall[wnode_pb2.GenerateRequest, wnode_pb2.GenerateEvent]


logger = logging.getLogger(__name__)


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
    """Reads one Generate call in a task of its own.

    The reader never waits for the client, so a slow client holds nothing up on the weight node; what is
    kept are token ids, at most the request's max_tokens. Owned by one request, used in one event loop.
    """

    def __init__(
        self,
        call: GenerateCall,
        *,
        arrived: asyncio.Event,
        clock: Clock,
        observer: GenerationObserver,
        on_end: Callable[[], None],
    ) -> None:
        """Begin to read.

        Args:
            call: the call, just made.
            arrived: set at every event and at the end; may be shared by the choices of one request.
            clock: for the times between events.
            observer: told of progress.
            on_end: called once, when the call has ended.
        """
        self._call = call
        self._arrived = arrived
        self._clock = clock
        self._observer = observer
        self._started = asyncio.Event()
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._finish_reason: FinishReason | None = None
        self._stop_token_id: int | None = None
        self._error: KernelFlumeError | None = None
        self._was_started = False
        self.num_cached_tokens = 0
        """Prompt tokens whose keys and values the weight node did not have to compute."""
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda reader: self._end(reader, on_end))

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
        """End the call, with this error for whoever takes next."""
        if self._error is None:
            self._error = error
        self.close()
        self._started.set()
        self._arrived.set()

    def close(self) -> None:
        """End the call, if it still runs; the weight node then frees all it holds for it."""
        self._call.cancel()
        self._reader.cancel()

    async def _read(self) -> None:
        try:
            finished = False
            last = 0.0
            async for event in self._call:
                now = self._clock.now()
                num_tokens = len(event.token_ids) + event.HasField("stop_token_id")
                self._prompt_logprobs += map(logprobs_from_proto, event.prompt_logprobs)
                if not num_tokens and not event.finish_reason:
                    continue  # it came before the first token
                self._token_ids += event.token_ids
                self._logprobs += map(logprobs_from_proto, event.logprobs)
                if not self._was_started:
                    self._was_started = True
                    self.num_cached_tokens = event.num_cached_tokens
                    self._observer.started(num_tokens)
                else:
                    self._observer.received(num_tokens, now - last)
                last = now
                if event.finish_reason:
                    finished = True
                    self._finish(event)
                self._started.set()
                self._arrived.set()
            if not finished and self._error is None:
                self._error = UnavailableError("the weight node ended the request without a reason")
        except grpc.aio.AioRpcError as failure:
            self._error = self._error or error_of(failure)
        except asyncio.CancelledError:
            # Cancelled by close(), or the channel was closed under the call.
            self._error = self._error or UnavailableError("the call to the weight node was cancelled")

    def _finish(self, event: wnode_pb2.GenerateEvent) -> None:
        if event.finish_reason not in {FinishReason.STOP, FinishReason.LENGTH}:
            self._error = UnavailableError("the weight node gave the request up")
            return
        self._finish_reason = FinishReason(event.finish_reason)
        if event.HasField("stop_token_id"):
            self._stop_token_id = event.stop_token_id

    def _end(self, reader: asyncio.Task[None], on_end: Callable[[], None]) -> None:
        failure = None if reader.cancelled() else reader.exception()
        if failure is not None:
            logger.error("reading tokens failed", exc_info=failure)
            self._error = self._error or KernelFlumeError("reading tokens failed")
        if self._error is None and not self._was_started:
            self._error = UnavailableError("the weight node ended the request without a token")
        self._observer.ended(was_started=self._was_started)
        on_end()
        self._started.set()
        self._arrived.set()
