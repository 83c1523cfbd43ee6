"""Requests in flight in the shell: admission, and the way of tokens from the engine to each of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kernelflume.core.errors import (
    ConflictError,
    InvalidRequestError,
    KernelFlumeError,
    OverloadedError,
    UnavailableError,
)
from kernelflume.core.resumption import FROM_THE_START
from kernelflume.core.retention import Retention
from kernelflume.wnode.messages import Cancel, GoOn, HandOver, StepOutput, Submit, TokenOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kernelflume.core.grammar import Grammar
    from kernelflume.core.resumption import Resumption
    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.wnode.messages import Command

    Sink = Callable[[TokenOutput], None]


class RequestTable:
    """Requests by their id. Each has at most ``max_tokens`` outputs, for no more are made."""

    def __init__(
        self,
        send: Callable[[Command], None],
        *,
        max_in_flight: int,
        max_model_len: int,
        vocab_size: int,
        compile_grammar: Callable[[Grammar, str], Awaitable[bytes]],
    ) -> None:
        self._send = send
        self._max_in_flight = max_in_flight
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._compile_grammar = compile_grammar
        self._sinks: dict[str, Sink] = {}
        self._failure = ""

    def __len__(self) -> int:
        return len(self._sinks)

    def check(
        self, prompt: list[int], sampling: SamplingParameters, resumption: Resumption = FROM_THE_START
    ) -> None:
        """Refuse what can never run.

        Raises:
            InvalidRequestError: the prompt is empty, too long, or has an id outside the vocabulary; it goes
                on after its end.
        """
        if not prompt:
            raise InvalidRequestError("the prompt has no tokens", parameter="prompt")
        if len(prompt) >= self._max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens, which leaves no room for output in the "
                f"{self._max_model_len} tokens of context",
                parameter="prompt",
            )
        output = resumption.output_token_ids
        if len(output) >= sampling.max_tokens or len(prompt) + len(output) >= self._max_model_len:
            raise InvalidRequestError(f"the request ended with the last of its {len(output)} tokens")
        biased = (token for token, _ in sampling.logit_bias)
        highest = max(*prompt, *output, *sampling.stop_token_ids, *sampling.allowed_token_ids, *biased, 0)
        if highest >= self._vocab_size:
            raise InvalidRequestError(
                f"token id {highest} is outside the vocabulary of {self._vocab_size}", parameter="prompt"
            )

    def enter(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingParameters,
        sink: Sink,
        resumption: Resumption = FROM_THE_START,
    ) -> None:
        """Take a request in, whose outputs go to ``sink`` until it is told to ``leave``.

        Raises:
            InvalidRequestError: the request can never run.
            OverloadedError: as many requests as may be are in flight.
            ConflictError: the id is in use.
        """
        self.check(prompt, sampling, resumption)
        if len(self._sinks) >= self._max_in_flight:
            raise OverloadedError(f"{len(self._sinks)} requests are running or waiting", retry_after_s=1.0)
        if request_id in self._sinks:
            raise ConflictError(f"request id {request_id} is in use")
        self._sinks[request_id] = sink

    async def compile(self, sampling: SamplingParameters, tenant: str) -> bytes:
        """Return the compiled grammar of a tenant's request, empty where it has none.

        Raises:
            InvalidRequestError: it cannot be compiled.
        """
        return b"" if sampling.grammar is None else await self._compile_grammar(sampling.grammar, tenant)

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingParameters,
        grammar: bytes,
        *,
        traced: bool,
        cache_salt: str = "",
        resumption: Resumption = FROM_THE_START,
        hands_over: bool = False,
        retention: Retention = Retention.UNCHANGED,
    ) -> None:
        """Hand a request that was taken in to the engine.

        Raises:
            UnavailableError: the engine is gone.
        """
        self._send(
            Submit(
                request_id,
                prompt,
                sampling,
                grammar,
                traced,
                cache_salt,
                resumption,
                hands_over,
                retention,
            )
        )

    def hand_over(self, request_id: str) -> None:
        """Hold a request between two tokens; its sink is told, unless it ends first."""
        with contextlib.suppress(UnavailableError):  # it fails by itself
            self._send(HandOver(request_id))

    def go_on(self, request_id: str) -> None:
        """Run a held request again."""
        with contextlib.suppress(UnavailableError):
            self._send(GoOn(request_id))

    def leave(self, request_id: str, *, ended: bool) -> None:
        """Forget a request, and cancel it unless its last output has come."""
        del self._sinks[request_id]
        if not ended:
            with contextlib.suppress(UnavailableError):  # nothing runs any more
                self._send(Cancel(request_id))

    async def stream(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingParameters,
        *,
        tenant: str = "",
        traced: bool = False,
        cache_salt: str = "",
        resumption: Resumption = FROM_THE_START,
        retention: Retention = Retention.UNCHANGED,
    ) -> AsyncIterator[list[TokenOutput]]:
        """Run a request; yield what came since the last time. Leaving the iteration cancels the request.

        Raises:
            InvalidRequestError: the request can never run; its grammar cannot be compiled.
            OverloadedError: the queue is full, or the pool cannot hold the request.
            ConflictError: the id is in use.
            UnavailableError: the engine is gone.
        """
        queue: asyncio.Queue[TokenOutput] = asyncio.Queue()
        self.enter(request_id, prompt, sampling, queue.put_nowait, resumption)
        ended = False
        try:
            grammar = await self.compile(sampling, tenant)
            self.submit(
                request_id,
                prompt,
                sampling,
                grammar,
                traced=traced,
                cache_salt=cache_salt,
                resumption=resumption,
                retention=retention,
            )
            while not ended:
                outputs = [await queue.get()]
                while not queue.empty():
                    outputs.append(queue.get_nowait())
                last = outputs[-1]
                ended = bool(last.finish_reason or last.error)
                if last.error:
                    raise self.error_of(last)
                yield outputs
        finally:
            self.leave(request_id, ended=ended)

    def deliver(self, event: StepOutput) -> None:
        """Hand a step's tokens to their requests; those of cancelled requests are dropped."""
        sinks = self._sinks
        for output in event.outputs:
            sink = sinks.get(output.request_id)
            if sink is not None:
                sink(output)

    def fail_all(self, reason: str) -> None:
        """End every request because the engine is gone."""
        self._failure = reason
        for request_id, sink in list(self._sinks.items()):
            sink(TokenOutput(request_id, (), "abort", error=reason))

    def error_of(self, output: TokenOutput) -> KernelFlumeError:
        """Return the error that an output tells of, as the request's caller is told."""
        if output.invalid:
            return InvalidRequestError(output.error)
        return (
            UnavailableError(output.error)
            if self._failure
            else OverloadedError(output.error, retry_after_s=5.0)
        )
