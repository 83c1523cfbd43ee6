"""The shell of an attention node: gRPC, the lease and the worker's life, in an event loop. Free of torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from kernelflume.anode.control import WorkerConfig
from kernelflume.anode.presence import Presence
from kernelflume.anode.process import WorkerProcess
from kernelflume.anode.reaper import LeaseReaper
from kernelflume.anode.servicer import AttentionNodeServicer
from kernelflume.anode.settings import AttentionNodeSettings
from kernelflume.core.errors import UnavailableError
from kernelflume.core.handshake import Handshake
from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.names import node_name
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import anode_pb2, anode_pb2_grpc
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.runtime.service import new_incarnation, run
from kernelflume.runtime.settings import load_or_exit
from kernelflume.runtime.tracing import TRACES_GRACE_S, open_tracer
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from kernelflume.anode.control import Ready
    from kernelflume.anode.launch import LaunchedWorker

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 300.0
"""Faulting in some hundred GiB takes minutes."""
_STOP_TIMEOUT_S = 5.0
_SERVICE_NAME = anode_pb2.DESCRIPTOR.services_by_name["AttentionNode"].full_name


async def serve(settings: AttentionNodeSettings, launched: LaunchedWorker, stop: asyncio.Event) -> None:
    """Run until ``stop`` is set or the worker ends.

    Raises:
        ConfigurationError: a setting cannot work.
        UnavailableError: the worker ended.
    """
    incarnation = new_incarnation()
    name = node_name(settings.node_id, incarnation)
    tracer = open_tracer(settings.tracing, service="anode", instance=settings.node_id)
    server = Server(settings.address, [_SERVICE_NAME], tls=settings.tls.open(), tracer=tracer)
    store = RedisStore(settings.redis_url, cluster=settings.cluster)
    async with contextlib.AsyncExitStack() as cleanup:
        cleanup.push_async_callback(asyncio.to_thread, tracer.close, TRACES_GRACE_S)
        cleanup.push_async_callback(store.close)
        started = await start_unless_stopped(launched, worker_config(settings, name), stop)
        if started is None:
            return
        worker, ready = started
        cleanup.push_async_callback(worker.stop, timeout_s=_STOP_TIMEOUT_S)
        handshake = Handshake(node_name=name, geometry=settings.kv_geometry, transport=ready.transport)
        servicer = AttentionNodeServicer(worker, ready, handshake, page_tokens=settings.page_tokens)
        anode_pb2_grpc.add_AttentionNodeServicer_to_server(servicer, server.grpc_server)
        await server.start()
        cleanup.push_async_callback(server.stop, _STOP_TIMEOUT_S)
        await server.set_serving(serving=True)
        host = settings.advertise_host or settings.address.rpartition(":")[0]
        address = f"{host}:{server.port}"
        tell = None
        if settings.metrics_port:
            # A node that is asked for no metrics starts without what serves them.
            from kernelflume.anode.metrics import AttentionNodeMetrics, serve_metrics  # noqa: PLC0415 - see above

            metrics = AttentionNodeMetrics()
            tell = metrics.take
            listen_host = settings.address.rpartition(":")[0]
            cleanup.callback(serve_metrics(listen_host, settings.metrics_port, metrics))
        presence = Presence(
            record=LeaseRecord(
                kind=NodeKind.ATTENTION, node_id=settings.node_id, incarnation=incarnation, address=address
            ),
            page_tokens=settings.page_tokens,
            worker=worker,
            store=store,
            reaper=LeaseReaper(grace_s=settings.link_grace_s),
            clock=MonotonicClock(),
            ttl_s=settings.lease_ttl_s,
            load_interval_s=settings.load_interval_s,
            tell=tell,
        )
        cleanup.push_async_callback(presence.leave)
        logger.info(
            "ready at %s: %s, %d pages of %d tokens, %d threads, %s "
            "(transport made in %.3f s, pool faulted in within %.3f s, kernel tested in %.3f s)",
            address, name, ready.num_pages, settings.page_tokens, ready.num_threads, ready.transport,
            ready.times.transport_s, ready.times.pool_s, ready.times.self_test_s,
        )  # fmt: skip
        await run_until_stopped(presence, worker, stop)


async def start_unless_stopped(
    launched: LaunchedWorker, config: WorkerConfig, stop: asyncio.Event
) -> tuple[WorkerProcess, Ready] | None:
    """Start the worker, or return None when told to stop meanwhile.

    Raises:
        KernelFlumeError: the worker cannot start.
    """
    stopped = asyncio.create_task(stop.wait())
    starting = asyncio.create_task(WorkerProcess.start(launched, config, timeout_s=_START_TIMEOUT_S))
    await asyncio.wait((stopped, starting), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if stop.is_set() and starting.cancel():
        await asyncio.gather(starting, return_exceptions=True)
        return None
    return await starting


async def run_until_stopped(presence: Presence, worker: WorkerProcess, stop: asyncio.Event) -> None:
    """Hold the lease until told to stop.

    Raises:
        UnavailableError: the worker ended.
    """
    stopped = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(worker.wait_ended())
    holding = asyncio.create_task(presence.run())
    tasks = (stopped, ended, holding)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return
        if not ended.done():  # the worker may be about to end: that is the better reason
            await asyncio.wait({ended}, timeout=_STOP_TIMEOUT_S)
        if ended.done():
            raise UnavailableError(ended.result())
        holding.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def worker_config(settings: AttentionNodeSettings, name: str) -> WorkerConfig:
    """Return what the worker is told."""
    num_cores = len(os.sched_getaffinity(0))
    return WorkerConfig(
        node_name=name,
        geometry=settings.kv_geometry,
        memory_bytes=settings.memory,
        page_tokens=settings.page_tokens,
        prefix_cache=settings.prefix_cache,
        prefix_cache_ttl_s=settings.prefix_cache_ttl_s,
        pinned_share=settings.pinned_share,
        num_threads=settings.threads or max(1, num_cores // 2),
        device=settings.device,
        kernel=settings.kernel,
        transport_error_handling=settings.transport_error_handling,
        doorbell_host=settings.doorbell_host,
        wait=settings.wait_policy,
        log_level=settings.log_level,
    )


def run_shell(arguments: list[str], launched: LaunchedWorker, *, lifeline: int | None = None) -> None:
    """Parse the settings and run.

    Args:
        arguments: the command line, without the program.
        launched: the worker, which waits for what it is told of them.
        lifeline: descriptor whose other end is closed when this node must end, instead of with its parent.
    """
    try:
        settings = load_or_exit(AttentionNodeSettings, program="kernelflume anode", argv=arguments)
        run("anode", settings, partial(serve, settings, launched), lifeline=lifeline)
    finally:
        launched.process.kill()
        launched.process.wait()
