"""Attention nodes as actors of a Ray cluster, spread over its machines."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernelflume.core.errors import DeadlineError, UnavailableError
from kernelflume.scaler.providers.callthread import CallThread
from kernelflume.scaler.providers.nodeids import NodeIds
from kernelflume.scaler.providers.rayhost import NodeHost, Place
from kernelflume.scaler.providers.spread import least_used

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from kernelflume.scaler.providers.settings import RaySettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_UNREACHABLE_S = 2.0
"""An actor that Ray cannot reach for this long counts as dead; each try takes as long again."""
_SHUNNED_S = 30.0
"""How long nothing is put where an actor was lost: Ray itself may need half of that to notice."""
_ANSWER_TIMEOUT_S = 5.0
"""Longest wait for the answer of an actor that has nothing to do."""
_RETRY_INTERVAL_S = 0.5
_NUM_PLACEMENTS = 3
"""How often a place is sought for an actor that Ray lost before it started."""
_KILL_TIMEOUT_S = 10.0
"""Longest wait for Ray to confirm that a killed actor is gone."""
_MAX_REASON = 300
_RAY_FAILURES = (RayError, ConnectionError, OSError, RuntimeError, ValueError)
"""What Ray's calls raise when the cluster, or what they name in it, is not there."""


@dataclass(slots=True, kw_only=True)
class _Hosted:
    actor: asyncio.Future[Any]
    """The handle, once there is one. Dropping the last handle of an actor ends it."""
    is_unwanted: bool = False
    """True once it is to end."""
    end: asyncio.Task[str]
    """Ends with the node, and says how that ended."""
    placed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once Ray has found a place for the actor: one that has none hears nothing."""


class RayProvider:
    """Starts one actor for each node. All of Ray's calls are made in one thread of their own."""

    def __init__(
        self,
        command: Callable[[str, Place], list[str]],
        settings: RaySettings,
        *,
        cluster: str,
        memory_bytes: int,
        log_dir: Path,
        in_use: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        """Make a provider without nodes; Ray is only looked for when it is first needed.

        Args:
            command: node id and where Ray put it -> the command line of that node.
            settings: of the Ray cluster and of what a node asks it for.
            cluster: prefix of the actors' names.
            memory_bytes: memory that a node asks Ray for.
            log_dir: absolute folder for ``<node id>.log`` on the Ray nodes; made if missing.
            in_use: returns the ids of the nodes in the routing table.
        """
        self._command = command
        self._settings = settings
        self._cluster = cluster
        self._demands = settings.demands(memory_bytes=memory_bytes)
        self._log_dir = log_dir
        self._in_use = in_use
        self._thread = CallThread("ray")
        self._node_ids = NodeIds()
        self._hosted: dict[str, _Hosted] = {}
        self._shunned: dict[str, float] = {}
        """Ray node -> until when, on the monotonic clock, nothing is put there."""
        self._machines: dict[str, str] = {}
        """Node id -> Ray node that it is on, or is meant for while it has no place."""
        self._connecting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def adopts(self) -> bool:
        """False: each node is started here."""
        return False

    @property
    def reuses_ids(self) -> bool:
        """False: numbers count on."""
        return False

    def victim_order(self, node_ids: Sequence[str]) -> None:
        """Any node can be ended."""

    async def launch(self, taken: Collection[str]) -> str:
        """Ask Ray for one more actor; whether it finds a place for it is told by ``ended``."""
        await self._connect()
        node_id = self._node_ids.next({*taken, *self._hosted})
        # The task begins only after this method has ended.
        end = asyncio.create_task(self._start(node_id), name=f"host {node_id}")
        self._hosted[node_id] = _Hosted(actor=self._make_actor(node_id), end=end)
        return node_id

    def ended(self) -> Mapping[str, str]:
        """Return the nodes whose process, actor or Ray node ended unasked, with the reason."""
        if self._looking is None:
            # The first look of a scaler that leads: nodes of the one before may be there.
            self._looking = asyncio.create_task(self._look_once(), name="look for nodes on Ray")
        return {node_id: hosted.end.result() for node_id, hosted in self._hosted.items() if hosted.end.done()}

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        """Stop the service in order, kill it after the grace, then end its actor."""
        hosted = self._hosted.get(node_id)
        if hosted is None:
            return
        hosted.is_unwanted = True
        try:
            actor = await asyncio.shield(hosted.actor)
            if hosted.placed.is_set() and not hosted.end.done():
                await self._stop(node_id, actor, grace_s)
            await self._call(partial(ray.kill, actor))
            await asyncio.wait({hosted.end}, timeout=_KILL_TIMEOUT_S)
        except UnavailableError as error:
            logger.warning("the actor of attention node %s may be left behind: %s", node_id, error)
        hosted.end.cancel()
        self._hosted.pop(node_id, None)
        self._machines.pop(node_id, None)

    async def close(self, *, grace_s: float) -> None:
        """End all nodes at the same time, unless they are detached, and leave the Ray cluster."""
        if self._looking is not None:
            self._looking.cancel()
        if self._settings.lifetime == "scaler":
            await asyncio.gather(
                *(self.terminate(node_id, grace_s=grace_s) for node_id in list(self._hosted))
            )
        for hosted in self._hosted.values():
            hosted.end.cancel()
        await asyncio.gather(*(hosted.end for hosted in self._hosted.values()), return_exceptions=True)
        self._hosted.clear()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
            with suppress(UnavailableError):
                await self._call(ray.shutdown)
        self._thread.close()

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
        try:
            await self._call(self._init)
        except UnavailableError as error:
            raise UnavailableError(f"the Ray cluster at {self._settings.address}: {error}") from error
        actors = await self._call(self._named_actors)
        in_use = set(await self._in_use()) if actors else set()
        for node_id, handle in actors.items():
            if node_id in in_use:
                logger.info("attention node %s on Ray is taken over", node_id)
                actor: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                actor.set_result(handle)
                end = asyncio.create_task(self._rejoin(node_id, handle), name=f"host {node_id}")
                self._hosted[node_id] = _Hosted(actor=actor, end=end)
                self._hosted[node_id].placed.set()
            else:
                logger.warning("the actor of attention node %s was left behind on Ray and is killed", node_id)
                await self._call(partial(ray.kill, handle))

    def _init(self) -> None:
        """Join the cluster, in the thread."""
        if ray.is_initialized():
            return
        options: dict[str, Any] = {}
        if self._settings.address == "local":
            # A cluster that we start ourselves tells nobody about it.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options["include_dashboard"] = False
        ray.init(
            address=self._settings.address,
            namespace=self._settings.namespace,
            log_to_driver=False,
            configure_logging=False,
            **options,
        )

    def _named_actors(self) -> dict[str, Any]:
        """Return the actors of this cluster's nodes by node id, whoever started them."""
        prefix = f"{self._cluster}/"
        found = {}
        for name in sorted(ray.util.list_named_actors()):
            if name.startswith(prefix):
                with suppress(ValueError):  # it has just ended
                    found[name.removeprefix(prefix).partition("/")[0]] = ray.get_actor(name)
        return found

    def _create(self, node_id: str, suffix: str) -> Any:
        asked = dict(self._demands)
        strategy: Any = "SPREAD"
        machines = {
            node["NodeID"]: node["Resources"]
            for node in ray.nodes()
            if node["Alive"] and self._shunned.get(node["NodeID"], 0.0) < time.monotonic()
        }
        machine = least_used(machines, asked, list(self._machines.values()))
        if machine is not None:
            # Ray's own spreading is a preference, and knows nothing of which actors belong together. What it
            # knows better is what others use: a machine that turns out to be full is not waited for.
            strategy = NodeAffinitySchedulingStrategy(machine, soft=True, _spill_on_unavailable=True)
            self._machines[node_id] = machine
        return (
            ray.remote(NodeHost)
            .options(
                name=f"{self._cluster}/{node_id}{suffix}",
                num_cpus=asked.pop("CPU", 0),
                num_gpus=asked.pop("GPU", 0),
                memory=asked.pop("memory", None),
                resources=asked,
                scheduling_strategy=strategy,
                lifetime="detached" if self._settings.lifetime == "detached" else None,
                max_restarts=0,  # a node without its keys and values is another node
                max_task_retries=0,
            )
            .remote()
        )

    async def _start(self, node_id: str) -> str:
        """Start the service where Ray puts the actor, and wait for its end."""
        hosted = self._hosted[node_id]
        failure = ""
        for attempt in range(1, _NUM_PLACEMENTS + 1):
            try:
                actor = await asyncio.shield(hosted.actor)
            except UnavailableError as error:
                return f"Ray did not make its actor: {error}"
            try:
                place: Place = await self._result(
                    actor.place.remote, timeout_s=self._settings.placement_timeout_s
                )
            except DeadlineError:
                return await self._explain_no_place()
            except UnavailableError as error:
                failure = f"its actor did not start: {error}"
            else:
                hosted.placed.set()
                self._machines[node_id] = place.ray_node
                return await self._run(node_id, actor, place)
            if hosted.is_unwanted or attempt == _NUM_PLACEMENTS:
                break
            # Ray goes on for a while to put actors on a machine that has just gone: try another one.
            logger.warning("attention node %s is put elsewhere: %s", node_id, failure)
            self._shun_machine_of(node_id)
            with suppress(UnavailableError):
                await self._call(partial(ray.kill, actor))
            hosted.actor = self._make_actor(node_id, f"/{attempt + 1}")
        return failure

    async def _run(self, node_id: str, actor: Any, place: Place) -> str:
        log_path = self._log_dir / f"{node_id}.log"
        logger.info(
            "attention node %s starts on Ray node %s (%s), log %s",
            node_id,
            place.ray_node,
            place.host,
            log_path,
        )
        command = self._command(node_id, place)
        return await self._until_end(node_id, actor, partial(actor.run.remote, command, str(log_path)))

    def _make_actor(self, node_id: str, suffix: str = "") -> asyncio.Future[Any]:
        """Create an actor; the name of one that was lost may be taken for a while, hence the suffix."""
        making = asyncio.ensure_future(self._call(partial(self._create, node_id, suffix)))
        making.add_done_callback(_retrieve)
        return making

    def _shun_machine_of(self, node_id: str) -> None:
        machine = self._machines.pop(node_id, None)
        if machine is not None:
            self._shunned[machine] = time.monotonic() + _SHUNNED_S

    async def _rejoin(self, node_id: str, actor: Any) -> str:
        """Wait for the end of a service that an earlier scaler started."""
        with suppress(UnavailableError, DeadlineError):  # what follows tells whether it is there
            place: Place = await self._result(actor.place.remote, timeout_s=_ANSWER_TIMEOUT_S)
            self._machines[node_id] = place.ray_node
        return await self._until_end(node_id, actor, actor.wait.remote)

    async def _until_end(self, node_id: str, actor: Any, call: Callable[[], Any]) -> str:
        """Wait for the end of the service, or of what it runs on, and say which."""
        unreachable_since: float | None = None
        while True:
            try:
                ended: str = await self._result(call)
            except _UnreachableError as error:
                unreachable_since = unreachable_since or time.monotonic()
                if time.monotonic() - unreachable_since > _UNREACHABLE_S:
                    self._shun_machine_of(node_id)
                    return f"its Ray actor cannot be reached: {error}"
                await asyncio.sleep(_RETRY_INTERVAL_S)
                call = actor.wait.remote
            except UnavailableError as error:
                return f"its Ray actor is gone: {error}"
            else:
                return ended

    async def _explain_no_place(self) -> str:
        asked = ", ".join(f"{name} {amount:g}" for name, amount in self._demands.items()) or "nothing"
        waited = (
            f"Ray found no place for it within {self._settings.placement_timeout_s:g} s: it asks for {asked}"
        )
        try:
            free = await self._call(ray.available_resources)
        except UnavailableError:
            return waited
        left = ", ".join(f"{name} {free.get(name, 0):g}" for name in self._demands)
        return f"{waited}; free in the whole cluster: {left}"

    async def _stop(self, node_id: str, actor: Any, grace_s: float) -> None:
        try:
            await self._result(partial(actor.stop.remote, grace_s), timeout_s=grace_s + _ANSWER_TIMEOUT_S)
        except (UnavailableError, DeadlineError) as error:
            logger.warning("attention node %s could not be stopped in order: %s", node_id, error)

    async def _look_once(self) -> None:
        try:
            await self._connect()
        except UnavailableError as error:
            logger.warning("nodes on Ray are not looked for: %s", error)

    async def _call(self, function: Callable[[], T]) -> T:
        """Make a blocking call of Ray's.

        Raises:
            UnavailableError: it failed, or did not return in time.
        """
        try:
            return await self._thread.call(function, timeout_s=self._settings.connect_timeout_s)
        except _RAY_FAILURES as error:
            raise UnavailableError(_reason(error)) from error
        except DeadlineError as error:
            raise UnavailableError(f"Ray gave {error}") from error

    async def _result(self, call: Callable[[], Any], *, timeout_s: float | None = None) -> Any:
        """Call a method of an actor and wait for its answer.

        Raises:
            UnavailableError: the actor is gone; ``_UnreachableError`` if that is not certain.
            DeadlineError: there is no answer yet.
        """
        reference = await self._call(call)
        answer = asyncio.wrap_future(reference.future())
        # Ray sets the result whether it is still waited for or not: the future must not be cancelled.
        waiting = asyncio.shield(answer)
        answer.add_done_callback(_retrieve)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            raise DeadlineError(f"no answer within {timeout_s or 0:g} s") from None
        except ActorUnavailableError as error:
            raise _UnreachableError(_reason(error)) from error
        except RayError as error:
            raise UnavailableError(_reason(error)) from error


class _UnreachableError(UnavailableError):
    """An actor did not answer; it may be dead."""


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark a failure as seen, so that asyncio does not report one that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


def _reason(error: BaseException) -> str:
    """Return the first line of what Ray says, which may go on for a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:_MAX_REASON] if lines else type(error).__name__
