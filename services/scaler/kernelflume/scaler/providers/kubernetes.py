"""Attention nodes as pods of a StatefulSet, whose number of replicas is set."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConflictError, UnavailableError
from kernelflume.core.leases import NodeKind
from kernelflume.scaler.providers.pods import (
    first_look,
    highest_ordinal_first,
    judge,
    next_ordinal,
    ordinal_of,
    pod_name,
    replicas_needed,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from kernelflume.scaler.providers.pods import Watched
    from kernelflume.scaler.providers.statefulset import StatefulSet
    from kernelflume.store.base import LeaseStore

logger = logging.getLogger(__name__)

_WAIT_INTERVAL_S = 0.2
_KILL_GRACE_S = 1.0
_KILL_TIMEOUT_S = 30.0
"""Longest wait for a pod that was killed; its machine may be gone, and only an administrator knows."""


class KubernetesProvider:
    """Scales one StatefulSet. Its pods outlive the scaler.

    A StatefulSet ends its highest ordinal only, and starts a pod anew that is lost. So ids come back, nodes
    are drained from the highest ordinal down, and a pod that nobody uses is taken before one is added.
    """

    adopts = False
    """A pod is added where none is free."""
    reuses_ids = True
    """Ids are the names of pods."""

    def __init__(
        self,
        stateful_set: StatefulSet,
        store: LeaseStore,
        *,
        in_use: Callable[[], Awaitable[Collection[str]]],
        poll_interval_s: float,
    ) -> None:
        """Make a provider that has launched nothing.

        Args:
            stateful_set: whose pods the nodes are.
            store: tells whether an earlier pod of a name still holds its lease.
            in_use: returns the ids of the nodes in the routing table.
            poll_interval_s: how often the pods of launched nodes are looked at.
        """
        self._stateful_set = stateful_set
        self._store = store
        self._in_use = in_use
        self._poll_interval_s = poll_interval_s
        self._scaling = asyncio.Lock()
        self._launched: dict[str, Watched] = {}
        self._faults: dict[str, str] = {}
        self._retired: set[str] = set()
        """Nodes that were terminated and not launched again; their pods may be there."""
        self._is_shrink_due = False
        self._poller: asyncio.Task[None] | None = None

    def victim_order(self, node_ids: Sequence[str]) -> Sequence[str]:
        """Highest ordinal first: a StatefulSet ends no other."""
        return highest_ordinal_first(self._stateful_set.name, node_ids)

    async def launch(self, taken: Collection[str]) -> str:
        """Take a pod that nobody uses, or add one."""
        self._poll()
        async with self._scaling:
            try:
                ordinal = await self._grow({*taken, *self._launched})
                watched = first_look(await self._stateful_set.pod(ordinal))
            except BaseException as error:
                self._is_shrink_due = True  # a pod may have been added
                if isinstance(error, ConflictError):
                    raise UnavailableError(str(error)) from error
                raise
            node_id = pod_name(self._stateful_set.name, ordinal)
            self._launched[node_id] = watched
            self._retired.discard(node_id)
            self._faults.pop(node_id, None)
        logger.info("attention node %s is a pod %s", node_id, "that was free" if watched.uid else "to come")
        return node_id

    def ended(self) -> Mapping[str, str]:
        """Return the launched nodes whose pod ended or cannot start, as of the last look at it."""
        return dict(self._faults)

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        """Remove the pod if it is the highest, else have it started anew; kill it after the grace."""
        ordinal = ordinal_of(self._stateful_set.name, node_id)
        if ordinal is None:
            return
        self._launched.pop(node_id, None)
        self._faults.pop(node_id, None)
        is_repeated = node_id in self._retired
        # Before anything is waited for: nodes that are terminated together are removed together.
        self._retired.add(node_id)
        self._poll()
        try:
            pod = await self._stateful_set.pod(ordinal)
            replicas = await self._shrink()
            if pod is None or (is_repeated and ordinal < replicas):
                return
            if ordinal < replicas:
                await self._stateful_set.delete_pod(ordinal, grace_s=grace_s)
            if await self._is_gone(ordinal, pod.uid, within_s=grace_s):
                return
            logger.warning("attention node %s did not end within %g s and is killed", node_id, grace_s)
            await self._stateful_set.delete_pod(ordinal, grace_s=_KILL_GRACE_S)
            if not await self._is_gone(ordinal, pod.uid, within_s=_KILL_TIMEOUT_S):
                logger.warning("the pod of attention node %s is still there", node_id)
        except (UnavailableError, ConflictError) as error:
            self._is_shrink_due = True
            logger.warning("attention node %s is not ended yet: %s", node_id, error)

    async def close(self, *, grace_s: float) -> None:  # noqa: ARG002 - the seam's signature
        """Let go of all nodes; they run on, and the next scaler finds them in the routing table."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        self._launched.clear()
        self._stateful_set.close()

    async def _grow(self, taken: Collection[str]) -> int:
        """Find a free pod or add one, and return its ordinal."""
        name = self._stateful_set.name
        while True:
            living = {record.node_id for record in await self._store.living(NodeKind.ATTENTION)}
            chosen = -1

            def grown(replicas: int) -> int | None:
                nonlocal chosen
                chosen = next_ordinal(name, replicas, taken)
                node_id = pod_name(name, chosen)
                if chosen < replicas:
                    return None
                if node_id in taken:
                    raise UnavailableError(f"attention node {node_id} is still in the routing table")
                return None if node_id in living else chosen + 1  # noqa: B023 - called within this round

            replicas = await self._stateful_set.edit(grown)
            if chosen < replicas:
                return chosen
            # An earlier pod of that name is still ending: it is not to be taken for the new one.
            await asyncio.sleep(_WAIT_INTERVAL_S)

    async def _shrink(self) -> int:
        """Remove the pods above the highest one in use; returns the number of replicas."""
        async with self._scaling:
            used = ({*await self._in_use()} | self._launched.keys()) - self._retired
            needed = replicas_needed(self._stateful_set.name, used)
            replicas = await self._stateful_set.edit(lambda present: min(present, needed))
            self._is_shrink_due = False
            return replicas

    async def _is_gone(self, ordinal: int, uid: str, *, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                while True:
                    pod = await self._stateful_set.pod(ordinal)
                    if pod is None or pod.uid != uid:
                        return True
                    await asyncio.sleep(_WAIT_INTERVAL_S)
        except TimeoutError:
            return False

    def _poll(self) -> None:
        if self._poller is None:
            self._poller = asyncio.create_task(self._look_on(), name="look at pods")

    async def _look_on(self) -> None:
        """Look at the pods of launched nodes, and finish what could not be done, until cancelled."""
        last_failure = ""
        while True:
            try:
                if self._is_shrink_due:
                    await self._shrink()
                for node_id in list(self._launched):
                    await self._look_at(node_id)
                last_failure = ""
            except (UnavailableError, ConflictError) as error:
                if str(error) != last_failure:
                    logger.warning("the pods of attention nodes are not looked at: %s", error)
                last_failure = str(error)
            await asyncio.sleep(self._poll_interval_s)

    async def _look_at(self, node_id: str) -> None:
        ordinal = ordinal_of(self._stateful_set.name, node_id)
        if ordinal is None:
            return
        before = self._launched.get(node_id)
        pod = await self._stateful_set.pod(ordinal)
        if before is None or self._launched.get(node_id) is not before:
            return  # terminated meanwhile
        self._launched[node_id], fault = judge(before, pod)
        if fault is not None:
            self._faults[node_id] = fault
