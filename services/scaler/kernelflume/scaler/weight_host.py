"""Run a weight node as an actor of a Ray cluster: ``python -m kernelflume.scaler.weight_host``.

To whoever starts it this process is the weight node: it logs what that logs, ends when that ends and says
how, and a signal ends that in order. So nothing else has to know where the weight node runs; its lease tells
its address.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from kernelflume.core.errors import ConfigurationError, DeadlineError, UnavailableError
from kernelflume.core.leases import NodeKind
from kernelflume.runtime.clock import Deadline, MonotonicClock
from kernelflume.runtime.service import EXIT_REFUSED, run
from kernelflume.runtime.settings import load_or_exit, service_environment
from kernelflume.scaler.command import weight_node_command
from kernelflume.scaler.waiting import first_of, wait_until
from kernelflume.scaler.weight_host_settings import WeightHostSettings

try:
    from kernelflume.scaler.providers.ray.cluster import RayCluster
    from kernelflume.scaler.providers.ray.machines import Machines
    from kernelflume.scaler.providers.ray.service import HostedService, ServiceJob
except ImportError as error:
    sys.exit(f"kernelflume: a weight node on Ray needs `pip install 'kernelflume[ray]'`: {error}")

if TYPE_CHECKING:
    from kernelflume.runtime.clock import Clock

logger = logging.getLogger(__name__)

_DEMANDED_BY = "--weight-node-cpus and --weight-node-resources of `kernelflume serve`"
_LOG_TIMEOUT_S = 30.0
"""Longest wait for an answer about the log; an actor without news answers sooner."""
_LAST_LOG_S = 2.0
"""Longest wait for the last lines of a log, once the weight node has ended."""
_RETRY_S = 1.0
_LOOK_S = 0.5


async def serve(settings: WeightHostSettings, output: BinaryIO, stop: asyncio.Event) -> None:
    """Host the weight node until it ends or ``stop`` is set.

    Args:
        settings: what to run and where.
        output: gets what the weight node logs.
        stop: ends it in order.

    Raises:
        ConfigurationError: the weight node refused to start, or its model cannot be read on its Ray node.
        UnavailableError: it ended, Ray has no place for it, or the cluster cannot be reached.
        DeadlineError: another weight node of this name is there and stays.
    """
    cluster = RayCluster(settings.ray)
    try:
        await first_of(stop.wait(), _host(settings, cluster, output))
    finally:
        await cluster.leave()


async def _host(settings: WeightHostSettings, cluster: RayCluster, output: BinaryIO) -> NoReturn:
    """Host the weight node until it ends, which is always an error; when cancelled, end it in order."""
    clock = MonotonicClock()
    await cluster.join()
    await _wait_free(settings, cluster, clock)
    service = HostedService(
        _job(settings), cluster=cluster, machines=Machines(NodeKind.WEIGHT, clock), clock=clock
    )
    service.begin()
    copying = asyncio.create_task(copy_log(service, output))
    try:
        await asyncio.wait({service.end})
        ending = service.end.result()
    finally:
        await service.stop(grace_s=settings.stop_grace_s)
        if service.has_started:
            await asyncio.wait({copying}, timeout=_LAST_LOG_S)
        copying.cancel()
        await service.kill()
        await asyncio.gather(copying, return_exceptions=True)
    raise (ConfigurationError if ending.code == EXIT_REFUSED else UnavailableError)(ending.how)


async def copy_log(service: HostedService, output: BinaryIO) -> None:
    """Write what the service logs to ``output``, until it has ended and all of that is written."""
    num_bytes = 0
    while True:
        has_ended = service.end.done()
        try:
            chunk = await service.read_log(num_bytes, timeout_s=_LOG_TIMEOUT_S)
        except (UnavailableError, DeadlineError):
            if has_ended:
                return
            await asyncio.sleep(_RETRY_S)
            continue
        if chunk:
            num_bytes += len(chunk)
            output.write(chunk)
            output.flush()
        elif has_ended:
            return


async def _wait_free(settings: WeightHostSettings, cluster: RayCluster, clock: Clock) -> None:
    """Wait for the actor of an earlier start to go: Ray takes a moment to end those of a driver that died."""

    async def others() -> str | None:
        for name in await cluster.actors(settings.cluster):
            if (name.kind, name.node_id) == (NodeKind.WEIGHT, settings.node_id):
                return f"weight node {settings.node_id} of cluster {settings.cluster} still runs on Ray"
        return None

    await wait_until(others, Deadline(clock, settings.ray.connect_timeout_s), interval_s=_LOOK_S)


def _job(settings: WeightHostSettings) -> ServiceJob:
    return ServiceJob(
        cluster=settings.cluster,
        kind=NodeKind.WEIGHT,
        node_id=settings.node_id,
        title=f"weight node {settings.node_id}",
        command=partial(weight_node_command, settings),
        log_path=str(settings.log_dir.absolute() / f"{settings.node_id}.log"),
        demands=settings.ray.demands(memory_bytes=settings.memory),
        demanded_by=_DEMANDED_BY,
        placement_timeout_s=settings.ray.placement_timeout_s,
        needed_paths=(settings.model,),
        needed_by="model",
        environment=service_environment("wnode"),
    )


def main() -> None:
    """Parse the settings and run."""
    settings = load_or_exit(WeightHostSettings, program="kernelflume weight node on Ray")
    run("weight_host", settings, partial(serve, settings, sys.stdout.buffer))


if __name__ == "__main__":
    main()
