"""The router as a process: builds its parts, serves until told to stop, lets requests end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import uvicorn

from kernelflume.checkpoint.source import resolve
from kernelflume.core.errors import ConfigurationError, UnavailableError
from kernelflume.router.admission import Admission
from kernelflume.router.app import build_app
from kernelflume.router.balancer import Balancer
from kernelflume.router.bodyroom import BodyRoom
from kernelflume.router.connections import ConnectionBounds, connection_class
from kernelflume.router.course_parts import CourseParts
from kernelflume.router.dispatch import Dispatcher
from kernelflume.router.gateway import Gateway
from kernelflume.router.guard import guard
from kernelflume.router.httptls import HttpTls
from kernelflume.router.intake import Intake
from kernelflume.router.keysource import FileKeys, Keys, StoreKeys
from kernelflume.router.metrics import RouterMetrics
from kernelflume.router.placer import Placer
from kernelflume.router.roster import Roster
from kernelflume.router.sampling import GenerationDefaults
from kernelflume.router.tokenizer import Tokenizer
from kernelflume.router.tokens import TokenEndpoints
from kernelflume.router.tools.registry import choose_format
from kernelflume.router.ui.mount import mount_page
from kernelflume.router.weightnodes import WeightNodes
from kernelflume.router.workers import Workers
from kernelflume.rpc.channel import Channels
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.runtime.tracing import TRACES_GRACE_S, open_tracer
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from kernelflume.router.settings import RouterSettings
    from kernelflume.runtime.tracing import Tracer

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 2.0
"""Time for the errors of requests that shutdown ends to reach their clients."""
_KEEP_ALIVE_S = 75
_CERTIFICATES_INTERVAL_S = 5.0
_MAX_WAITING_BODIES = 256
"""Large bodies that wait for room, where there are no keys."""
_MAX_WAITING_BODIES_OF_KEY = 32


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the service shell has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: RouterSettings, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set, then end within the shutdown timeout.

    Raises:
        ConfigurationError: a setting stops the router from starting.
    """
    with ThreadPoolExecutor(settings.tokenizer_threads, thread_name_prefix="tokenizer") as executor:
        loop = asyncio.get_running_loop()
        checkpoint = await loop.run_in_executor(
            executor, lambda: resolve(settings.model, dummy_seed=settings.dummy_seed)
        )
        workers = Workers(executor, timeout_s=settings.body_timeout)
        tokenizer = await loop.run_in_executor(
            executor, lambda: Tokenizer.load(checkpoint.path, workers=workers)
        )
        tracer = open_tracer(settings.tracing, service="router", instance=socket.gethostname())
        store = None
        if not settings.weight_nodes or settings.ui or settings.auth.keys_in_store:
            store = RedisStore(settings.redis_url, cluster=settings.cluster)
        channels = Channels(tls=settings.tls.open())
        nodes = WeightNodes(
            addresses=settings.weight_nodes,
            leases=None if settings.weight_nodes else store,
            revision=checkpoint.revision,
            channels=channels,
            clock=MonotonicClock(),
            progress_timeout_s=settings.progress_timeout,
        )
        try:
            await _serve(
                settings,
                stop,
                tokenizer=tokenizer,
                defaults=GenerationDefaults.load(checkpoint.path),
                nodes=nodes,
                channels=channels,
                store=store,
                workers=workers,
                tracer=tracer,
            )
        finally:
            await nodes.close()
            await asyncio.to_thread(tracer.close, TRACES_GRACE_S)
            if store is not None:
                await store.close()


async def _serve(
    settings: RouterSettings,
    stop: asyncio.Event,
    *,
    tokenizer: Tokenizer,
    defaults: GenerationDefaults,
    nodes: WeightNodes,
    channels: Channels,
    store: RedisStore | None,
    workers: Workers,
    tracer: Tracer,
) -> None:
    clock = MonotonicClock()
    names = settings.model_names
    metrics = RouterMetrics(names[0], nodes.views)
    keys = await _open_keys(settings, store)
    admission = Admission(
        settings.max_concurrent_requests,
        max_waiting=settings.max_waiting_requests,
        queue_timeout_s=settings.queue_timeout,
        metrics=metrics,
        clock=clock,
    )
    intake = Intake(
        tokenizer=tokenizer,
        defaults=defaults,
        nodes=nodes,
        model_names=names,
        max_model_len=settings.max_model_len,
        max_choices=settings.max_choices,
        tool_format=choose_format(settings.tool_call_parser, tokenizer.tool_template),
        workers=workers,
    )
    roster = Roster()
    dispatcher = Dispatcher(
        CourseParts(
            nodes=nodes,
            placer=Placer(settings.placement, nodes, clock),
            metrics=metrics,
            clock=clock,
            request_timeout_s=settings.request_timeout,
            resume_timeout_s=settings.resume_timeout,
            hand_over_timeout_s=settings.hand_over_timeout,
            roster=roster,
        ),
        stall_timeout_s=settings.stall_timeout,
    )
    bodies = _new_body_room(settings, metrics)
    gateway = Gateway(
        settings,
        intake=intake,
        tokenizer=tokenizer,
        dispatcher=dispatcher,
        admission=admission,
        bodies=bodies,
        metrics=metrics,
        clock=clock,
        tracer=tracer,
    )
    app = build_app(
        gateway=gateway,
        tokens=TokenEndpoints(settings, intake=intake, tokenizer=tokenizer, bodies=bodies),
        intake=intake,
        admission=admission,
        metrics=metrics,
        model_names=names,
    )
    page = None
    if settings.ui and store is not None:
        page = mount_page(
            app, settings, store=store, nodes=nodes, channels=channels, metrics=metrics, clock=clock
        )
    guarded = guard(
        app,
        settings,
        endpoints={
            "/v1/chat/completions": gateway.chat,
            "/v1/completions": gateway.complete,
            "/v1/responses": gateway.respond,
        },
        keys=keys,
        admission=admission,
        metrics=metrics,
        clock=clock,
    )
    tls = HttpTls(settings.http_tls) if settings.http_tls.enabled else None
    with _listen(settings.host, settings.port, settings.write_timeout) as listener:
        server = _new_server(guarded, settings, tls)
        upkeep = [nodes.run(interval_s=settings.refresh_interval)]
        if settings.placement.balance.is_on:
            balancer = Balancer(settings.placement.balance, nodes, roster)
            upkeep.append(balancer.run(interval_s=settings.refresh_interval))
        if keys is not None:
            upkeep.append(keys.run(interval_s=settings.auth.refresh_interval))
        if tls is not None:
            upkeep.append(tls.run(interval_s=_CERTIFICATES_INTERVAL_S))
        refreshing = asyncio.gather(*upkeep)
        serving = asyncio.create_task(server.serve([listener]))
        host, port = listener.getsockname()[:2]
        scheme = "http" if tls is None else "https"
        # What was loaded by now stays for good: looking through it again and again would hold tokens up.
        gc.collect()
        gc.freeze()
        logger.info("listening", extra={"url": f"{scheme}://{host}:{port}", "models": names})
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((serving, stopping, refreshing), return_when=asyncio.FIRST_COMPLETED)
            await _drain(admission, settings.shutdown_timeout)
            if page is not None:
                await page.close()
            server.should_exit = True
            await serving
        finally:
            stopping.cancel()
            refreshing.cancel()
            await asyncio.gather(stopping, refreshing, return_exceptions=True)


def _new_body_room(settings: RouterSettings, metrics: RouterMetrics) -> BodyRoom:
    with_keys = settings.auth.enabled
    return BodyRoom(
        settings.max_bodies_size,
        share_bytes=settings.key_bodies_size if with_keys else settings.max_bodies_size,
        max_waiting=_MAX_WAITING_BODIES_OF_KEY if with_keys else _MAX_WAITING_BODIES,
        # What is left of the time is for the body itself, which is taken in any case.
        timeout_s=settings.body_timeout / 2,
        metrics=metrics,
    )


async def _drain(admission: Admission, timeout_s: float) -> None:
    """Take no more requests, and wait for those in progress; end with an error what takes too long."""
    admission.close()
    logger.info("shutting down")
    if await admission.wait_empty(timeout_s=timeout_s):
        return
    num_failed = admission.fail_all(UnavailableError("the server is shutting down"))
    logger.warning("requests were ended by shutdown", extra={"num_requests": num_failed})
    await admission.wait_empty(timeout_s=_LAST_WORDS_S)


async def _open_keys(settings: RouterSettings, store: RedisStore | None) -> Keys | None:
    """Return the keys that requests need, or None where they need none.

    Raises:
        ConfigurationError: the keys cannot be read.
    """
    if settings.auth.keys_file is not None:
        keys = Keys(FileKeys(settings.auth.keys_file))
    elif settings.auth.keys_in_store and store is not None:
        keys = Keys(StoreKeys(store))
    else:
        if not is_loopback(settings.host):
            logger.warning(
                "anybody who reaches %s may use this server: no API keys are set (auth.keys-file, "
                "auth.keys-in-store)",
                settings.host,
            )
        return None
    await keys.load()
    return keys


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address; a name that is none counts as reached by others."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _new_server(app: ASGIApp, settings: RouterSettings, tls: HttpTls | None) -> _Server:
    config = uvicorn.Config(
        app,
        http=connection_class(
            ConnectionBounds(
                max_connections=settings.max_connections,
                head_timeout_s=settings.head_timeout,
                max_head_bytes=settings.max_head_size,
            )
        ),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        # Of a client's address and scheme, which a proxy's headers would change, nothing is made.
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        # All requests were given their time before the server is told to exit.
        timeout_graceful_shutdown=int(_LAST_WORDS_S),
    )
    config.load()
    if tls is not None:
        # uvicorn would read the files once; this context is given new ones.
        config.ssl = tls.context
    return _Server(config)


def _listen(host: str, port: int, write_timeout_s: float) -> socket.socket:
    """Return a listening socket whose connections die when a client takes nothing for ``write_timeout_s``.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # The kernel also ends connections whose last bytes nobody takes, when no coroutine waits.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(write_timeout_s * 1000))
            listener.bind(address)
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error}") from error
    return listener
