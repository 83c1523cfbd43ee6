"""All requests of one router: what a step brought to any of them goes out together."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import DeadlineError, InvalidRequestError, KernelFlumeError, UnavailableError
from kernelflume.core.retention import Retention
from kernelflume.rpc.codec import resumption_of, sampling_from_proto
from kernelflume.rpc.v1 import wnode_pb2
from kernelflume.runtime.logging import LOG_FIELDS
from kernelflume.wnode.replies import AskedAway, replies_of
from kernelflume.wnode.traces import GenerateTrace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kernelflume.core.resumption import Resumption
    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.runtime.tracing import Tracer
    from kernelflume.wnode.messages import TokenOutput
    from kernelflume.wnode.replies import News
    from kernelflume.wnode.requests import RequestTable

logger = logging.getLogger(__name__)

MAX_UNSENT = 65_536
"""Outputs and failures that may wait for a router before no more of its requests are taken."""


class AttachedRequest:
    """One request of a router, until it has ended."""

    def __init__(
        self, number: int, asked: wnode_pb2.GenerateRequest, trace: GenerateTrace, *, hands_over: bool
    ) -> None:
        self.number = number
        self.request_id = asked.request_id
        self.cache_salt = asked.cache_salt
        self.retention = Retention.UNCHANGED
        self.hands_over = hands_over
        self.trace = trace
        self.num_tokens = 0
        self.timer: asyncio.TimerHandle | None = None
        self.starting: asyncio.Task[None] | None = None


class Attachment:
    """Runs a router's requests and keeps what they bring until it is sent. Used in one event loop.

    What waits is bounded by what the requests in flight may generate and ``MAX_UNSENT``: past that
    nothing more is read.
    """

    def __init__(
        self, requests: RequestTable, tracer: Tracer, *, num_microbatches: Callable[[], int]
    ) -> None:
        """Begin without a request.

        Args:
            requests: where requests run.
            tracer: for a span for each request.
            num_microbatches: of steps now; told with the end of a traced request.
        """
        self._requests = requests
        self._tracer = tracer
        self._num_microbatches = num_microbatches
        self._running: dict[int, AttachedRequest] = {}
        self._last_number = 0
        self._news: list[News] = []
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_ending = False
        self._draining: bool | None = None
        """What the router is to be told next of the node's draining."""
        self._fault: KernelFlumeError | None = None

    async def read(self, messages: AsyncIterator[wnode_pb2.AttachRequest]) -> None:
        """Take in what the router says, to the end or its first fault, which ``replies`` then raises."""
        try:
            async for message in messages:
                self._take(message)
                await self._has_room.wait()
        except InvalidRequestError as fault:
            self._fault = fault
        finally:
            self._end_intake()

    def _take(self, message: wnode_pb2.AttachRequest) -> None:
        kind = message.WhichOneof("kind")
        if kind == "submission":
            self._submit(message.submission)
        elif kind == "cancelled":
            request = self._running.get(message.cancelled)
            if request is not None:
                self._end(request, ended=False)
        elif kind == "hand_over":
            self._hand_over(message.hand_over)
        elif kind == "go_on":
            request = self._running.get(message.go_on)
            if request is not None:
                self._requests.go_on(request.request_id)
        else:
            raise InvalidRequestError("a message says nothing of a request")

    def _hand_over(self, number: int) -> None:
        request = self._running.get(number)
        if request is None:
            return
        if request.starting is not None:  # the engine does not know it yet
            request.hands_over = True
        else:
            self._requests.hand_over(request.request_id)

    async def replies(self) -> list[wnode_pb2.AttachReply]:
        """Wait for news and return all that came; nothing once there will be no more.

        Raises:
            InvalidRequestError: the router does not keep to the protocol.
        """
        while not (self._news or self._draining is not None) or self._fault is not None:
            if self._fault is not None:
                raise self._fault
            if self._is_ending and not self._running:
                return []
            self._changed.clear()
            await self._changed.wait()
        news, self._news = self._news, []
        self._has_room.set()
        replies = replies_of(news) if news else []
        if self._draining is not None:
            replies.append(wnode_pb2.AttachReply(draining=self._draining))
            self._draining = None
        return replies

    def set_draining(self, draining: bool) -> None:
        """Ask the router to hand over what runs and to send nothing more, or no longer to do so."""
        self._draining = draining
        self._changed.set()

    def ask_away(self, max_requests: int) -> int:
        """Ask the router to hand over some requests; return of how many that was asked."""
        asked = list(self._running)[:max_requests]
        for number in asked:
            self._tell(number, AskedAway())
        return len(asked)

    def drain(self) -> None:
        """Take no more requests, and ask the router to hand over those that run; the others go on."""
        if not self._is_ending:
            self.set_draining(True)
        self._end_intake()

    def _end_intake(self) -> None:
        self._is_ending = True
        self._changed.set()

    def close(self) -> None:
        """Cancel what still runs."""
        self._is_ending = True
        for request in list(self._running.values()):
            self._end(request, ended=False)

    def _submit(self, submission: wnode_pb2.Submission) -> None:
        number, asked = submission.number, submission.request
        if number <= self._last_number:
            raise InvalidRequestError(f"request number {number} does not follow {self._last_number}")
        self._last_number = number
        if self._is_ending:
            self._tell(number, UnavailableError("the weight node is shutting down"))
            return
        trace = GenerateTrace.begin(self._tracer, asked, tuple(submission.trace_context.items()))
        request = AttachedRequest(number, asked, trace, hands_over=submission.hand_over)
        prompt = list(asked.prompt_token_ids)
        resumption = resumption_of(asked)
        try:
            sampling = sampling_from_proto(asked.sampling)
            request.retention = Retention.of(asked.cache_retention)
            self._requests.enter(
                request.request_id,
                prompt,
                sampling,
                lambda output: self._receive(request, output),
                resumption,
            )
        except Exception as error:  # noqa: BLE001 - the boundary: the request fails by itself
            self._refuse(request, error)
            return
        self._running[number] = request
        if submission.timeout_seconds > 0:
            loop = asyncio.get_running_loop()
            request.timer = loop.call_later(submission.timeout_seconds, self._expire, request)
        if sampling.grammar is None:
            self._start(request, prompt, sampling, resumption, b"")
        else:
            request.starting = asyncio.create_task(
                self._start_guided(request, prompt, sampling, resumption, tenant=asked.tenant)
            )

    async def _start_guided(
        self,
        request: AttachedRequest,
        prompt: list[int],
        sampling: SamplingParameters,
        resumption: Resumption,
        *,
        tenant: str,
    ) -> None:
        # The task has a context of its own.
        LOG_FIELDS.set({"request_id": request.request_id, **request.trace.ids})
        try:
            grammar = await self._requests.compile(sampling, tenant)
        except Exception as error:  # noqa: BLE001 - the boundary: the request fails by itself
            request.starting = None
            self._fail(request, error)
        else:
            request.starting = None
            self._start(request, prompt, sampling, resumption, grammar)

    def _start(
        self,
        request: AttachedRequest,
        prompt: list[int],
        sampling: SamplingParameters,
        resumption: Resumption,
        grammar: bytes,
    ) -> None:
        try:
            self._requests.submit(
                request.request_id,
                prompt,
                sampling,
                grammar,
                traced=request.trace.recording,
                resumption=resumption,
                cache_salt=request.cache_salt,
                retention=request.retention,
                hands_over=request.hands_over,
            )
        except UnavailableError as error:
            self._fail(request, error)

    def _receive(self, request: AttachedRequest, output: TokenOutput) -> None:
        trace = request.trace
        if trace.recording:
            trace.stepped((output,))
            if not request.num_tokens and not output.error:
                trace.first_token(output)
        request.num_tokens += len(output.token_ids)
        if output.error:
            self._fail(request, self._requests.error_of(output), ended=True)
            return
        self._tell(request.number, output)
        if output.finish_reason:
            trace.ended(request.num_tokens, output.finish_reason, num_microbatches=self._num_microbatches())
            self._end(request, ended=True)

    def _expire(self, request: AttachedRequest) -> None:
        self._fail(request, DeadlineError("the request took longer than it may"))

    def _fail(self, request: AttachedRequest, error: Exception, *, ended: bool = False) -> None:
        self._end(request, ended=ended, error=error)
        self._tell(request.number, error)

    def _refuse(self, request: AttachedRequest, error: Exception) -> None:
        request.trace.failed(error)
        request.trace.close()
        self._tell(request.number, error)

    def _end(self, request: AttachedRequest, *, ended: bool, error: Exception | None = None) -> None:
        del self._running[request.number]
        if request.timer is not None:
            request.timer.cancel()
        if request.starting is not None:
            request.starting.cancel()
        self._requests.leave(request.request_id, ended=ended)
        if error is not None:
            request.trace.failed(error)
        request.trace.close()
        if self._is_ending:
            self._changed.set()

    def _tell(self, number: int, news: TokenOutput | AskedAway | Exception) -> None:
        if isinstance(news, Exception) and not isinstance(news, KernelFlumeError):
            logger.error("unexpected error in a request", exc_info=news)
        self._news.append((number, news))
        self._changed.set()
        if len(self._news) > MAX_UNSENT:
            self._has_room.clear()
