"""Starting a choice on a weight node, and on another one when that fails before the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.errors import KernelFlumeError, OverloadedError, UnavailableError
from kernelflume.router.course import Course

if TYPE_CHECKING:
    import asyncio

    from kernelflume.router.course_parts import CourseParts
    from kernelflume.router.generation import Generation, GenerationObserver
    from kernelflume.router.job import ChoiceJob
    from kernelflume.runtime.tracing import Headers

_MAX_ATTEMPTS = 3
"""Few, so that a request that brings nodes down cannot bring them all down."""


class Dispatcher:
    """Places choices on weight nodes."""

    def __init__(self, parts: CourseParts, *, stall_timeout_s: float) -> None:
        """Make a dispatcher.

        Args:
            parts: what the courses of choices share.
            stall_timeout_s: bound of the wait for a choice's first token.
        """
        self._parts = parts
        self._stall_timeout_s = stall_timeout_s

    async def start(
        self,
        job: ChoiceJob,
        *,
        arrived: asyncio.Event,
        observer: GenerationObserver,
        headers: Headers,
    ) -> Generation:
        """Run a choice, in the trace of ``headers``, and return it once its first token has come.

        Raises:
            UnavailableError: no weight node can serve.
            OverloadedError: every weight node's queue is full.
            KernelFlumeError: a weight node refused the request for good.
        """
        course = Course(self._parts, job, observer=observer, headers=headers)
        metrics = self._parts.metrics
        failed: set[str] = set()
        error: KernelFlumeError = UnavailableError("no weight node can serve now")
        while len(failed) < _MAX_ATTEMPTS:
            decision = self._parts.placer.decide(job.prompt, failed=failed)
            metrics.count_placement(decision)
            if decision.placement.prefill is None:
                break
            generation = course.new_generation(arrived)
            course.begin(generation, decision)
            try:
                await generation.wait_started(timeout_s=self._stall_timeout_s)
            except (UnavailableError, OverloadedError) as refusal:
                error = refusal
                failed.add(decision.placement.prefill)
                metrics.failed_attempts.labels(type(refusal).__name__).inc()
            except BaseException:
                generation.close()
                raise
            else:
                return generation
        raise error
