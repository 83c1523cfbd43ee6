"""The life of one service on Ray: a place for its actor, its start there, its end and what is said of it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import DeadlineError, UnavailableError
from kernelflume.runtime.clock import Deadline
from kernelflume.runtime.service import EXIT_REFUSED
from kernelflume.scaler.providers.ray.cluster import UnreachableError, mark_retrieved
from kernelflume.scaler.providers.ray.host import Ending
from kernelflume.scaler.providers.ray.names import ActorName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelflume.core.leases import NodeKind
    from kernelflume.runtime.clock import Clock
    from kernelflume.scaler.providers.ray.cluster import RayCluster
    from kernelflume.scaler.providers.ray.host import Place
    from kernelflume.scaler.providers.ray.machines import Machines

logger = logging.getLogger(__name__)

_UNREACHABLE_S = 2.0
"""An actor that Ray cannot reach for this long counts as dead; each try takes as long again."""
_ANSWER_TIMEOUT_S = 5.0
"""Longest wait for the answer of an actor that has nothing to do."""
_RETRY_INTERVAL_S = 0.5
_NUM_PLACEMENTS = 3
"""How often a place is sought for an actor that Ray lost before it started."""
_KILL_TIMEOUT_S = 10.0
"""Longest wait for Ray to confirm that a killed actor is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceJob:
    """What is to run, and what for."""

    cluster: str
    kind: NodeKind
    node_id: str
    title: str
    """What a person is told it is, like `attention node a-1`."""
    command: Callable[[Place], list[str]]
    """Returns its command line once its place is known."""
    log_path: str
    """File on its Ray node that its output goes to."""
    demands: Mapping[str, float]
    """What it needs of each resource, as Ray names them."""
    demanded_by: str
    """The settings that this follows from, for a person."""
    placement_timeout_s: float
    is_detached: bool = False
    """True lets it outlive this process."""
    needed_paths: tuple[str, ...] = ()
    """Files and folders without which it is not started."""
    needed_by: str = ""
    """The setting that names them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it gets besides those of the Ray node."""


class HostedService:
    """One service. Begin its life with ``begin`` or ``rejoin``; it is over when ``end`` is done."""

    def __init__(self, job: ServiceJob, *, cluster: RayCluster, machines: Machines, clock: Clock) -> None:
        self._job = job
        self._cluster = cluster
        self._machines = machines
        self._clock = clock
        self._making: asyncio.Future[Any] | None = None
        """The actor's handle, once there is one. Dropping the last handle of an actor ends it."""
        self._is_unwanted = False
        self._is_placed = False
        """True once Ray has found a place for the actor: one that has none hears nothing."""
        self.has_started = False
        """True once the actor was told to run the service: from then on there may be a log."""
        self.end: asyncio.Task[Ending]
        """Ends with the service, and says how that ended."""

    def begin(self) -> None:
        """Ask Ray for an actor and start the service in it; returns at once."""
        self._making = self._make(1)
        self.end = asyncio.create_task(self._live(), name=f"host {self._job.node_id}")

    def rejoin(self, actor: Any) -> None:
        """Take over a service that an earlier process started; returns at once."""
        self._making = asyncio.get_running_loop().create_future()
        self._making.set_result(actor)
        self._is_placed = self.has_started = True
        self.end = asyncio.create_task(self._live_on(actor), name=f"host {self._job.node_id}")

    async def stop(self, *, grace_s: float) -> None:
        """Stop the service in order, kill it after the grace; its actor stays, if it has a place already."""
        self._is_unwanted = True
        if not self._is_placed or self.end.done():
            return
        try:
            actor = await self._actor()
            await self._cluster.result(
                lambda: actor.stop.remote(grace_s), timeout_s=grace_s + _ANSWER_TIMEOUT_S
            )
        except (UnavailableError, DeadlineError) as error:
            logger.warning("%s could not be stopped in order: %s", self._job.title, error)

    async def terminate(self, *, grace_s: float) -> None:
        """Stop the service in order, kill it after the grace, then end its actor."""
        await self.stop(grace_s=grace_s)
        await self.kill()

    async def kill(self) -> None:
        """End its actor, and with it the service if that still runs."""
        try:
            await self._cluster.kill(await self._actor())
            await asyncio.wait({self.end}, timeout=_KILL_TIMEOUT_S)
        except UnavailableError as error:
            logger.warning("the actor of %s may be left behind: %s", self._job.title, error)
        self.let_go()
        self._machines.forget(self._job.node_id)

    def let_go(self) -> None:
        """Watch it no longer."""
        self.end.cancel()

    async def place(self, *, timeout_s: float = _ANSWER_TIMEOUT_S) -> Place:
        """Ask the actor where it is.

        Raises:
            UnavailableError: there is none any more.
            DeadlineError: it has no place yet, or does not answer.
        """
        actor = await self._actor()
        place: Place = await self._cluster.result(actor.place.remote, timeout_s=timeout_s)
        return place

    async def read_log(self, start: int, *, timeout_s: float) -> bytes:
        """Return what the service wrote after its first ``start`` bytes; waits a while for more.

        Raises:
            UnavailableError: the actor is gone, or was not made.
            DeadlineError: it does not answer.
        """
        actor = await self._actor()
        chunk: bytes = await self._cluster.result(lambda: actor.read_log.remote(start), timeout_s=timeout_s)
        return chunk

    def _actor(self) -> asyncio.Future[Any]:
        if self._making is None:
            raise UnavailableError(f"{self._job.title} was not begun")
        return asyncio.shield(self._making)

    def _make(self, attempt: int) -> asyncio.Future[Any]:
        making = asyncio.ensure_future(self._create(attempt))
        making.add_done_callback(mark_retrieved)
        return making

    async def _create(self, attempt: int) -> Any:
        job = self._job
        alive, actors = await self._cluster.machines(), await self._cluster.actors(job.cluster)
        name = ActorName(
            cluster=job.cluster,
            kind=job.kind,
            node_id=job.node_id,
            attempt=attempt,
            machine=self._machines.choose(job.node_id, job.demands, alive=alive, actors=actors),
        )
        return await self._cluster.create(name, job.demands, detached=job.is_detached)

    async def _live(self) -> Ending:
        """Start the service where Ray puts the actor, and wait for its end."""
        failure = ""
        for attempt in range(1, _NUM_PLACEMENTS + 1):
            try:
                actor = await self._actor()
            except UnavailableError as error:
                return Ending(f"Ray did not make its actor: {error}")
            try:
                place = await self.place(timeout_s=self._job.placement_timeout_s)
            except DeadlineError:
                return Ending(await self._explain_no_place())
            except UnavailableError as error:
                failure = f"its actor did not start: {error}"
            else:
                self._is_placed = True
                self._machines.put(self._job.node_id, place.ray_node)
                return await self._run(actor, place)
            if self._is_unwanted or attempt == _NUM_PLACEMENTS:
                break
            # Ray goes on for a while to put actors on a machine that has just gone: try another one.
            logger.warning("%s is put elsewhere: %s", self._job.title, failure)
            self._machines.shun_that_of(self._job.node_id)
            with suppress(UnavailableError):
                await self._cluster.kill(actor)
            self._making = self._make(attempt + 1)
        return Ending(failure)

    async def _live_on(self, actor: Any) -> Ending:
        with suppress(UnavailableError, DeadlineError):  # what follows tells whether it is there
            self._machines.put(self._job.node_id, (await self.place()).ray_node)
        return await self._until_end(actor, actor.wait.remote)

    async def _run(self, actor: Any, place: Place) -> Ending:
        job = self._job
        where = f"Ray node {place.ray_node} ({place.host})"
        try:
            missing = await self._cluster.result(
                lambda: actor.missing.remote(job.needed_paths), timeout_s=_ANSWER_TIMEOUT_S
            )
        except UnavailableError as error:
            return Ending(f"its Ray actor is gone: {error}")
        except DeadlineError as error:
            return Ending(f"its Ray actor cannot tell what can be read on {where}: {error}")
        if missing:
            return Ending(
                f"{job.needed_by}: {', '.join(missing)} cannot be read on {where}, where Ray put it",
                EXIT_REFUSED,
            )
        logger.info("%s starts on %s, log %s", job.title, where, job.log_path)
        command = job.command(place)
        self.has_started = True
        return await self._until_end(
            actor, lambda: actor.run.remote(command, job.log_path, dict(job.environment))
        )

    async def _until_end(self, actor: Any, call: Callable[[], Any]) -> Ending:
        """Wait for the end of the service, or of what it runs on, and say which."""
        patience: Deadline | None = None
        while True:
            try:
                ending: Ending = await self._cluster.result(call)
            except UnreachableError as error:
                patience = patience or Deadline(self._clock, _UNREACHABLE_S)
                if patience.expired:
                    self._machines.shun_that_of(self._job.node_id)
                    return Ending(f"its Ray actor cannot be reached: {error}")
                await asyncio.sleep(_RETRY_INTERVAL_S)
                call = actor.wait.remote
            except UnavailableError as error:
                return Ending(f"its Ray actor is gone: {error}")
            else:
                return ending

    async def _explain_no_place(self) -> str:
        job = self._job
        asked = ", ".join(_amount(name, amount) for name, amount in job.demands.items()) or "nothing"
        waited = (
            f"Ray found no place for it within {job.placement_timeout_s:g} s: it asks for {asked} "
            f"({job.demanded_by})"
        )
        try:
            machines, free = await self._cluster.machines(), await self._cluster.available()
        except UnavailableError:
            return waited
        if not any(_covers(has, job.demands) for has in machines.values()):
            return f"{waited}; no machine of the cluster has as much"
        left = ", ".join(_amount(name, free.get(name, 0.0)) for name in job.demands)
        return f"{waited}; free in the whole cluster: {left}"


def _amount(name: str, amount: float) -> str:
    return f"{name} {amount / 2**20:.0f} MiB" if name == "memory" else f"{name} {amount:g}"


def _covers(has: Mapping[str, float], demands: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in demands.items())
