"""Start the scaler: ``python -m kernelflume.scaler``."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import start_http_server

from kernelflume.core.errors import ConfigurationError, UnavailableError
from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.profile import PerformanceProfile
from kernelflume.rpc.channel import Channels
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.runtime.service import new_incarnation, run
from kernelflume.runtime.settings import load_or_exit
from kernelflume.runtime.smallfile import read_small_file
from kernelflume.runtime.tls import read_token
from kernelflume.runtime.tracing import NO_TRACER, TRACES_GRACE_S, open_tracer
from kernelflume.scaler.actors import Actors
from kernelflume.scaler.book import OperationBook
from kernelflume.scaler.controller import Controller, ControllerSettings
from kernelflume.scaler.decision_log import DecisionLog
from kernelflume.scaler.leader import Leadership
from kernelflume.scaler.metrics import ScalerMetrics
from kernelflume.scaler.policy import PolicySettings
from kernelflume.scaler.policy_source import PolicySource
from kernelflume.scaler.providers.choice import make_provider
from kernelflume.scaler.providers.live import LiveSettings
from kernelflume.scaler.providers.standby import StandbyProvider
from kernelflume.scaler.servicer import ScalerAdminServicer
from kernelflume.scaler.settings import ScalerSettings
from kernelflume.scaler.table import Table
from kernelflume.scaler.waiting import first_of
from kernelflume.scaler.weights import WeightNodes
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.scaling_policy import ScalingPolicy

logger = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 0.25
_STALENESS_S = 1.0
"""Until a node's figures reach a look: how often nodes tell them, twice over, and the look interval."""
_POLICY_INTERVAL_S = 1.0
_MAX_ENDED_OPERATIONS = 100
_RPC_GRACE_S = 1.0
_SERVICE_NAME = scaler_pb2.DESCRIPTOR.services_by_name["ScalerAdmin"].full_name


async def serve(settings: ScalerSettings, stop: asyncio.Event) -> None:
    """Build the scaler, lead or stand by until ``stop`` is set, and clean up.

    Raises:
        ConfigurationError: it cannot listen, or the provider cannot work.
        UnavailableError: the store cannot be reached at the start.
        ConflictError: another scaler took the leadership.
    """
    clock = MonotonicClock()
    metrics = ScalerMetrics()
    book = OperationBook(max_ended=_MAX_ENDED_OPERATIONS)
    geometry = settings.kv_geometry()
    token_bytes = geometry.token_bytes if geometry is not None else 0
    host = settings.address.rpartition(":")[0]
    tls = settings.tls.open()
    token = read_token("admin-token-file", settings.admin_token_file)
    tracer = open_tracer(settings.tracing, service="scaler", instance=settings.node_id)
    channels = Channels(tls=tls, traced=tracer is not NO_TRACER)
    async with AsyncExitStack() as cleanup:  # undone in reverse order
        cleanup.push_async_callback(asyncio.to_thread, tracer.close, TRACES_GRACE_S)
        store = RedisStore(settings.redis_url, cluster=settings.cluster)
        cleanup.push_async_callback(store.close)
        source = PolicySource(settings, store)
        live = LiveSettings(source.settings)
        provider = make_provider(live, store)
        cleanup.push_async_callback(partial(provider.close, grace_s=settings.terminate_grace_s))
        leadership = Leadership(store, clock, ttl_s=settings.leader_ttl_s)
        cleanup.push_async_callback(_resign, leadership)
        actors = Actors(
            store=store,
            table=Table(store, leadership, clock),
            provider=provider,
            weights=WeightNodes(
                store,
                clock,
                patience_s=settings.weight_node_patience_s,
                channels=channels,
                on_prepared=metrics.path_prepared,
            ),
            clock=clock,
            commit_patience_s=settings.operation_deadline_s,
            release_timeout_s=settings.operation_deadline_s,
            terminate_grace_s=settings.terminate_grace_s,
            channels=channels,
            tracer=tracer,
        )
        controller = Controller(
            actors, book, metrics, DecisionLog(), _controller_settings(settings, source.policy, token_bytes)
        )
        cleanup.push_async_callback(controller.close)

        def put_in_force(policy: ScalingPolicy) -> None:
            live.put(source.settings)
            controller.set_scaling(policy)

        servicer = ScalerAdminServicer(
            controller=controller,
            book=book,
            store=store,
            leadership=leadership,
            clock=clock,
            source=source,
            put_in_force=put_in_force,
            token_bytes=token_bytes,
        )
        server = Server(settings.address, [_SERVICE_NAME], tls=tls, token=token, tracer=tracer)
        scaler_pb2_grpc.add_ScalerAdminServicer_to_server(servicer, server.grpc_server)
        await server.start()
        cleanup.push_async_callback(server.stop, _RPC_GRACE_S)
        if settings.metrics_port:
            cleanup.callback(_serve_metrics(host, settings.metrics_port, metrics))
        record = LeaseRecord(
            kind=NodeKind.SCALER,
            node_id=settings.node_id,
            incarnation=new_incarnation(),
            address=f"{host}:{server.port}",
        )
        logger.info("admin service listens at %s", record.address)

        async def act() -> None:
            await leadership.acquire(record, contact_timeout_s=settings.store_timeout_s)
            put_in_force(await source.recall())
            await server.set_serving(serving=True)
            work = [
                leadership.keep(),
                controller.run(),
                _follow(source, put_in_force),
                _tell_health(controller, server),
            ]
            if isinstance(provider, StandbyProvider):
                work.append(provider.keep(partial(_taken_ids, actors), grace_s=settings.terminate_grace_s))
            await first_of(*work)

        await first_of(stop.wait(), act())


async def _taken_ids(actors: Actors) -> frozenset[str]:
    """Return the ids that a new attention node must not have."""
    living = await actors.store.living(NodeKind.ATTENTION)
    return actors.table.seen_node_ids | {record.node_id for record in living}


async def _follow(source: PolicySource, put_in_force: Callable[[ScalingPolicy], None]) -> None:
    """Put every good edit of the policy file in force."""
    while True:
        await asyncio.sleep(_POLICY_INTERVAL_S)
        policy = source.look()
        if policy is not None:
            logger.info("the policy of %s is in force", source.origin)
            put_in_force(policy)


async def _tell_health(controller: Controller, server: Server) -> None:
    """Answer health checks with NOT_SERVING while the routing table is damaged."""
    is_told = True
    while True:
        await asyncio.sleep(_LOOK_INTERVAL_S)
        if controller.is_table_readable is not is_told:
            is_told = controller.is_table_readable
            await server.set_serving(serving=is_told)


def _profile(settings: ScalerSettings) -> tuple[PerformanceProfile | None, str]:
    """Return the profile of the file and the file's digest; None and '' without one."""
    path = settings.profile_file
    if path is None:
        return None, ""
    try:
        content = read_small_file(path)
        profile = PerformanceProfile.from_dict(json.loads(content))
    except (ValueError, RecursionError, ConfigurationError) as error:
        raise ConfigurationError(f"profile-file: {path}: {error}") from error
    geometry = settings.kv_geometry()
    if geometry is not None and geometry.num_layers != profile.num_layers:
        raise ConfigurationError(
            f"profile-file: {path} is of {profile.model_id} with {profile.num_layers} layers, "
            f"and {geometry.model_id} has {geometry.num_layers}"
        )
    return profile, hashlib.sha256(content.encode()).hexdigest()


def _controller_settings(
    settings: ScalerSettings, scaling: ScalingPolicy, token_bytes: int
) -> ControllerSettings:
    if settings.attention_nodes and (fault := scaling.fault_of(settings.attention_nodes)):
        raise ConfigurationError(f"attention-nodes: {fault}: the bounds of the scaling policy")
    profile, digest = _profile(settings)
    return ControllerSettings(
        policy=PolicySettings(
            scaling=scaling,
            profile=profile,
            token_bytes=max(1, token_bytes),
            staleness_s=_STALENESS_S,
            lost_grace_s=settings.lost_grace_s,
            retry_min_s=settings.retry_min_s,
            retry_max_s=settings.retry_max_s,
        ),
        initial_target=settings.attention_nodes or None,
        operation_deadline_s=settings.operation_deadline_s,
        look_interval_s=_LOOK_INTERVAL_S,
        scaler=settings.node_id,
        profile_digest=digest,
        geometry=settings.kv_geometry(),
    )


async def _resign(leadership: Leadership) -> None:
    try:
        await leadership.resign()
    except UnavailableError as error:
        logger.warning("the leadership runs out by itself: %s", error)


def _serve_metrics(host: str, port: int, metrics: ScalerMetrics) -> Callable[[], None]:
    """Serve metrics from a thread of their own; the returned call ends it."""
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise ConfigurationError(f"metrics-port: cannot listen on {host}:{port}: {error}") from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close


if __name__ == "__main__":
    _settings = load_or_exit(ScalerSettings, program="kernelflume scaler")
    run("scaler", _settings, partial(serve, _settings))
