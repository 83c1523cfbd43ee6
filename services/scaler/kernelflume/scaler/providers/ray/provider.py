"""Attention nodes as actors of a Ray cluster, spread over its machines."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from kernelflume.core.errors import UnavailableError
from kernelflume.core.leases import NodeKind
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.scaler.providers.nodeids import NodeIds
from kernelflume.scaler.providers.ray.cluster import RayCluster
from kernelflume.scaler.providers.ray.machines import Machines
from kernelflume.scaler.providers.ray.service import HostedService, ServiceJob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from kernelflume.scaler.providers.ray.host import Place
    from kernelflume.scaler.providers.settings import RaySettings

logger = logging.getLogger(__name__)

_DEMANDED_BY = "ray.num-cpus, ray.num-gpus, ray.resources and attention-node-memory of the scaler"


class RayProvider:
    """Starts one actor for each node."""

    adopts = False
    """Each node is started here."""
    reuses_ids = False
    """Numbers count on."""

    def __init__(
        self,
        command: Callable[[str, Place], list[str]],
        settings: RaySettings,
        *,
        cluster: str,
        memory_bytes: int,
        log_dir: Path,
        in_use: Callable[[], Awaitable[Collection[str]]],
        environment: Mapping[str, str],
    ) -> None:
        """Make a provider without nodes; Ray is only looked for when it is first needed.

        Args:
            command: node id and where Ray put it -> the command line of that node.
            settings: of the Ray cluster and of what a node asks it for.
            cluster: prefix of the actors' names.
            memory_bytes: memory that a node asks Ray for.
            log_dir: absolute folder for ``<node id>.log`` on the Ray nodes; made if missing.
            in_use: returns the ids of the nodes in the routing table.
            environment: variables that each node gets besides those of its Ray node.
        """
        self._command = command
        self._settings = settings
        self._name = cluster
        self._demands = settings.demands(memory_bytes=memory_bytes)
        self._log_dir = log_dir
        self._in_use = in_use
        self._environment = environment
        self._clock = MonotonicClock()
        self._cluster = RayCluster(settings)
        self._machines = Machines(NodeKind.ATTENTION, self._clock)
        self._node_ids = NodeIds()
        self._hosted: dict[str, HostedService] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def set_settings(self, settings: RaySettings, *, memory_bytes: int) -> None:
        """Ask Ray for this from the next node on. Cluster and lifetime must be as before."""
        self._settings = settings
        self._demands = settings.demands(memory_bytes=memory_bytes)
        self._cluster.set_settings(settings)

    def victim_order(self, node_ids: Sequence[str]) -> None:
        """Any node can be ended."""

    async def launch(self, taken: Collection[str]) -> str:
        """Ask Ray for one more actor; whether it finds a place for it is told by ``ended``."""
        await self._connect()
        node_id = self._node_ids.next({*taken, *self._hosted})
        self._service(node_id).begin()
        return node_id

    def ended(self) -> Mapping[str, str]:
        """Return the nodes whose process, actor or Ray node ended unasked, with the reason."""
        if self._looking is None:
            # The first look of a scaler that leads: nodes of the one before may be there.
            self._looking = asyncio.create_task(self._look_once(), name="look for nodes on Ray")
        return {
            node_id: service.end.result().how
            for node_id, service in self._hosted.items()
            if service.end.done()
        }

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        """Stop the service in order, kill it after the grace, then end its actor."""
        service = self._hosted.get(node_id)
        if service is not None:
            await service.terminate(grace_s=grace_s)
            self._hosted.pop(node_id, None)

    async def close(self, *, grace_s: float) -> None:
        """End all nodes at the same time, unless they are detached, and leave the Ray cluster."""
        if self._looking is not None:
            self._looking.cancel()
        if self._settings.lifetime == "scaler":
            await asyncio.gather(
                *(self.terminate(node_id, grace_s=grace_s) for node_id in list(self._hosted))
            )
        for service in self._hosted.values():
            service.let_go()
        await asyncio.gather(*(service.end for service in self._hosted.values()), return_exceptions=True)
        self._hosted.clear()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        await self._cluster.leave()

    def _service(self, node_id: str) -> HostedService:
        job = ServiceJob(
            cluster=self._name,
            kind=NodeKind.ATTENTION,
            node_id=node_id,
            title=f"attention node {node_id}",
            command=partial(self._command, node_id),
            log_path=str(self._log_dir / f"{node_id}.log"),
            demands=self._demands,
            demanded_by=_DEMANDED_BY,
            placement_timeout_s=self._settings.placement_timeout_s,
            is_detached=self._settings.lifetime == "detached",
            environment=self._environment,
        )
        service = HostedService(job, cluster=self._cluster, machines=self._machines, clock=self._clock)
        self._hosted[node_id] = service
        return service

    async def _connect(self) -> None:
        """Join the cluster and take over what is there; a failed try is repeated at the next call.

        Raises:
            UnavailableError: Ray, or the routing table, cannot be reached.
        """
        connecting = self._connecting
        if connecting is None or (connecting.done() and (connecting.cancelled() or connecting.exception())):
            connecting = self._connecting = asyncio.create_task(self._join(), name="join the Ray cluster")
        await asyncio.shield(connecting)

    async def _join(self) -> None:
        await self._cluster.join()
        names = [
            name
            for name in await self._cluster.actors(self._name)
            if name.kind is NodeKind.ATTENTION and name.node_id not in self._hosted
        ]
        in_use = set(await self._in_use()) if names else set()
        for name in names:
            actor = await self._cluster.handle(name)
            if actor is None:
                continue
            if name.node_id in in_use:
                logger.info("attention node %s on Ray is taken over", name.node_id)
                self._service(name.node_id).rejoin(actor)
            else:
                logger.warning(
                    "the actor of attention node %s was left behind on Ray and is killed", name.node_id
                )
                await self._cluster.kill(actor)

    async def _look_once(self) -> None:
        try:
            await self._connect()
        except UnavailableError as error:
            logger.warning("nodes on Ray are not looked for: %s", error)
