"""A Ray cluster as this process knows it: joining it, calling it, and asking its actors."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

# Ray reads this when it is imported. Without it, each process that is told to stop logs the stack of a crash.
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kernelflume.core.errors import DeadlineError, UnavailableError
from kernelflume.scaler.providers.callthread import CallThread
from kernelflume.scaler.providers.ray.host import ServiceHost
from kernelflume.scaler.providers.ray.names import ActorName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelflume.scaler.providers.settings import RayActorSettings

T = TypeVar("T")

_MAX_REASON = 300
_FAILURES = (RayError, ConnectionError, OSError, RuntimeError, ValueError)
"""What Ray's calls raise when the cluster, or what they name in it, is not there."""


class UnreachableError(UnavailableError):
    """An actor did not answer; it may be dead."""


class RayCluster:
    """Owner of this process's part in a Ray cluster.

    All of Ray's calls are made in one thread of their own, one after another: they block, and a cluster that
    we start ourselves ends with the thread that started it. Actor handles are passed around as they are:
    dropping the last one ends its actor.
    """

    def __init__(self, settings: RayActorSettings) -> None:
        """Prepare to join; nothing is done before ``join``."""
        self._settings = settings
        self._thread = CallThread("ray")
        self._has_joined = False

    def set_settings(self, settings: RayActorSettings) -> None:
        """Go on with these; where the cluster is must be as before."""
        self._settings = settings

    async def join(self) -> None:
        """Become a driver of the cluster; may be tried again.

        Raises:
            UnavailableError: it cannot be reached.
        """
        self._has_joined = True  # or perhaps has: a call that gave no answer may still go on
        try:
            await self._call(self._init)
        except UnavailableError as error:
            raise UnavailableError(f"the Ray cluster at {self._settings.address}: {error}") from error

    async def leave(self) -> None:
        """Leave the cluster, if it was joined, and end the thread; no other call may follow."""
        if self._has_joined:
            self._has_joined = False
            with suppress(UnavailableError):
                await self._call(ray.shutdown)
        self._thread.close()

    async def machines(self) -> dict[str, dict[str, float]]:
        """Return the living machines by Ray's id, with all that each has of each resource."""
        nodes = await self._call(ray.nodes)
        return {node["NodeID"]: node["Resources"] for node in nodes if node["Alive"]}

    async def available(self) -> Mapping[str, float]:
        """Return what is free of each resource in the whole cluster."""
        return await self._call(ray.available_resources)

    async def actors(self, cluster: str) -> list[ActorName]:
        """Return the names of the actors of one KernelFlume cluster, whoever made them."""
        names = map(ActorName.parse, sorted(await self._call(ray.util.list_named_actors)))
        return [name for name in names if name is not None and name.cluster == cluster]

    async def handle(self, name: ActorName) -> Any | None:
        """Return an actor's handle, or None if it has just ended."""

        def get() -> Any | None:
            with suppress(ValueError):
                return ray.get_actor(str(name))
            return None

        return await self._call(get)

    async def create(self, name: ActorName, demands: Mapping[str, float], *, detached: bool) -> Any:
        """Create an actor that hosts a service, and return its handle; Ray may have no place for it yet.

        Args:
            name: of the actor. It goes to that machine if that has room, and to any other one else; without
                a machine it is for Ray to choose.
            demands: what it needs of each resource, as Ray names them.
            detached: True lets it outlive this process.
        """
        return await self._call(partial(_create, name, dict(demands), detached=detached))

    async def kill(self, actor: Any) -> None:
        """End an actor at once; one that has ended is no error."""
        await self._call(partial(ray.kill, actor))

    async def result(self, call: Callable[[], Any], *, timeout_s: float | None = None) -> Any:
        """Call a method of an actor and wait for its answer.

        Raises:
            UnavailableError: the actor is gone; ``UnreachableError`` if that is not certain.
            DeadlineError: there is no answer yet.
        """
        reference = await self._call(call)
        answer = asyncio.wrap_future(reference.future())
        # Ray sets the result whether it is still waited for or not: the future must not be cancelled.
        waiting = asyncio.shield(answer)
        answer.add_done_callback(mark_retrieved)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            raise DeadlineError(f"no answer within {timeout_s or 0:g} s") from None
        except ActorUnavailableError as error:
            raise UnreachableError(_reason(error)) from error
        except RayError as error:
            raise UnavailableError(_reason(error)) from error

    async def _call(self, function: Callable[[], T]) -> T:
        """Make a blocking call of Ray's.

        Raises:
            UnavailableError: it failed, or did not return in time.
        """
        try:
            return await self._thread.call(function, timeout_s=self._settings.connect_timeout_s)
        except _FAILURES as error:
            raise UnavailableError(_reason(error)) from error
        except DeadlineError as error:
            raise UnavailableError(f"Ray gave {error}") from error

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


def _create(name: ActorName, demands: dict[str, float], *, detached: bool) -> Any:
    strategy: Any = "SPREAD"
    if name.machine is not None:
        # Ray's own spreading is a preference, and knows nothing of which actors belong together. What it
        # knows better is what others use: a machine that turns out to be full is not waited for.
        strategy = NodeAffinitySchedulingStrategy(name.machine, soft=True, _spill_on_unavailable=True)
    return (
        ray.remote(ServiceHost)
        .options(
            name=str(name),
            num_cpus=demands.pop("CPU", 0),
            num_gpus=demands.pop("GPU", 0),
            memory=demands.pop("memory", None),
            resources=demands,
            scheduling_strategy=strategy,
            lifetime="detached" if detached else None,
            max_restarts=0,  # a node without its keys and values is another node
            max_task_retries=0,
        )
        .remote()
    )


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Mark a failure as seen, so that asyncio does not report one that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


def _reason(error: BaseException) -> str:
    """Return the first line of what Ray says, which may go on for a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:_MAX_REASON] if lines else type(error).__name__
