"""The trace of one request on a weight node: its time in the queue, its steps, and their waits.

The first steps have spans of their own, and in them one for each attention node that was waited for; all of
them are in the sums at the end. A span that is as long as a step, or as the waits of all its layers together,
ends when the step's tokens came: the engine has a clock of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from kernelflume.runtime.tracing import SpanKind, ids_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.rpc.v1 import wnode_pb2
    from kernelflume.runtime.tracing import Attributes, Span, Tracer
    from kernelflume.wnode.messages import StepTrace, TokenOutput

_MAX_STEP_SPANS = 8
"""Enough to see chunks of a prompt and decoding; a span for each of a thousand tokens would tell no more."""


class GenerateTrace:
    """One span of a Generate call."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._has_end = False
        self._num_steps = 0
        self._steps_s = 0.0
        self._waits_s: dict[str, float] = {}

    @property
    def ids(self) -> Mapping[str, str]:
        """Trace and span as log lines name them; empty without tracing."""
        return ids_of(self._span.headers())

    @property
    def recording(self) -> bool:
        """True when somebody will see the trace."""
        return self._span.recording

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
                    "gen_ai.operation.name": "generate_content",
                    "gen_ai.provider.name": "kernelflume",
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

    def stepped(self, outputs: Sequence[TokenOutput]) -> None:
        """Note the steps that the outputs tell of."""
        for output in outputs:
            for step in output.steps:
                self._num_steps += 1
                self._steps_s += step.seconds
                for node, waited_s in step.waits:
                    self._waits_s[node] = self._waits_s.get(node, 0.0) + waited_s
                if self._num_steps <= _MAX_STEP_SPANS:
                    self._show(step)

    def _show(self, step: StepTrace) -> None:
        span = self._span.child(
            "step",
            attributes={
                "kernelflume.step.rows": step.num_rows,
                "kernelflume.step.batch_rows": step.batch_rows,
            },
            lasted_s=step.seconds,
        )
        for node, waited_s in step.waits:
            attributes: Attributes = {
                "kernelflume.attention_node": node,
                "kernelflume.wait_seconds": waited_s,
            }
            span.child("wait for attention", attributes=attributes, lasted_s=waited_s).end()
        span.end()

    def _sum_up(self) -> None:
        if not self._num_steps:
            return
        nodes = sorted(self._waits_s)
        self._span.set(
            {
                "kernelflume.num_steps": self._num_steps,
                "kernelflume.steps_seconds": self._steps_s,
                "kernelflume.attention_nodes": tuple(nodes),
                **{f"kernelflume.wait_seconds.{node}": self._waits_s[node] for node in nodes},
            }
        )

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
        self._sum_up()
        self._span.end()
