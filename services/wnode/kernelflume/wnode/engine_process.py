"""The engine's process: builds the parts, runs the step loop on its main thread."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

import torch

from kernelflume.checkpoint.source import resolve
from kernelflume.core.errors import KernelFlumeError
from kernelflume.runtime import logging as service_logging
from kernelflume.runtime.clock import MonotonicClock, ThreadClock
from kernelflume.runtime.tether import tether_to_parent
from kernelflume.tensor.device import choose_device, memory_kind
from kernelflume.transport.doorbell import Doorbell
from kernelflume.transport.nixl import NixlTransport
from kernelflume.transport.waiter import Waiter, WaitPolicy
from kernelflume.wnode.connector import Connector
from kernelflume.wnode.engine import Engine
from kernelflume.wnode.gpu.opener import make_graph_runner
from kernelflume.wnode.grammar.lazy import LazyMatcherSource
from kernelflume.wnode.hand_overs import HandOvers
from kernelflume.wnode.inbox import CommandThread, Inbox
from kernelflume.wnode.kernel_threads import KernelThreads
from kernelflume.wnode.ledger import Ledger
from kernelflume.wnode.links import LinkTable
from kernelflume.wnode.messages import EngineFailed, EngineReady
from kernelflume.wnode.model.decoder import Decoder, load_decoder
from kernelflume.wnode.prefix_cache import PrefixCache
from kernelflume.wnode.reporter import Reporter
from kernelflume.wnode.request_keys import RequestKeys
from kernelflume.wnode.scheduler import BatchLimits, Scheduler

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from kernelflume.wnode.messages import EngineArguments

logger = logging.getLogger(__name__)


def run_engine(connection: Connection, arguments: EngineArguments) -> None:
    """Entry point of the spawned process; returns when the shell tells it over ``connection`` to stop."""
    tether_to_parent(arguments.parent_pid)
    service_logging.configure("wnode.engine", arguments.settings.log_level)
    try:
        _serve(connection, arguments)
    except KernelFlumeError as error:
        logger.error("engine stopped: %s", error)  # noqa: TRY400 - the message is the whole fact
        connection.send(EngineFailed(str(error)))
    except Exception as error:
        logger.exception("engine failed")
        connection.send(EngineFailed(f"{type(error).__name__}: {error}"))


def _serve(connection: Connection, arguments: EngineArguments) -> None:
    settings, geometry = arguments.settings, arguments.geometry
    started = time.monotonic()
    num_threads = settings.threads or os.cpu_count() or 1
    torch.set_num_threads(num_threads)
    checkpoint = resolve(settings.model, dummy_seed=settings.dummy_seed)
    device = choose_device(settings.device)
    decoder = load_decoder(
        checkpoint, dtype=getattr(torch, geometry.dtype), device=device, pack_weights=device.type == "cpu"
    )
    _warm(decoder, settings.max_num_batched_tokens)
    clock = MonotonicClock()
    doorbell = Doorbell(settings.doorbell_host)
    transport = NixlTransport(
        arguments.name,
        error_handling=settings.transport_error_handling,
        memory=memory_kind(device),
        on_sent=doorbell.ring_peer,
    )
    inbox = Inbox()
    links = LinkTable(
        Waiter(transport, doorbell, clock, WaitPolicy()),
        clock,
        exchange_timeout_s=settings.exchange_timeout_s,
        gone=inbox.gone,
    )
    ledger = Ledger(links, settings.max_range_tokens, settings.spread_tokens)
    limits = BatchLimits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    reporter = Reporter(connection, clock)
    eos_token_ids = frozenset(checkpoint.config.eos_token_ids)
    graph_runner = make_graph_runner(
        decoder=decoder,
        geometry=geometry,
        transport=transport,
        links=links,
        clock=clock,
        settings=settings,
        eos_token_ids=eos_token_ids,
    )
    connector = Connector(
        transport,
        doorbell,
        geometry,
        max_rows=settings.max_num_batched_tokens,
        device=device,
        page_tokens=lambda: links.page_tokens,
        device_ends=graph_runner.make_end if graph_runner is not None else None,
        stream_kv_rows=settings.stream_kv_rows if device.type == "cpu" else 0,
    )
    matchers = LazyMatcherSource(
        checkpoint.path,
        vocab_size=checkpoint.config.vocab_size,
        eos_token_ids=eos_token_ids,
        clock=ThreadClock(),
    )
    if settings.prepare_grammars:
        matchers.prepare()
    CommandThread(connection, inbox, connector, doorbell, reporter.send, open_matcher=matchers.open).start()
    scheduler = Scheduler(limits, ledger)
    prefix_cache = PrefixCache(
        links=links,
        ledger=ledger,
        scheduler=scheduler,
        clock=clock,
        send=reporter.send,
        enabled=settings.enable_prefix_caching,
    )
    reporter.send(EngineReady(time.monotonic() - started))
    hand_overs = HandOvers(scheduler, prefix_cache, clock, timeout_s=settings.hold_timeout_s)
    Engine(
        decoder=decoder,
        kv_dtype=getattr(torch, geometry.kv_dtype),
        scheduler=scheduler,
        prefix_cache=prefix_cache,
        hand_overs=hand_overs,
        ledger=ledger,
        links=links,
        inbox=inbox,
        reporter=reporter,
        clock=clock,
        kernel_threads=KernelThreads(num_threads, settings.threads_beside_attention or num_threads),
        graph_runner=graph_runner,
        async_scheduling=settings.async_scheduling,
        eos_token_ids=eos_token_ids,
        max_model_len=arguments.max_model_len,
        request_keys=RequestKeys(settings.seed, settings.node_id),
    ).run()
    transport.close()


def _warm(decoder: Decoder, max_rows: int) -> None:
    """Run the model once at the smallest and the largest step, so that the first request finds it warm."""
    config = decoder.config
    with torch.inference_mode():
        for num_rows in (1, max_rows):
            positions = torch.arange(num_rows, device=decoder.device)
            state = decoder.begin(torch.zeros_like(positions), positions)
            for layer in range(config.num_layers):
                query = decoder.project_query(layer, state)
                decoder.project_kv(layer, state)
                decoder.finish_layer(layer, state, query.reshape(num_rows, -1))
            decoder.logits(
                state, None if num_rows == 1 else torch.tensor([num_rows - 1], device=decoder.device)
            )
