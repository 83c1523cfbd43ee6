"""The weight node's connections to attention nodes, seen from the shell: gRPC handshake, state, retry."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from kernelflume.core.errors import DeadlineError, LifecycleError, UnavailableError
from kernelflume.rpc.channel import PLAINTEXT, Channels
from kernelflume.rpc.codec import (
    device_lanes_of,
    device_lanes_to_proto,
    handshake_from_proto,
    handshake_to_proto,
    region_from_proto,
    region_to_proto,
)
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import anode_pb2, anode_pb2_grpc
from kernelflume.wnode.messages import (
    CloseLink,
    CompleteLink,
    ForgetLink,
    LinkAnswer,
    LinkClosed,
    LinkFailed,
    LinkLost,
    LinkOffer,
    LinkReady,
    OpenLink,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.wnode.messages import Command

logger = logging.getLogger(__name__)

LinkEvent = LinkOffer | LinkReady | LinkFailed | LinkClosed | LinkLost

_VERIFY_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class _Question:
    """What the engine was asked about one link."""

    kinds: tuple[type[LinkEvent], ...]
    """Events that answer it."""
    answer: asyncio.Future[LinkEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareTimes:
    """How long a preparation took."""

    connect_s: float
    warm_s: float


class Endpoints:
    """Prepares and releases attention nodes; one preparation of a node at a time, any number of nodes."""

    def __init__(
        self, send: Callable[[Command], None], *, timeout_s: float, channels: Channels = PLAINTEXT
    ) -> None:
        self._send = send
        self._channels = channels
        self._timeout_s = timeout_s
        self._prepared: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._questions: dict[str, _Question] = {}
        self._weight_node = ""
        self.block_tokens = 0
        """Tokens of a page, which all nodes of a cluster share; 0 before the first of them is linked."""

    @property
    def prepared(self) -> tuple[str, ...]:
        """Names (id#incarnation) of the nodes whose path is warm."""
        return tuple(sorted(self._prepared))

    def is_prepared(self, node_name: str) -> bool:
        """True when the path to a node is warm."""
        return node_name in self._prepared

    def deliver(self, event: LinkEvent) -> None:
        """Take in an event of the engine about a link."""
        if isinstance(event, LinkLost):
            self._prepared.pop(event.node_name, None)
            logger.error("attention node %s is lost: %s", event.node_name, event.reason)
            event = LinkFailed(event.node_name, event.reason)
        question = self._questions.get(event.node_name)
        # An event that is no answer belongs to an earlier attempt, which was given up.
        if question is not None and not question.answer.done() and isinstance(event, question.kinds):
            question.answer.set_result(event)

    async def prepare(self, node_name: str, address: str) -> PrepareTimes:
        """Connect to a node and warm the path; at once when that was done before.

        Raises:
            KernelFlumeError: it refused, did not answer, or could not be reached in time.
        """
        started = time.monotonic()
        async with self._locks.setdefault(node_name, asyncio.Lock()):
            if node_name in self._prepared:
                return PrepareTimes(connect_s=0.0, warm_s=0.0)
            try:
                async with asyncio.timeout(self._timeout_s):
                    warm_s = await self._connect(node_name, address)
            except TimeoutError:
                self._send(CloseLink(node_name))
                raise DeadlineError(
                    f"attention node {node_name} at {address} was not ready within {self._timeout_s:g} s"
                ) from None
            except asyncio.CancelledError:
                # Whoever asked has given up: a link that became ready now would be nobody's.
                self._send(CloseLink(node_name))
                raise
            self._prepared[node_name] = address
        return PrepareTimes(connect_s=time.monotonic() - started - warm_s, warm_s=warm_s)

    async def release(self, node_name: str) -> None:
        """Forget a node.

        Raises:
            LifecycleError: sequences have ranges there.
        """
        async with self._locks.setdefault(node_name, asyncio.Lock()):
            address = self._prepared.get(node_name)
            if address is None:
                return
            event = await self._ask(CloseLink(node_name), node_name, LinkClosed)
            if isinstance(event, LinkFailed):
                raise LifecycleError(event.reason)
            self._prepared.pop(node_name, None)
            await self._disconnect(address, node_name)
        self._locks.pop(node_name, None)

    async def verify(self) -> None:
        """Ask the prepared nodes whether they still know this weight node; give up those that do not.

        They drop one whose lease ran out, as when it was frozen, and then ignore what it sends: steps would
        wait for each of them to the end of the exchange's deadline.
        """
        await asyncio.gather(*(self._verify_one(*item) for item in list(self._prepared.items())))

    async def _verify_one(self, node_name: str, address: str) -> None:
        async with self._channels.open(address) as channel:
            try:
                statistics = await anode_pb2_grpc.AttentionNodeStub(channel).GetStatistics(
                    anode_pb2.GetAttentionStatisticsRequest(), timeout=_VERIFY_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                # Whether it is lost, the exchange and the routing table tell.
                logger.warning("attention node %s cannot be asked: %s", node_name, error.details())
                return
        if self._weight_node not in {link.weight_node for link in statistics.links}:
            reason = "it has dropped this weight node, whose lease had run out"
            self._send(ForgetLink(node_name, reason))

    async def _connect(self, node_name: str, address: str) -> float:
        offer = await self._ask(OpenLink(node_name), node_name, LinkOffer)
        if not isinstance(offer, LinkOffer):
            raise UnavailableError(f"attention node {node_name}: {getattr(offer, 'reason', offer)}")
        answer = await self._call_connect(address, offer)
        ready = await self._ask(CompleteLink(node_name, answer), node_name, LinkReady)
        if not isinstance(ready, LinkReady):
            raise UnavailableError(f"attention node {node_name}: {getattr(ready, 'reason', ready)}")
        return ready.warm_seconds

    async def _ask(self, command: Command, node_name: str, kind: type[LinkEvent]) -> LinkEvent:
        """Send a command and wait for its answer: an event of that kind, or a ``LinkFailed``."""
        question = _Question((kind, LinkFailed), asyncio.get_running_loop().create_future())
        self._questions[node_name] = question
        try:
            self._send(command)
            async with asyncio.timeout(self._timeout_s):
                return await question.answer
        finally:
            self._questions.pop(node_name, None)

    async def _call_connect(self, address: str, offer: LinkOffer) -> LinkAnswer:
        self._weight_node = offer.handshake.node_name
        request = anode_pb2.ConnectRequest(
            handshake=handshake_to_proto(offer.handshake),
            transport_metadata=offer.metadata,
            limits=anode_pb2.LaneLimits(num_lanes=offer.num_lanes, max_rows=offer.max_rows),
            partial_regions=[region_to_proto(region) for region in offer.partial_regions],
            doorbell_address=offer.doorbell_address,
            attention_node=offer.node_name,
            device_lanes=device_lanes_to_proto(offer.device_lanes),
        )
        async with self._channels.open(address) as channel:
            try:
                reply = await anode_pb2_grpc.AttentionNodeStub(channel).Connect(
                    request, timeout=self._timeout_s
                )
            except grpc.aio.AioRpcError as error:
                raise error_of(error) from error
        self.block_tokens = reply.page_tokens
        return LinkAnswer(
            handshake=handshake_from_proto(reply.handshake),
            metadata=reply.transport_metadata,
            query_regions=tuple(map(region_from_proto, reply.query_regions)),
            append_regions=tuple(map(region_from_proto, reply.append_regions)),
            page_tokens=reply.page_tokens,
            num_pages=reply.num_pages,
            num_free_pages=reply.num_free_pages,
            doorbell_address=reply.doorbell_address,
            device_lanes=device_lanes_of(reply),
        )

    async def _disconnect(self, address: str, node_name: str) -> None:
        async with self._channels.open(address) as channel:
            try:
                reply = await anode_pb2_grpc.AttentionNodeStub(channel).Disconnect(
                    anode_pb2.DisconnectRequest(weight_node=self._weight_node), timeout=2.0
                )
            except grpc.aio.AioRpcError as error:
                # It is leaving; if it is gone already, there is nothing to free.
                logger.info("attention node %s did not answer the good-bye: %s", node_name, error.details())
            else:
                if reply.num_sequences_freed:  # no route of ours names it: a free notice was lost
                    logger.warning(
                        "attention node %s still held %s sequence(s)", node_name, reply.num_sequences_freed
                    )
