"""The weight nodes that this router can reach: who lives, what each serves, how busy each is."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelflume.core.errors import LifecycleError, UnavailableError
from kernelflume.core.leases import NodeKind
from kernelflume.core.roles import WeightNodeRole
from kernelflume.router.attachment import Attachment
from kernelflume.router.loads import Load, LoadBook
from kernelflume.router.placement.nodes import WeightNodeView
from kernelflume.router.progress import ProgressWatch
from kernelflume.rpc.channel import PLAINTEXT, Channels
from kernelflume.rpc.codec import route_from_proto
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.router.attachment import Receiver, RunControl
    from kernelflume.runtime.clock import Clock
    from kernelflume.runtime.tracing import Headers
    from kernelflume.store.base import LeaseStore

logger = logging.getLogger(__name__)

_SERVICE_NAME = wnode_pb2.DESCRIPTOR.services_by_name["WeightNode"].full_name
_PROBE_TIMEOUT_S = 2.0
_MAX_LATE_ANSWERS = 2
"""Probes in a row that a node may miss while its stream stands: a busy machine is not a lost one. Few, for
what is placed on a node that hangs waits there."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What every weight node that can serve agrees to."""

    max_model_len: int
    vocab_size: int


class WeightNode:
    """One weight node, the channel to it and the stream of requests. Owned by ``WeightNodes``."""

    def __init__(self, address: str, channels: Channels, watch: ProgressWatch, clock: Clock) -> None:
        self.address = address
        self._watch = watch
        self._channel = channels.open(address)
        self._stub = wnode_pb2_grpc.WeightNodeStub(self._channel)
        self._attachment = Attachment(self._stub, address, clock)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._load = wnode_pb2.WeightNodeLoad()
        self.loads = LoadBook()
        """Counts what this router's requests are to it."""
        self.card: wnode_pb2.ModelCard | None = None
        self._fault: str | None = "not asked yet"
        self._num_late = 0
        """Latest probes that were not answered in time."""

    def view(self) -> WeightNodeView:
        """Return what a placement is decided on."""
        reported, load = self._load, self.loads.load()
        return WeightNodeView(
            address=self.address,
            node_id=self.node_id,
            role=WeightNodeRole.of(self.card.role) if self.card is not None else WeightNodeRole.BOTH,
            serving=self.trouble is None,
            num_requests=load.num_requests,
            num_own_requests=self.loads.num_requests,
            num_tokens=load.num_tokens,
            num_pending_tokens=load.num_pending_tokens,
            queue_full=0 < reported.max_num_waiting <= reported.num_requests_waiting,
            max_num_seqs=self.card.max_num_seqs if self.card is not None else 0,
        )

    @property
    def node_id(self) -> str:
        """Its name, or its address while it has not told one."""
        return (self.card.node_id if self.card is not None else "") or self.address

    @property
    def block_tokens(self) -> int:
        """Tokens of a block that is found again; 0 where none is."""
        return self._load.block_tokens

    @property
    def trouble(self) -> str | None:
        """Why it cannot serve; None when it can."""
        if self._attachment.draining:
            return "it drains"
        return self._fault or (None if self._attachment.attached else "no stream of requests to it stands")

    @property
    def idle(self) -> bool:
        """True when none of this router's calls runs there."""
        return self.loads.num_requests == 0

    def generate(
        self,
        request: wnode_pb2.GenerateRequest,
        receiver: Receiver,
        *,
        timeout_s: float,
        headers: Headers,
        hands_over: bool = False,
    ) -> RunControl:
        """Run a request in the trace of ``headers``, with ``hands_over`` held after its first token.

        ``receiver`` is told of all news.
        """
        return self._attachment.submit(
            request, receiver, timeout_s=timeout_s, headers=headers, hands_over=hands_over
        )

    async def prepare(self, request: wnode_pb2.PrepareGrammarRequest, *, timeout_s: float) -> bool:
        """Have a grammar compiled for a request that is to move there; False where that cannot be."""
        try:
            await self._stub.PrepareGrammar(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            logger.info(
                "a weight node did not compile a grammar",
                extra={"address": self.address, "error": failure.code().name},
            )
            return False
        except grpc.aio.UsageError:
            return False  # the channel is closed: the node left
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return False  # the channel was closed meanwhile
        return True

    async def probe(self, revision: str | None) -> None:
        """Ask whether it can serve, what, and how busy it is; the answer is in ``trouble`` and ``view``."""
        if self._attachment.draining:
            self._attachment.ask_away(again=True)  # another node may serve by now
        before = self._fault
        try:
            self._fault = await self._ask(revision)
            self._num_late = 0
        except grpc.aio.AioRpcError as failure:
            if self._is_only_late(failure):
                return
            # Whoever answers at this address next may serve another model.
            self.card = None
            self._fault = f"{failure.code().name}: {failure.details()}"
        if self._fault != before:
            logger.info(
                "weight node %s",
                "can serve" if self._fault is None else "cannot serve",
                extra={"address": self.address, "trouble": self._fault},
            )

    def _is_only_late(self, failure: grpc.aio.AioRpcError) -> bool:
        if failure.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            return False
        self._num_late += 1
        return self.trouble is None and self._num_late <= _MAX_LATE_ANSWERS

    async def routes(self, *, timeout_s: float) -> dict[int, SequenceRoute]:
        """Return the routes of the sequences there by their ids; none if it does not answer in time."""
        try:
            answer = await self._stub.ListSequences(wnode_pb2.ListSequencesRequest(), timeout=timeout_s)
            return {sequence.sequence_id: route_from_proto(sequence.ranges) for sequence in answer.sequences}
        except (grpc.aio.AioRpcError, LifecycleError):
            # Whether it lives is the probe's to find out.
            return {}

    async def _ask(self, revision: str | None) -> str | None:
        health = await self._health.Check(
            health_pb2.HealthCheckRequest(service=_SERVICE_NAME), timeout=_PROBE_TIMEOUT_S
        )
        if health.status != health_pb2.HealthCheckResponse.SERVING:
            return "it says that it is not serving"
        if self.card is None:
            self.card = await self._stub.GetModel(wnode_pb2.GetModelRequest(), timeout=_PROBE_TIMEOUT_S)
        theirs = self.card.geometry.model_revision
        if revision is not None and theirs != revision:
            return f"it serves {self.card.geometry.model_id} at revision {theirs}, not {revision}"
        self._load = await self._stub.GetLoad(wnode_pb2.GetLoadRequest(), timeout=_PROBE_TIMEOUT_S)
        load = self._load
        self.loads.report(
            Load(
                load.num_requests_running + load.num_requests_waiting,
                load.num_tokens + load.waiting_tokens,
                load.waiting_tokens,
            )
        )
        if stuck := self._watch.look(self._load):
            return stuck
        # Without one it could only queue what it is sent: no keys and values have a place.
        return None if self._load.prepared_nodes else "it is connected to no attention node"

    async def close(self) -> None:
        """Close the channel; requests that still run are cancelled."""
        await self._attachment.close()
        await self._channel.close()


class WeightNodes:
    """All weight nodes, looked at again every interval. Used in one event loop."""

    def __init__(
        self,
        *,
        addresses: Sequence[str] = (),
        leases: LeaseStore | None = None,
        revision: str | None = None,
        channels: Channels = PLAINTEXT,
        clock: Clock,
        progress_timeout_s: float,
    ) -> None:
        """Know where to look.

        Args:
            addresses: host:port of each; when empty they are found through ``leases``.
            leases: where weight nodes hold their leases.
            revision: fingerprint of the model; nodes that serve another one are not used.
            channels: how they are called.
            clock: for progress.
            progress_timeout_s: a node that has requests and makes no step for so long is not used.
        """
        self._addresses = tuple(addresses)
        self._leases = leases
        self._revision = revision
        self._channels = channels
        self._clock = clock
        self._progress_timeout_s = progress_timeout_s
        self._nodes: dict[str, WeightNode] = {}
        self._leaving: list[WeightNode] = []
        self._store_lost = False

    def views(self) -> list[WeightNodeView]:
        """Return what placements are decided on."""
        return [node.view() for node in self._nodes.values()]

    def serves(self, address: str) -> bool:
        """Tell whether a node is known and can serve."""
        node = self._nodes.get(address)
        return node is not None and node.trouble is None

    def node(self, address: str) -> WeightNode:
        """Return the node of a view just taken."""
        return self._nodes[address]

    def block_tokens(self) -> int:
        """Return the tokens of a block that is found again; 0 where none is. All nodes of a cluster agree."""
        return max((node.block_tokens for node in self._nodes.values() if node.trouble is None), default=0)

    def limits(self) -> ModelLimits | None:
        """Return what all nodes that can serve can do, or None when there is none."""
        cards = [node.card for node in self._nodes.values() if node.trouble is None and node.card is not None]
        if not cards:
            return None
        return ModelLimits(
            max_model_len=min(card.max_model_len for card in cards),
            vocab_size=min(card.vocab_size for card in cards),
        )

    async def run(self, *, interval_s: float) -> None:
        """Refresh for ever, ``interval_s`` seconds apart."""
        while True:
            try:
                await self.refresh()
            except Exception:
                # The loop is all that finds new nodes: it must outlive whatever one round ran into.
                logger.exception("looking at the weight nodes failed")
            await asyncio.sleep(interval_s)

    async def refresh(self) -> None:
        """Find the living nodes and probe each."""
        await self._discover()
        await asyncio.gather(*(node.probe(self._revision) for node in self._nodes.values()))
        for node in [node for node in self._leaving if node.idle]:
            self._leaving.remove(node)
            await node.close()

    async def close(self) -> None:
        """Close every channel."""
        for node in (*self._nodes.values(), *self._leaving):
            await node.close()

    async def _discover(self) -> None:
        living = self._addresses or await self._leased()
        if living is None:
            return
        for address in set(living) - self._nodes.keys():
            self._nodes[address] = WeightNode(
                address, self._channels, ProgressWatch(self._clock, self._progress_timeout_s), self._clock
            )
        for address in self._nodes.keys() - set(living):
            # Its lease ran out, but requests may still run there: the channel stays until they have ended.
            logger.info("weight node left", extra={"address": address})
            self._leaving.append(self._nodes.pop(address))

    async def _leased(self) -> list[str] | None:
        """Return the leased addresses, or None when the store cannot say: then those known stay."""
        if self._leases is None:
            return []
        try:
            records = await self._leases.living(NodeKind.WEIGHT)
        except UnavailableError as error:
            if not self._store_lost:
                logger.warning("the store cannot be reached; known weight nodes stay in use: %s", error)
            self._store_lost = True
            return None
        self._store_lost = False
        return [record.address for record in records]
