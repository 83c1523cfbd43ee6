"""The stream between this router and one weight node, which carries all of its requests there.

One message of a step has the tokens of every request: reading one costs as much as a token's whole way from
there to its client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol

import grpc

from kernelflume.core.errors import DeadlineError, KernelFlumeError, UnavailableError
from kernelflume.rpc.codec import route_from_proto
from kernelflume.rpc.status import failure_from_proto
from kernelflume.rpc.v1 import wnode_pb2

if TYPE_CHECKING:
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.rpc.v1 import wnode_pb2_grpc
    from kernelflume.runtime.clock import Clock
    from kernelflume.runtime.tracing import Headers

    AttachCall = grpc.aio.StreamStreamCall[wnode_pb2.AttachRequest, wnode_pb2.AttachReply]

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 2.0


class Receiver(Protocol):
    """Told of one request's news in the event loop; never blocks, and may cancel the request meanwhile."""

    def token(self, token_id: int, now: float) -> None:
        """Take a token that came at ``now``, with nothing else to tell."""
        ...

    def event(self, event: wnode_pb2.GenerateEvent, now: float) -> None:
        """Take an event that came at ``now``."""
        ...

    def held(self, route: SequenceRoute) -> None:
        """Take note that the request stands still, with its keys and values on ``route``."""
        ...

    def asked_away(self, *, again: bool = False) -> None:
        """Take note that the weight node would rather see the request elsewhere, or still would."""
        ...

    def ended(self, error: KernelFlumeError | None) -> None:
        """Take note that nothing more comes: after the event with the finish reason, or for this error."""
        ...


class RunControl:
    """What can be done with a request under way; all of it is harmless once that has ended."""

    __slots__ = ("_attachment", "_number")

    def __init__(self, attachment: Attachment, number: int) -> None:
        self._attachment = attachment
        self._number = number

    def cancel(self) -> None:
        """End it."""
        self._attachment.cancel(self._number)

    def hand_over(self) -> None:
        """Have it stand still between two tokens; its receiver is told when it does."""
        self._attachment.send_of(self._number, wnode_pb2.AttachRequest(hand_over=self._number))

    def go_on(self) -> None:
        """Let it go on that stands still."""
        self._attachment.send_of(self._number, wnode_pb2.AttachRequest(go_on=self._number))


class _Run:
    """A request that has not ended."""

    __slots__ = ("receiver", "timer")

    def __init__(self, receiver: Receiver, timer: asyncio.TimerHandle) -> None:
        self.receiver = receiver
        self.timer = timer


class Attachment:
    """Keeps a stream to one weight node open, with back-off. Used in one event loop.

    What waits to be sent are requests in progress, whose number the router bounds. Receivers take what comes
    at once, so that no client holds the stream up.
    """

    def __init__(self, stub: wnode_pb2_grpc.WeightNodeStub, address: str, clock: Clock) -> None:
        """Begin to attach.

        Args:
            stub: of the weight node.
            address: its address, for the log.
            clock: for the times at which tokens came.
        """
        self._stub = stub
        self._address = address
        self._clock = clock
        self._runs: dict[int, _Run] = {}
        self._number = 0
        self._outbox: deque[wnode_pb2.AttachRequest] = deque()
        self._has_mail = asyncio.Event()
        self.attached = False
        """True while requests can be submitted."""
        self.draining = False
        """True while the weight node would rather see its requests elsewhere."""
        self._task = asyncio.create_task(self._stay_attached())

    def submit(
        self,
        request: wnode_pb2.GenerateRequest,
        receiver: Receiver,
        *,
        timeout_s: float,
        headers: Headers,
        hands_over: bool = False,
    ) -> RunControl:
        """Run a request in the trace of ``headers``, with ``hands_over`` held after its first token.

        ``receiver`` is told at once of an UnavailableError where the stream is down.
        """
        if not self.attached:
            receiver.ended(UnavailableError(f"the router is not attached to the weight node {self._address}"))
            return RunControl(self, 0)
        self._number += 1
        number = self._number
        timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, number, timeout_s)
        self._runs[number] = _Run(receiver, timer)
        message = wnode_pb2.AttachRequest()
        submission = message.submission
        # A message that is given to another one's constructor is written as bytes and read again.
        submission.request.CopyFrom(request)
        submission.number = number
        submission.trace_context.update(headers)
        submission.timeout_seconds = timeout_s
        submission.hand_over = hands_over
        self._send(message)
        return RunControl(self, number)

    def send_of(self, number: int, message: wnode_pb2.AttachRequest) -> None:
        """Send a message about a request, unless that has ended."""
        if number in self._runs:
            self._send(message)

    def ask_away(self, *, again: bool = False) -> None:
        """Tell every request that its weight node is to end, or remind it of that."""
        for run in list(self._runs.values()):
            run.receiver.asked_away(again=again)

    async def close(self) -> None:
        """End the stream; requests that still run fail."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _stay_attached(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        reason = "the router is closing its streams"
        try:
            while True:
                began_at = self._clock.now()
                reason = await self._attach()
                if self._clock.now() - began_at > _MAX_BACKOFF_S:
                    backoff_s = _FIRST_BACKOFF_S
                self._detach(reason)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
        except Exception:
            logger.exception("a stream to a weight node failed", extra={"address": self._address})
            raise
        finally:
            self._detach(reason)

    async def _attach(self) -> str:
        """Attach once and carry requests until the stream ends; return why it did."""
        call: AttachCall = self._stub.Attach()
        writing: asyncio.Task[None] | None = None
        try:
            # Its first message says that it takes requests.
            while isinstance(reply := await call.read(), wnode_pb2.AttachReply):
                if writing is None:
                    self.attached = True
                    writing = asyncio.create_task(self._write(call))
                self._take(reply)
            code, details = await call.code(), await call.details() or ""
        except grpc.aio.AioRpcError as failure:
            code, details = failure.code(), failure.details() or ""
        except UnavailableError as fault:
            return str(fault)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "the stream to the weight node was cancelled"  # by whoever writes, or closes the channel
        finally:
            call.cancel()
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
        return f"the stream to the weight node ended: {code.name} {details}".rstrip()

    async def _write(self, call: AttachCall) -> None:
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            while self._outbox:
                try:
                    await call.write(self._outbox.popleft())
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # it is ending; whoever reads is told why
                except Exception:
                    logger.exception("a request cannot be sent", extra={"address": self._address})
                    call.cancel()
                    return

    def _take(self, reply: wnode_pb2.AttachReply) -> None:
        """Hand out news.

        Raises:
            UnavailableError: the weight node does not keep to the protocol.
        """
        now = self._clock.now()
        numbers, token_ids = reply.numbers, reply.token_ids
        if len(numbers) != len(token_ids):
            raise UnavailableError(f"a reply has {len(numbers)} numbers for {len(token_ids)} tokens")
        # Those whose requests were cancelled may come for a while.
        runs = self._runs
        for number, token_id in zip(numbers, token_ids, strict=True):
            run = runs.get(number)
            if run is not None:
                run.receiver.token(token_id, now)
        for told in reply.events:
            run = runs.get(told.number)
            if run is None:
                continue
            if told.HasField("asked_away"):
                run.receiver.asked_away()
                continue
            if told.HasField("failure"):
                self._end(told.number, failure_from_proto(told.failure))
                continue
            if told.event.HasField("held"):
                run.receiver.held(route_from_proto(told.event.held.ranges))
                continue
            run.receiver.event(told.event, now)
            if told.event.finish_reason:
                self._end(told.number, None)
        if reply.HasField("draining"):
            self.draining = reply.draining
            logger.info("a weight node drains: %s", self.draining, extra={"address": self._address})
            if self.draining:
                self.ask_away()

    def _send(self, message: wnode_pb2.AttachRequest) -> None:
        self._outbox.append(message)
        self._has_mail.set()

    def cancel(self, number: int) -> None:
        """End a request, if it has not ended."""
        run = self._runs.pop(number, None)
        if run is None:
            return
        run.timer.cancel()
        self._send(wnode_pb2.AttachRequest(cancelled=number))
        run.receiver.ended(UnavailableError("the request was cancelled"))

    def _expire(self, number: int, timeout_s: float) -> None:
        self._send(wnode_pb2.AttachRequest(cancelled=number))
        self._end(number, DeadlineError(f"the request took longer than {timeout_s:g} s"))

    def _end(self, number: int, error: KernelFlumeError | None) -> None:
        run = self._runs.pop(number, None)
        if run is not None:
            run.timer.cancel()
            run.receiver.ended(error)

    def _detach(self, reason: str) -> None:
        if self.attached:
            logger.info("a weight node was detached", extra={"address": self._address, "reason": reason})
        self.attached = False
        self.draining = False
        self._outbox.clear()
        for number in list(self._runs):
            self._end(number, UnavailableError(reason))
