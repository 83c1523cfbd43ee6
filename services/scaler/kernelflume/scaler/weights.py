"""The weight nodes as the scaler needs them: prepare and forget endpoints, tell what they have adopted."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc

from kernelflume.core.errors import DeadlineError, KernelFlumeError, NotFoundError, UnavailableError
from kernelflume.core.leases import NodeKind
from kernelflume.rpc.channel import PLAINTEXT, Channels
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.clock import Deadline
from kernelflume.scaler.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.core.leases import LeaseRecord
    from kernelflume.core.routing import AttentionNodeEntry
    from kernelflume.runtime.clock import Clock
    from kernelflume.store.base import LeaseStore

logger = logging.getLogger(__name__)

_RELEASE_TIMEOUT_S = 5.0
_RETRY_INTERVAL_S = 0.2


class WeightNodes:
    """Speaks to every living weight node at once; one that dies meanwhile is left out."""

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        *,
        patience_s: float,
        on_prepared: Callable[[float, float], None],
        channels: Channels = PLAINTEXT,
    ) -> None:
        """Make a client without connections.

        Args:
            store: who is alive.
            clock: for deadlines.
            patience_s: how long a weight node that cannot be reached may keep its lease before it counts as a
                failure instead of as dead.
            on_prepared: told how long each path took to connect and to warm.
            channels: how weight nodes are called.
        """
        self._store = store
        self._clock = clock
        self._patience_s = patience_s
        self._channels = channels
        self._on_prepared = on_prepared

    async def prepare(self, entries: Sequence[AttentionNodeEntry], deadline: Deadline) -> None:
        """Make every living weight node connect to each of ``entries`` and warm the path.

        Raises:
            KernelFlumeError: a weight node could not; the message names both and says why.
        """
        living = await self._store.living(NodeKind.WEIGHT)
        try:
            async with asyncio.TaskGroup() as group:
                for weight in living:
                    for entry in entries:
                        group.create_task(self._prepare_one(weight, entry, deadline))
        except ExceptionGroup as failures:
            # The first failure has cancelled the other calls; it is the cause.
            raise failures.exceptions[0] from None

    async def _prepare_one(self, weight: LeaseRecord, entry: AttentionNodeEntry, deadline: Deadline) -> None:
        patience = Deadline(self._clock, self._patience_s)
        request = wnode_pb2.PrepareEndpointRequest(
            node_id=entry.node_id, incarnation=entry.incarnation, address=entry.address
        )
        async with self._channels.open(weight.address) as channel:
            stub = wnode_pb2_grpc.WeightNodeStub(channel)
            while True:
                try:
                    times = await stub.PrepareEndpoint(request, timeout=deadline.remaining_s)
                except grpc.aio.AioRpcError as failure:
                    error = error_of(failure)
                else:
                    logger.info(
                        "weight node %s prepared %s: connected in %.3f s, warmed in %.3f s",
                        weight.name,
                        entry.name,
                        times.connect_seconds,
                        times.warm_seconds,
                    )
                    self._on_prepared(times.connect_seconds, times.warm_seconds)
                    return
                if not await self._is_living(weight):
                    return
                if not isinstance(error, UnavailableError) or patience.expired or deadline.expired:
                    raise KernelFlumeError(f"weight node {weight.name} did not prepare {entry.name}: {error}")
                await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _is_living(self, weight: LeaseRecord) -> bool:
        return any(record.name == weight.name for record in await self._store.living(NodeKind.WEIGHT))

    async def wait_adopted(self, epoch: int, deadline: Deadline) -> None:
        """Wait until no living weight node uses an older snapshot than ``epoch``.

        Raises:
            DeadlineError: one still does.
        """

        async def probe() -> str | None:
            return behind(await self._store.living(NodeKind.WEIGHT), epoch)

        await wait_until(probe, deadline)

    async def release(self, entries: Sequence[AttentionNodeEntry], deadline: Deadline) -> None:
        """Make every living weight node forget each of ``entries``; wait while one still refers to it.

        One that cannot be reached for long is not waited for: it learns from the table.

        Raises:
            DeadlineError: one still refers to a node.
        """
        patience = Deadline(self._clock, self._patience_s)
        forgotten: set[tuple[str, str]] = set()

        async def probe() -> str | None:
            missing: str | None = None
            for weight in await self._store.living(NodeKind.WEIGHT):
                for entry in entries:
                    if (weight.name, entry.name) in forgotten:
                        continue
                    refusal = await self._release_one(weight, entry)
                    if isinstance(refusal, UnavailableError | DeadlineError) and patience.expired:
                        logger.warning(
                            "%s cannot be told to release %s: %s",
                            weight.name,
                            entry.name,
                            refusal,
                        )
                        refusal = None
                    if refusal is None:
                        forgotten.add((weight.name, entry.name))
                    else:
                        missing = f"weight node {weight.name} has not released {entry.name}: {refusal}"
            return missing

        await wait_until(probe, deadline, interval_s=_RETRY_INTERVAL_S)

    async def _release_one(self, weight: LeaseRecord, entry: AttentionNodeEntry) -> KernelFlumeError | None:
        request = wnode_pb2.ReleaseEndpointRequest(node_id=entry.node_id, incarnation=entry.incarnation)
        async with self._channels.open(weight.address) as channel:
            try:
                await wnode_pb2_grpc.WeightNodeStub(channel).ReleaseEndpoint(
                    request, timeout=_RELEASE_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as failure:
                error = error_of(failure)
                return None if isinstance(error, NotFoundError) else error
        return None


def behind(weights: Sequence[LeaseRecord], epoch: int) -> str | None:
    """Return which weight node uses an older snapshot than ``epoch``, or None."""
    for weight in weights:
        if weight.load.adopted_epoch < epoch:
            return f"weight node {weight.name} is at epoch {weight.load.adopted_epoch}, not yet at {epoch}"
    return None
