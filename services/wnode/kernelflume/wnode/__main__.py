"""Start a weight node: ``python -m kernelflume.wnode`` or ``kernelflume wnode``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server

from kernelflume.checkpoint.source import resolve
from kernelflume.core.errors import ConfigurationError, UnavailableError
from kernelflume.core.geometry import kv_dtype_of
from kernelflume.core.names import node_name
from kernelflume.rpc.channel import Channels
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.service import new_incarnation, run
from kernelflume.runtime.settings import load_or_exit
from kernelflume.runtime.tracing import NO_TRACER, TRACES_GRACE_S, open_tracer
from kernelflume.store.redis import RedisStore
from kernelflume.wnode.engine_client import EngineClient
from kernelflume.wnode.grammar.compiler import GrammarCompiler
from kernelflume.wnode.messages import EngineArguments
from kernelflume.wnode.metrics import WeightNodeMetrics
from kernelflume.wnode.servicer import WeightNodeServicer
from kernelflume.wnode.settings import WeightNodeSettings
from kernelflume.wnode.shell import Shell

if TYPE_CHECKING:
    from kernelflume.checkpoint.config import ModelConfig

logger = logging.getLogger(__name__)

_LOAD_TIMEOUT_S = 1800.0
_STOP_GRACE_S = 0.5
_IDLE_LOOK_S = 0.02
"""Between two looks whether requests still run, at the end."""
_SERVICE_NAME = wnode_pb2.DESCRIPTOR.services_by_name["WeightNode"].full_name


async def serve(settings: WeightNodeSettings, stop: asyncio.Event) -> None:
    """Run until ``stop`` is set or the engine fails.

    Raises:
        ConfigurationError: a setting cannot work.
        UnavailableError: the engine ended.
    """
    checkpoint = await asyncio.to_thread(resolve, settings.model, dummy_seed=settings.dummy_seed)
    if settings.load_format == "dummy":
        logger.warning("load_format=dummy: the weights are random, what this model answers is meaningless")
    dtype = checkpoint.config.concrete_dtype(settings.dtype, settings.device)
    kv_dtype = kv_dtype_of(settings.kv_cache_dtype, dtype)
    geometry = checkpoint.geometry(dtype, kv_dtype, settings.served_model_id or None)
    max_model_len = _max_model_len(settings, checkpoint.config)
    incarnation = new_incarnation()
    tls = settings.tls.open()
    tracer = open_tracer(settings.tracing, service="wnode", instance=settings.node_id)
    registry = CollectorRegistry()
    engine = EngineClient(
        EngineArguments(
            settings=settings,
            name=node_name(settings.node_id, incarnation),
            geometry=geometry,
            max_model_len=max_model_len,
            parent_pid=os.getpid(),
        )
    )
    grammars = GrammarCompiler(
        checkpoint.path,
        vocab_size=checkpoint.config.vocab_size,
        eos_token_ids=checkpoint.config.eos_token_ids,
        timeout_s=settings.grammar_timeout_s,
    )
    store = RedisStore(settings.redis_url, cluster=settings.cluster)
    shell = Shell(
        settings=settings,
        incarnation=incarnation,
        config=checkpoint.config,
        geometry=geometry,
        max_model_len=max_model_len,
        engine=engine,
        store=store,
        metrics=WeightNodeMetrics(registry),
        channels=Channels(tls=tls, traced=tracer is not NO_TRACER),
        grammars=grammars,
    )
    server = Server(settings.address, [_SERVICE_NAME], tls=tls, tracer=tracer)
    servicer = WeightNodeServicer(shell, tracer)
    wnode_pb2_grpc.add_WeightNodeServicer_to_server(servicer, server.grpc_server)
    await server.start()
    try:
        ready = await engine.start(shell.deliver, timeout_s=_LOAD_TIMEOUT_S)
        if settings.metrics_port:
            start_http_server(settings.metrics_port, registry=registry)
        address = f"{settings.address.rpartition(':')[0]}:{server.port}"
        running = asyncio.create_task(shell.run(address))
        await server.set_serving(serving=True)
        if settings.prepare_grammars:
            grammars.prepare()
        logger.info("ready at %s, model loaded in %.1f s", address, ready.load_seconds)
        await _wait_any(stop, engine.failed, running)
        await server.set_serving(serving=False)
        servicer.drain()
        await _wait_idle(shell, engine.failed, timeout_s=settings.drain_timeout_s)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        if engine.failed.is_set():
            raise UnavailableError(engine.failure)
    finally:
        servicer.drain()
        await server.stop(_STOP_GRACE_S)
        await grammars.close()
        await engine.stop()
        await store.close()
        await asyncio.to_thread(tracer.close, TRACES_GRACE_S)


def _max_model_len(settings: WeightNodeSettings, config: ModelConfig) -> int:
    limit = config.max_position_embeddings
    if settings.max_model_len > limit:
        raise ConfigurationError(f"max_model_len: {settings.max_model_len} exceeds the model's own {limit}")
    return settings.max_model_len or limit


async def _wait_any(stop: asyncio.Event, failed: asyncio.Event, running: asyncio.Task[None]) -> None:
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(failed.wait())]
    await asyncio.wait([*waits, running], return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def _wait_idle(shell: Shell, failed: asyncio.Event, *, timeout_s: float) -> None:
    """Wait until all requests have ended or gone elsewhere; the lease is held meanwhile."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while len(shell.requests) and not failed.is_set():  # noqa: ASYNC110 - it happens once
                await asyncio.sleep(_IDLE_LOOK_S)


def main() -> None:
    """Parse the settings and run."""
    settings = load_or_exit(WeightNodeSettings, program="kernelflume wnode")
    run("wnode", settings, partial(serve, settings))


if __name__ == "__main__":
    main()
