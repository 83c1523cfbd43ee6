"""The worker process of an attention node: pool, transport and step loop. Torch lives here alone.

Started by the shell as ``python -m kernelflume.anode.worker FD``, where FD is its end of the control pipe, or
forked with that end. The main thread runs the loop; a second one prepares links, so that no query waits for a
connect.
"""

from __future__ import annotations

import logging
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch

from kernelflume.anode.block_index import BlockIndex
from kernelflume.anode.control import (
    Answer,
    Call,
    ConnectOrder,
    Disconnected,
    DisconnectOrder,
    Failed,
    PagesOrder,
    Ready,
    StartTimes,
    Stop,
    WorkerConfig,
)
from kernelflume.anode.exchange import Exchange
from kernelflume.anode.gpu.opener import device_link_opener
from kernelflume.anode.kernels import choose_kernel
from kernelflume.anode.kvpool import KvPool
from kernelflume.anode.links import prepare_link
from kernelflume.anode.selftest import check_kernel
from kernelflume.core.errors import KernelFlumeError, UnavailableError
from kernelflume.runtime.clock import Deadline, MonotonicClock
from kernelflume.runtime.logging import configure
from kernelflume.tensor.device import choose_device, memory_kind, use_device
from kernelflume.transport.doorbell import Doorbell, parse_address
from kernelflume.transport.nixl import NixlTransport
from kernelflume.transport.waiter import Waiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.anode.control import Order, Result
    from kernelflume.anode.gpu.graph_link import GraphLink
    from kernelflume.anode.kernels import AttentionKernel
    from kernelflume.anode.links import Link
    from kernelflume.core.regions import DeviceLanes
    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.base import Transport

logger = logging.getLogger(__name__)

ACTIVE_S = 10e-3
"""How long after the last notice the loop still waits as inside an exchange: longer than one layer on the
weight node, shorter than anybody would call busy."""
_POLL_S = 1.0
"""Longest single wait; anything that matters ends it earlier."""


class Worker:
    """The step loop, and the control calls it serves between two turns."""

    def __init__(
        self,
        *,
        control: Connection,
        exchange: Exchange,
        transport: Transport,
        doorbell: Doorbell,
        waiter: Waiter,
        pool: KvPool,
        kernel: AttentionKernel,
        clock: Clock,
        open_device_link: Callable[[DeviceLanes], GraphLink | None] | None = None,
    ) -> None:
        self._open_device_link = open_device_link
        self._control = control
        self._exchange = exchange
        self._transport = transport
        self._doorbell = doorbell
        self._waiter = waiter
        self._pool = pool
        self._kernel = kernel
        self._clock = clock
        # A thread begins on the first GPU, whichever this node's is.
        self._preparer = ThreadPoolExecutor(
            1, thread_name_prefix="prepare-link", initializer=use_device, initargs=(pool.device,)
        )
        self._preparing: dict[int, Future[Link]] = {}
        self._stopping = False

    def run(self) -> None:
        """Serve until told to stop, or until the shell is gone."""
        self._doorbell.watch(self._control.fileno())
        is_active = False
        while not self._stopping:
            is_driving = self._exchange.is_driving
            timeout_s = 0.0 if is_driving else ACTIVE_S if is_active else _POLL_S
            deadline = Deadline(self._clock, timeout_s)
            notices = self._waiter.wait_notices(timeout_s, idle=not is_active)
            # A wait that ends early heard a ring, and what rang is about to arrive.
            is_active = is_driving or bool(notices) or not deadline.expired
            self._exchange.turn(notices)
            self._serve_control()
        self._close()

    def _serve_control(self) -> None:
        try:
            while self._control.poll():
                message = self._control.recv()
                if isinstance(message, Stop):
                    self._stopping = True
                    return
                self._take(message)
            for call_id in [call_id for call_id, future in self._preparing.items() if future.done()]:
                self._finish_connect(call_id, self._preparing.pop(call_id))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            logger.warning("the shell is gone")
            self._stopping = True

    def _take(self, call: Call) -> None:
        if isinstance(call.order, ConnectOrder):
            # The old link must be gone before its peer is connected anew: no plan of it may be posted then.
            self._exchange.replace(call.order.weight_node)
            future = self._preparer.submit(
                prepare_link,
                call.order,
                self._pool.geometry,
                self._transport,
                self._pool.device,
                kernel=self._kernel,
                open_device_link=self._open_device_link,
            )
            bell = parse_address(self._doorbell.address)
            future.add_done_callback(lambda _: self._doorbell.ring(bell))
            self._preparing[call.call_id] = future
        else:
            self._control.send(Answer(call.call_id, self._result(call.order)))

    def _result(self, order: Order) -> Result:
        if isinstance(order, DisconnectOrder):
            freed = sum(self._exchange.drop(name, order.reason) for name in order.weight_nodes)
            return Disconnected(freed)
        if isinstance(order, PagesOrder):
            return self._exchange.pages()
        return self._exchange.statistics()

    def _finish_connect(self, call_id: int, future: Future[Link]) -> None:
        try:
            link = future.result()
        except KernelFlumeError as error:
            self._control.send(Answer(call_id, error))
        except Exception:
            logger.exception("a link could not be prepared")
            self._control.send(
                Answer(call_id, UnavailableError("the link could not be prepared; see the log"))
            )
        else:
            self._control.send(Answer(call_id, self._exchange.adopt(link)))

    def _close(self) -> None:
        self._preparer.shutdown(cancel_futures=True)
        for name in self._exchange.links:
            self._exchange.drop(name, "this node stops")
        self._transport.close()
        self._doorbell.close()


def start(config: WorkerConfig, control: Connection) -> Worker:
    """Build a worker that is ready to run, and tell the shell so.

    Raises:
        KernelFlumeError: a setting is at fault, or the self-test failed.
    """
    clock = MonotonicClock()
    device = choose_device(config.device)
    torch.set_num_threads(config.num_threads)
    doorbell = Doorbell(config.doorbell_host)
    started = clock.now()
    transport = NixlTransport(
        config.node_name,
        error_handling=config.transport_error_handling,
        memory=memory_kind(device),
        on_sent=doorbell.ring_peer,
    )
    has_transport = clock.now()
    pool = KvPool(
        config.geometry,
        page_tokens=config.page_tokens,
        num_bytes=config.memory_bytes,
        device=device,
        blocks=BlockIndex(
            clock,
            is_cache=config.prefix_cache,
            ttl_s=config.prefix_cache_ttl_s,
            pinned_share=config.pinned_share,
        ),
    )
    kernel: AttentionKernel = choose_kernel(config.kernel, pool)
    has_pool = clock.now()
    check_kernel(kernel, pool)
    times = StartTimes(
        transport_s=has_transport - started,
        pool_s=has_pool - has_transport,
        self_test_s=clock.now() - has_pool,
    )
    exchange = Exchange(transport=transport, doorbell=doorbell, pool=pool, clock=clock)
    worker = Worker(
        control=control,
        exchange=exchange,
        transport=transport,
        doorbell=doorbell,
        waiter=Waiter(transport, doorbell, clock, config.wait),
        pool=pool,
        kernel=kernel,
        clock=clock,
        open_device_link=device_link_opener(pool, transport),
    )
    control.send(
        Ready(
            transport=transport.kind,
            memory=memory_kind(device),
            num_pages=pool.num_pages,
            num_threads=torch.get_num_threads(),
            times=times,
        )
    )
    return worker


def run_worker(control: Connection) -> None:
    """Be the worker at this end of the control pipe, until the shell stops it or is gone."""
    try:
        config: WorkerConfig = control.recv()
    except EOFError:  # the shell did not get as far as that; it says why
        return
    # A Ctrl-C reaches every process of the terminal; the shell ends this one in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure("anode", config.log_level)
    with torch.inference_mode():
        try:
            worker = start(config, control)
        except KernelFlumeError as error:
            control.send(Failed(error))
            raise SystemExit(1) from error
        worker.run()


if __name__ == "__main__":
    run_worker(Connection(int(sys.argv[1])))
