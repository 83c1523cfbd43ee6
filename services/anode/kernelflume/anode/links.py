"""The link to one weight node: lanes, prepared writes, and the sequences it owns here."""

from __future__ import annotations

import logging
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import torch

from kernelflume.anode.control import LinkStatistics
from kernelflume.anode.kvpool import HeldSequence
from kernelflume.anode.lane import LaneBuffers, LaneProgress, num_lane_bytes
from kernelflume.core.errors import (
    HandshakeError,
    KvPoolExhaustedError,
    LifecycleError,
    PeerLostError,
    UnavailableError,
)
from kernelflume.core.names import split_name
from kernelflume.transport.doorbell import parse_address
from kernelflume.transport.lanes import LaneLayout
from kernelflume.transport.wire import MAX_FREE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np

    from kernelflume.anode.control import ConnectOrder
    from kernelflume.anode.gpu.graph_link import GraphLink
    from kernelflume.anode.kernels import AttentionKernel
    from kernelflume.anode.kvpool import KvPool
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.core.regions import DeviceLanes
    from kernelflume.transport.base import Transport, WritePlan
    from kernelflume.transport.wire import Publish, Step

logger = logging.getLogger(__name__)

MAX_STEPS_UNDER_WAY = 2
"""Steps that a weight node announces before it has heard the end of the first."""
MAX_ENDED = 4 * MAX_FREE
"""Ended sequences that a link remembers: far more than can end while one append is under way."""
MAX_PUBLISHES = 4 * MAX_FREE
"""Notices that name blocks and wait for appends: more than a weight node's sequences can have under way."""


@dataclass(frozen=True, slots=True)
class StoredStep:
    """What a launched step of graphs stores."""

    number: int
    positions: Mapping[int, int]
    """Of the token of each sequence that it stores one of."""


class Link:
    """One weight node. Made by ``prepare_link``, owned by the exchange from then on."""

    def __init__(
        self,
        weight_node: str,
        *,
        layout: LaneLayout,
        buffers: list[LaneBuffers],
        plans: list[WritePlan],
        kernels: list[AttentionKernel],
        doorbell: str | None,
        device: GraphLink | None = None,
    ) -> None:
        self.weight_node = weight_node
        self.layout = layout
        self.buckets = layout.buckets
        self.buffers = buffers
        self.plans = plans
        """Writes of partials, one plan a lane."""
        self.kernels = kernels
        """What attends to a lane's queries, one a lane: their steps take turns."""
        self.doorbell = doorbell
        self.device = device
        """Lanes whose steps run as captured graphs, if there are any."""
        self.waiting_steps: deque[Step] = deque()
        """Steps in order; each is launched once every append it relies on is filed."""
        self.stored: deque[StoredStep] = deque(maxlen=MAX_STEPS_UNDER_WAY)
        """The steps launched last, the newest at the end."""
        self.lanes = [LaneProgress() for _ in buffers]
        self.sequences: dict[int, HeldSequence] = {}
        self.publishes: deque[Publish] = deque()
        """What is named once every append that it relies on is filed."""
        self._ended: dict[int, None] = {}
        """The sequences that ended last: freed, or dropped for want of a page."""
        self._dropped: dict[int, tuple[int, HeldSequence]] = {}
        """Dropped while a step was under way: that step, which may still read the pages, and these."""

    @property
    def node_id(self) -> str:
        """The weight node's id, without its incarnation."""
        return split_name(self.weight_node)[0]

    @property
    def driven(self) -> GraphLink | None:
        """The lanes whose steps need the step loop while they run, if there are any."""
        return self.device if self.device is not None and self.device.is_driven else None

    @property
    def buffer_bytes(self) -> int:
        """Size of all lanes."""
        own = sum(buffers.num_bytes for buffers in self.buffers)
        return own + (self.device.num_bytes if self.device is not None else 0)

    def take_ready_step(self) -> Step | None:
        """Return the first waiting step if every append it relies on is filed."""
        if not self.waiting_steps or self.waiting_steps[0].appends > self.lanes[0].appends_filed:
            return None
        return self.waiting_steps.popleft()

    def steps_storing(self, ends: Mapping[int, int]) -> list[int]:
        """Return the launched steps that store a token of a sequence before an end.

        Args:
            ends: position by sequence.
        """
        return [
            step.number
            for step in self.stored
            if any(step.positions.get(sequence_id, end) < end for sequence_id, end in ends.items())
        ]

    @property
    def holdings(self) -> dict[int, HeldSequence]:
        """Whatever has pages, by sequence."""
        return {**self.sequences, **{key: sequence for key, (_, sequence) in self._dropped.items()}}

    def steps_reading(self, sequence_ids: Iterable[int]) -> list[int]:
        """Return the launched steps that read pages of sequences which were dropped since."""
        return [self._dropped[key][0] for key in sequence_ids if key in self._dropped]

    def take_ready_publish(self) -> Publish | None:
        """Return a waiting PUBLISH of which every append is filed."""
        filed = self.lanes[0].appends_filed
        for index, publish in enumerate(self.publishes):
            if publish.appends <= filed:
                del self.publishes[index]
                return publish
        return None

    def take_publishes(self, sequence_id: int) -> list[Publish]:
        """Return every waiting PUBLISH of a sequence."""
        taken = [publish for publish in self.publishes if publish.sequence == sequence_id]
        for publish in taken:
            self.publishes.remove(publish)
        return taken

    def held(self, sequence_id: int) -> HeldSequence:
        """Return what is held of a sequence, a new and empty holding at first."""
        return self.sequences.setdefault(sequence_id, HeldSequence())

    def has_ended(self, sequence_id: int) -> bool:
        """Tell whether a sequence was ended, so that an append that comes late must not bring it back."""
        return sequence_id in self._ended

    def take_slots(self, sequence_id: int, start: int, num_tokens: int, pool: KvPool) -> np.ndarray | None:
        """Give positions [start, start + num_tokens) of a sequence their slots: int64 [num_tokens].

        None when the sequence has ended, or ends now because it cannot have them.
        """
        if self.has_ended(sequence_id):
            return None
        try:
            return pool.append(self.held(sequence_id), start, num_tokens)
        except (KvPoolExhaustedError, LifecycleError) as error:
            self._drop(sequence_id, error, pool)
            return None

    def take_slot(self, sequence_id: int, position: int, pool: KvPool) -> int | None:
        """Give one position of a sequence its slot in a step of graphs, as ``take_slots`` does.

        The step ahead may be under way, and its row counts: what that reads is nobody else's before it ends.
        """
        if self.has_ended(sequence_id):
            return None
        try:
            return pool.append_one(self.held(sequence_id), position)
        except (KvPoolExhaustedError, LifecycleError) as error:
            if self.device is not None and self.stored and not self.device.has_ended(self.stored[-1].number):
                self._dropped[sequence_id] = self.stored[-1].number, self.sequences.pop(sequence_id)
            self._drop(sequence_id, error, pool)
            return None

    def release_dropped(self, pool: KvPool) -> None:
        """Give the pages back of dropped sequences that no step reads any more."""
        if not self._dropped or self.device is None:
            return
        for sequence_id, (step, sequence) in list(self._dropped.items()):
            if self.device.has_ended(step):
                del self._dropped[sequence_id]
                pool.release(sequence)

    def _drop(self, sequence_id: int, error: Exception, pool: KvPool) -> None:
        logger.warning("dropped sequence %d of %s: %s", sequence_id, self.weight_node, error)
        self.end(sequence_id, pool)

    def end_all(self, pool: KvPool) -> None:
        """Give all pages back; no step may be under way that stores something."""
        for sequence_id in list(self.sequences):
            self.end(sequence_id, pool)
        for _, sequence in self._dropped.values():
            pool.release(sequence)
        self._dropped.clear()

    def end(self, sequence_id: int, pool: KvPool) -> None:
        """Give a sequence's pages back, if it has any; its id is not used again."""
        sequence = self.sequences.pop(sequence_id, None)
        if sequence is not None:
            pool.release(sequence)
        self._ended[sequence_id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def statistics(self) -> LinkStatistics:
        """Return what the weight node holds here."""
        return LinkStatistics(
            weight_node=self.weight_node,
            num_sequences=len(self.sequences),
            num_tokens=sum(sequence.num_tokens for sequence in self.sequences.values()),
        )


def prepare_link(
    order: ConnectOrder,
    geometry: KvGeometry,
    transport: Transport,
    device: torch.device,
    *,
    kernel: AttentionKernel,
    open_device_link: Callable[[DeviceLanes], GraphLink | None] | None = None,
) -> Link:
    """Allocate and register lanes, connect, and prepare every write. May run beside the step loop.

    ``kernel`` is the node's, of which each lane gets one ``apart``. ``open_device_link`` makes the lanes that
    captured graphs exchange through, where this node can have some.

    Raises:
        UnavailableError: the lanes do not fit the machine's memory, or the peer vanished meanwhile.
        HandshakeError: the peer's metadata or doorbell address is unusable.
    """
    layout = LaneLayout(geometry, order.max_rows)
    needed = order.num_lanes * num_lane_bytes(layout)
    available = _available_bytes(device)
    if needed > available:
        raise UnavailableError(
            f"{order.num_lanes} lanes of {order.max_rows} rows take {needed} bytes; {available} are available"
        )
    bell = _resolve(order.doorbell_address)
    device_link = None
    if order.device_lanes is not None and open_device_link is not None:
        device_link = open_device_link(order.device_lanes)
    buffers = [LaneBuffers(layout, transport, device) for _ in range(order.num_lanes)]
    try:
        transport.connect(order.weight_node, order.metadata)
        plans = [
            transport.plan_writes(order.weight_node, lane.partial_writes(remote))
            for lane, remote in zip(buffers, order.partial_regions, strict=True)
        ]
        kernels = [kernel.apart() for _ in buffers]
    except Exception as error:
        transport.disconnect(order.weight_node)
        for lane in buffers:
            lane.deregister(transport)
        if device_link is not None:
            device_link.close()
        if isinstance(error, PeerLostError):
            raise UnavailableError(str(error)) from error
        raise
    return Link(
        order.weight_node,
        layout=layout,
        buffers=buffers,
        plans=plans,
        kernels=kernels,
        doorbell=bell,
        device=device_link,
    )


def _available_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return psutil.virtual_memory().available
    return torch.cuda.mem_get_info(device)[0]


def _resolve(address: str) -> str | None:
    """Look a doorbell's host up beside the step loop; opening the line in it must not."""
    if not address:
        return None
    try:
        host, port = parse_address(address)
        resolved = socket.gethostbyname(host)
    except (OSError, ValueError) as error:
        raise HandshakeError(f"doorbell address {address!r} cannot be used: {error}") from error
    return f"{resolved}:{port}"
