"""The trace of one HTTP request, in the words of OpenTelemetry's conventions for generative models."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from kernelflume.router.errors import api_error_of
from kernelflume.runtime.logging import LOG_FIELDS
from kernelflume.runtime.tracing import SpanKind, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from starlette.requests import Request

    from kernelflume.router.completion import Usage
    from kernelflume.router.moves import EndedMove
    from kernelflume.router.order import Order
    from kernelflume.router.placer import Decision
    from kernelflume.runtime.tracing import Attributes, Headers, Span, Tracer


class RequestTrace:
    """One span, from the request's arrival to the end of its answer. Nothing is done a token."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._has_token = False
        self.headers: Headers = span.headers()
        """What carries the trace to weight nodes."""

    @classmethod
    def begin(cls, tracer: Tracer, request: Request, operation: str) -> Self:
        """Start the trace, or continue the client's."""
        path = request.scope["path"]
        attributes: Attributes = {
            "http.request.method": request.method,
            "http.route": path,
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "kernelflume",
            "kernelflume.http.request_id": request.scope.get("state", {}).get("request_id", ""),
        }
        span = tracer.start(
            f"{request.method} {path}",
            kind=SpanKind.SERVER,
            headers=request.headers.items(),
            attributes=attributes,
        )
        LOG_FIELDS.set({**LOG_FIELDS.get(), **ids_of(span.headers())})
        return cls(span)

    def ordered(self, order: Order[Any], answer_id: str) -> None:
        """Note what was asked for."""
        if not self._span.recording:
            return
        sampling = order.samplings[0]
        self._span.set(
            {
                "gen_ai.request.model": order.model,
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.choice.count": order.body.n,
                "gen_ai.request.stream": order.body.stream,
                "gen_ai.response.id": answer_id,
                "gen_ai.response.model": order.model,
            }
        )

    def placed(self, decision: Decision, *, node_id: str, is_resumed: bool) -> None:
        """Note where a choice runs, and why."""
        if not self._span.recording:
            return
        request, placement = decision.request, decision.placement
        attributes: Attributes = {
            "kernelflume.placement.policy": decision.policy,
            "kernelflume.placement.reason": placement.reason,
            "kernelflume.placement.request_class": decision.request_class,
            "kernelflume.placement.weight_node": node_id,
            "kernelflume.placement.prefill": placement.prefill or "",
            "kernelflume.placement.decode": placement.decode or "",
            "kernelflume.placement.expected_cached_tokens": request.num_cached_tokens,
        }
        if is_resumed:
            self._span.event("kernelflume.resumed", attributes)
        else:
            self._span.set(attributes)

    def moved(self, move: EndedMove) -> None:
        """Note that a choice moved, or why it did not."""
        attributes: Attributes = {
            "kernelflume.move.reason": move.reason,
            "kernelflume.move.outcome": move.outcome,
            "kernelflume.move.source": move.source,
            "kernelflume.move.target": move.target,
            "kernelflume.move.seconds": move.seconds,
        }
        self._span.event("kernelflume.moved", attributes)

    def first_token(self, seconds: float) -> None:
        """Note the first token of any choice, ``seconds`` after the request's arrival."""
        if not self._has_token:
            self._has_token = True
            self._span.event("gen_ai.first_token", {"kernelflume.time_to_first_token": seconds})
            self._span.set({"gen_ai.server.time_to_first_token": seconds})

    def completed(self, usage: Usage, finish_reasons: Iterable[str], error: Exception | None) -> None:
        """Note how the choices ended."""
        if not self._span.recording:
            return
        self._span.set(
            {
                "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
                "gen_ai.usage.output_tokens": usage.num_completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
                "gen_ai.response.finish_reasons": tuple(finish_reasons),
            }
        )
        if error is not None:
            self._note(error)

    @contextmanager
    def until_refused(self) -> Iterator[None]:
        """End the trace when an error leaves the block: the request is answered with it, or was cancelled."""
        try:
            yield
        except BaseException as error:
            self._refused(error)
            raise

    def _refused(self, error: BaseException) -> None:
        if not self._span.recording:
            return
        self._note(error)
        if isinstance(error, Exception):
            self._span.set({"http.response.status_code": api_error_of(error).status})
        self._span.end()

    def answered(self) -> None:
        """End the trace of a request that got an answer."""
        self._span.set({"http.response.status_code": 200})
        self._span.end()

    def _note(self, error: BaseException) -> None:
        self._span.set({"error.type": type(error).__name__})
        if not isinstance(error, Exception) or api_error_of(error).status >= 500:
            self._span.fail(str(error))
