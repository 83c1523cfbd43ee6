"""Starting a choice on a weight node, and on another one when that fails before the first token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kernelflume.core.errors import KernelFlumeError, OverloadedError, UnavailableError
from kernelflume.router.generation import Generation
from kernelflume.router.placement import place
from kernelflume.rpc.codec import sampling_to_proto
from kernelflume.rpc.v1 import wnode_pb2

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.router.generation import GenerationObserver
    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.router.weightnodes import WeightNodes
    from kernelflume.runtime.tracing import Headers

_MAX_ATTEMPTS = 3
"""Few, so that a request that brings nodes down cannot bring them all down."""


@dataclass(frozen=True, slots=True)
class ChoiceJob:
    """What one choice asks of a weight node."""

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParameters
    cache_salt: str = ""
    """Only choices with the same one share keys and values."""


class Dispatcher:
    """Places choices on weight nodes."""

    def __init__(
        self,
        nodes: WeightNodes,
        *,
        metrics: RouterMetrics,
        request_timeout_s: float,
        stall_timeout_s: float,
    ) -> None:
        """Make a dispatcher.

        Args:
            nodes: where choices can run.
            metrics: counts decisions and retries.
            request_timeout_s: bound of a whole call.
            stall_timeout_s: bound of the wait for its first token.
        """
        self._nodes = nodes
        self._metrics = metrics
        self._request_timeout_s = request_timeout_s
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
        request = wnode_pb2.GenerateRequest(
            request_id=job.request_id,
            prompt_token_ids=job.prompt_token_ids,
            sampling=sampling_to_proto(job.sampling),
            cache_salt=job.cache_salt,
        )
        failed: set[str] = set()
        error: KernelFlumeError = UnavailableError("no weight node can serve now")
        while len(failed) < _MAX_ATTEMPTS:
            placement = place(self._nodes.views(), failed=failed)
            self._metrics.placements.labels(placement.reason).inc()
            if placement.address is None:
                break
            node = self._nodes.node(placement.address)
            generation = Generation(
                partial(node.generate, request, timeout_s=self._request_timeout_s, headers=headers),
                arrived=arrived,
                observer=observer,
                on_end=node.call_ended,
            )
            try:
                await generation.wait_started(timeout_s=self._stall_timeout_s)
            except (UnavailableError, OverloadedError) as refusal:
                error = refusal
                failed.add(placement.address)
                self._metrics.failed_attempts.labels(type(refusal).__name__).inc()
            except BaseException:
                generation.close()
                raise
            else:
                return generation
        raise error
