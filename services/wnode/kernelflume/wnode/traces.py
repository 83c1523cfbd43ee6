"""The trace of one request on a weight node: time in the queue, first token and end, nothing a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from kernelflume.runtime.tracing import SpanKind

if TYPE_CHECKING:
    from kernelflume.rpc.v1 import wnode_pb2
    from kernelflume.runtime.tracing import Span, Tracer
    from kernelflume.wnode.messages import TokenOutput


class GenerateTrace:
    """One span of a Generate call."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._has_end = False

    @classmethod
    def begin(cls, tracer: Tracer, request: wnode_pb2.GenerateRequest, headers: Any) -> Self:
        """Start the span, in the router's trace when the call's metadata bring it."""
        return cls(
            tracer.start(
                "Generate",
                kind=SpanKind.SERVER,
                headers=headers or (),
                attributes={
                    "rpc.system": "grpc",
                    "rpc.method": "Generate",
                    "kernelflume.request.id": request.request_id,
                    "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
                    "gen_ai.request.max_tokens": request.sampling.max_tokens,
                },
            )
        )

    def first_token(self, output: TokenOutput) -> None:
        """Note the first output, which tells how long the request was queued."""
        if output.queue_s is not None:
            self._span.event(
                "scheduled", {"kernelflume.queue_seconds": output.queue_s}, after_s=output.queue_s
            )
        self._span.event("first_token")

    def ended(self, num_tokens: int, finish_reason: str, *, num_microbatches: int) -> None:
        """Note the last output; ``num_microbatches`` of steps meanwhile, 0 where they are not captured."""
        self._has_end = True
        self._span.event("end", {"finish_reason": finish_reason})
        self._span.set(
            {
                "gen_ai.usage.output_tokens": num_tokens,
                "gen_ai.response.finish_reasons": (finish_reason,),
                "kernelflume.microbatches": num_microbatches,
            }
        )

    def failed(self, error: Exception) -> None:
        """Note that the request was refused or failed."""
        self._has_end = True
        self._span.set({"error.type": type(error).__name__})
        self._span.fail(str(error))

    def close(self) -> None:
        """End the span. Without an end before, the caller has cancelled, as routers do at a stop string."""
        if not self._has_end:
            self._span.event("cancelled")
        self._span.end()
