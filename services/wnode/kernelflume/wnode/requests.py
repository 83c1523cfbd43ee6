"""Requests in flight in the shell: admission, and the way of tokens from the engine to each stream."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConflictError, InvalidRequestError, OverloadedError, UnavailableError
from kernelflume.wnode.messages import Cancel, StepOutput, Submit, TokenOutput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kernelflume.core.grammar import Grammar
    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.wnode.messages import Command


class RequestTable:
    """Streams by request id. A stream's queue holds at most ``max_tokens`` outputs, for no more are made."""

    def __init__(
        self,
        send: Callable[[Command], None],
        *,
        max_in_flight: int,
        max_model_len: int,
        vocab_size: int,
        compile_grammar: Callable[[Grammar], Awaitable[bytes]],
    ) -> None:
        self._send = send
        self._max_in_flight = max_in_flight
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._compile_grammar = compile_grammar
        self._streams: dict[str, asyncio.Queue[TokenOutput]] = {}
        self._failure = ""

    def __len__(self) -> int:
        return len(self._streams)

    def check(self, prompt: list[int], sampling: SamplingParameters) -> None:
        """Refuse what can never run.

        Raises:
            InvalidRequestError: the prompt is empty, too long, or has an id outside the vocabulary.
        """
        if not prompt:
            raise InvalidRequestError("the prompt has no tokens", parameter="prompt")
        if len(prompt) >= self._max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens, which leaves no room for output in the "
                f"{self._max_model_len} tokens of context",
                parameter="prompt",
            )
        biased = (token for token, _ in sampling.logit_bias)
        highest = max(*prompt, *sampling.stop_token_ids, *sampling.allowed_token_ids, *biased, 0)
        if highest >= self._vocab_size:
            raise InvalidRequestError(
                f"token id {highest} is outside the vocabulary of {self._vocab_size}", parameter="prompt"
            )

    async def stream(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, *, traced: bool = False
    ) -> AsyncIterator[list[TokenOutput]]:
        """Run a request; yield what came since the last time. Leaving the iteration cancels the request.

        Raises:
            InvalidRequestError: the request can never run; its grammar cannot be compiled.
            OverloadedError: the queue is full, or the pool cannot hold the request.
            ConflictError: the id is in use.
            UnavailableError: the engine is gone.
        """
        self.check(prompt, sampling)
        if len(self._streams) >= self._max_in_flight:
            raise OverloadedError(f"{len(self._streams)} requests are running or waiting", retry_after_s=1.0)
        if request_id in self._streams:
            raise ConflictError(f"request id {request_id} is in use")
        queue: asyncio.Queue[TokenOutput] = asyncio.Queue()
        self._streams[request_id] = queue
        ended = False
        try:
            grammar = b"" if sampling.grammar is None else await self._compile_grammar(sampling.grammar)
            self._send(Submit(request_id, prompt, sampling, grammar, traced))
            while not ended:
                outputs = [await queue.get()]
                while not queue.empty():
                    outputs.append(queue.get_nowait())
                last = outputs[-1]
                if last.error:
                    ended = True
                    if last.invalid:
                        raise InvalidRequestError(last.error)
                    raise _refusal(last.error, self._failure)
                ended = bool(last.finish_reason)
                yield outputs
        finally:
            del self._streams[request_id]
            if not ended:
                with contextlib.suppress(UnavailableError):  # nothing runs any more
                    self._send(Cancel(request_id))

    def deliver(self, event: StepOutput) -> None:
        """Hand a step's tokens to their streams; those of cancelled requests are dropped."""
        for output in event.outputs:
            queue = self._streams.get(output.request_id)
            if queue is not None:
                queue.put_nowait(output)

    def fail_all(self, reason: str) -> None:
        """End every stream because the engine is gone."""
        self._failure = reason
        for request_id, queue in self._streams.items():
            queue.put_nowait(TokenOutput(request_id, (), "abort", error=reason))


def _refusal(reason: str, failure: str) -> OverloadedError | UnavailableError:
    return UnavailableError(reason) if failure else OverloadedError(reason, retry_after_s=5.0)
