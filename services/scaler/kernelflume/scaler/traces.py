"""The trace of a scale operation: one span, a child for each phase, and what is called meanwhile below it."""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from kernelflume.runtime.tracing import CURRENT_SPAN, NO_SPAN
from kernelflume.scaler.operation import Result

if TYPE_CHECKING:
    from kernelflume.runtime.tracing import Attributes, Span, Tracer
    from kernelflume.scaler.operation import Operation


class OperationTraces:
    """Follows the operation that runs; owned by the runner, which runs one at a time."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._operation_id = ""
        self._num_phases = 0
        self._span = NO_SPAN
        self._phase = NO_SPAN

    def follow(self, operation: Operation) -> None:
        """Take in the operation as it is now: begun, in its next phase, or done."""
        if operation.operation_id != self._operation_id:
            self._begin(operation)
        if len(operation.history) > self._num_phases:
            self._num_phases = len(operation.history)
            self._phase.end()
            if not operation.done:
                self._phase = self._span.child(
                    operation.phase, attributes={"kernelflume.operation.id": operation.operation_id}
                )
        if operation.done:
            self._end(operation)

    def context(self) -> Context:
        """Return a context in which calls belong to the present phase, whichever that is by then."""
        context = copy_context()
        context.run(CURRENT_SPAN.set, self._present)
        return context

    def abandon(self) -> None:
        """End the spans of an operation that will not be seen through."""
        if self._span.recording:
            self._span.fail("the scaler ended")
        self._phase.end()
        self._span.end()

    def _present(self) -> Span:
        return self._phase

    def _begin(self, operation: Operation) -> None:
        self._operation_id, self._num_phases = operation.operation_id, 0
        attributes: Attributes = {
            "kernelflume.operation.id": operation.operation_id,
            "kernelflume.operation.initial": operation.initial,
            "kernelflume.operation.target": operation.target,
        }
        caller = CURRENT_SPAN.get()()
        if caller.recording:
            self._span = caller.child("scale", attributes=attributes)
        else:
            self._span = self._tracer.start("scale", attributes=attributes)

    def _end(self, operation: Operation) -> None:
        self._span.set(
            {
                "kernelflume.operation.result": str(operation.outcome),
                "kernelflume.operation.reason": operation.reason,
                "kernelflume.operation.node_ids": operation.node_ids,
            }
        )
        if operation.outcome is Result.FAILED:
            self._span.fail(operation.reason)
        self._span.end()
