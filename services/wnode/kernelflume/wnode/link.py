"""A weight node's path to one attention node: registered buffers, prepared writes, what was answered."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import PeerLostError, UnavailableError
from kernelflume.core.names import split_name
from kernelflume.transport.base import Write
from kernelflume.transport.lanes import NUM_APPEND_SLOTS, LaneLayout
from kernelflume.transport.memory import allocate_on, register
from kernelflume.transport.wire import (
    MAX_FREE,
    Append,
    Appended,
    Find,
    Found,
    Free,
    Freed,
    LaneData,
    Partial,
    Publish,
    Published,
    Query,
    Retract,
    RowStatus,
    Share,
    Shared,
    Step,
    Stepped,
    Warm,
    WireNotice,
)
from kernelflume.wnode.kv_stream import KvStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from kernelflume.core.regions import DeviceLanes, MemoryRegion
    from kernelflume.core.retention import Pinning
    from kernelflume.transport.base import Transport, WritePlan
    from kernelflume.transport.doorbell import Doorbell
    from kernelflume.transport.wire import LaneStep
    from kernelflume.wnode.gpu.lane_end import LaneEnd
    from kernelflume.wnode.messages import LinkAnswer

logger = logging.getLogger(__name__)

NUM_LANES = 1
"""Microbatches in flight; the step loop runs one."""


@dataclass(slots=True)
class LinkBuffers:
    """This side's registered memory of one link."""

    queries: torch.Tensor
    appends: torch.Tensor
    partials: torch.Tensor
    query_region: MemoryRegion
    append_region: MemoryRegion
    partial_region: MemoryRegion

    @classmethod
    def create(cls, layout: LaneLayout, transport: Transport, device: torch.device) -> LinkBuffers:
        """Allocate, fault in and register."""
        queries = allocate_on(device, layout.query_region_bytes)
        appends = allocate_on(device, layout.append_region_bytes)
        partials = allocate_on(device, layout.partial_region_bytes)
        return cls(
            queries,
            appends,
            partials,
            register(transport, queries),
            register(transport, appends),
            register(transport, partials),
        )

    def release(self, transport: Transport) -> None:
        """Deregister; the peer must have been disconnected."""
        for region in (self.query_region, self.append_region, self.partial_region):
            transport.deregister(region)


@dataclass(slots=True)
class _AppendInFlight:
    counter: int
    num_pages: int


@dataclass(slots=True)
class Link:
    """One warm path. Used by the step loop alone once it is ready.

    A buffer's reuse: the query staging is free again when that layer's partial came; an append slot when it
    was answered; the partial region when the next layer's query is posted.
    """

    node_name: str
    layout: LaneLayout
    buffers: LinkBuffers
    transport: Transport
    doorbell: Doorbell
    stream_min_rows: int = 0
    """Fewest rows of an append whose keys and values are sent layer by layer; 0 sends none so."""
    page_tokens: int = 0
    num_pages: int = 0
    num_free_pages: int = 0
    """As the node last reported."""
    is_warm: bool = False
    device: LaneEnd | None = None
    """Lanes that captured graphs exchange through, where both sides have them."""
    partial: Partial | None = None
    """The newest partial's notice."""
    num_frees_in_flight: int = 0
    """FREE notices that were not answered yet."""
    num_endings: int = 0
    """Sequences that ended and are freed once the names of their blocks are known there."""
    block_news: list[Found | Shared | Published] = field(default_factory=list)
    """What the node said of blocks; the engine takes it from here."""
    failed_sequences: dict[int, int] = field(default_factory=dict)
    """Sequences the node could not store, with the first step of which it could not, 0 for an append. The
    engine takes them from here."""
    stream: KvStream = field(init=False)
    _device_answer: DeviceLanes | None = None
    _steps_in_flight: dict[int, int] = field(default_factory=dict)
    """Step -> most pages that the node will take for it, until it answers."""
    _shares_in_flight: dict[int, int] = field(default_factory=dict)
    """Sequence -> most pages that are free now and will not be, until the node answers its SHARE."""
    _refusal: str = ""
    """Why the node cannot be used any more; empty while it can."""
    _query_plan: WritePlan | None = None
    _append_plans: list[WritePlan] = field(default_factory=list)
    _append_counter: int = 0
    _appends_in_flight: dict[int, _AppendInFlight] = field(default_factory=dict)
    _unanswered: tuple[int, int] | None = None
    """Layer and step of the query that was posted last, until its partial comes."""

    def __post_init__(self) -> None:
        self.stream = KvStream(self.layout, self.stream_min_rows)

    @property
    def node_id(self) -> str:
        """The attention node's id, without its incarnation."""
        return split_name(self.node_name)[0]

    @property
    def num_usable_pages(self) -> int:
        """Free pages less those that what is under way will take."""
        promised = sum(flight.num_pages for flight in self._appends_in_flight.values())
        taken = sum(self._steps_in_flight.values()) + sum(self._shares_in_flight.values())
        return self.num_free_pages - promised - taken

    @property
    def is_settling(self) -> bool:
        """True when the node may soon have more free pages, or sequences here that can give some back."""
        return self.num_frees_in_flight > 0 or self.num_endings > 0 or bool(self._shares_in_flight)

    @property
    def is_quiet(self) -> bool:
        """True when all that was posted has been answered, so that no write is under way, here or there."""
        return (
            self.is_warm
            and self._unanswered is None
            and not self._appends_in_flight
            and self.stream.is_quiet
            and not self.num_frees_in_flight
            and (self.device is None or self.device.is_quiet)
        )

    def connect(self, answer: LinkAnswer) -> None:
        """Connect to the node and prepare every write; called off the step loop.

        Raises:
            PeerLostError: the node cannot be reached.
            HandshakeError: its metadata does not fit.
        """
        self.transport.connect(self.node_name, answer.metadata)
        layout = self.layout
        self._query_plan = self.transport.plan_writes(
            self.node_name,
            [
                Write(self.buffers.query_region, 0, answer.query_regions[0], 0, layout.query_bytes(rows))
                for rows in layout.buckets
            ],
        )
        self._append_plans = [
            self.transport.plan_writes(
                self.node_name,
                [
                    Write(
                        self.buffers.append_region,
                        slot * layout.append_slot_bytes,
                        answer.append_regions[0],
                        slot * layout.append_slot_bytes,
                        layout.append_bytes(rows),
                    )
                    for rows in layout.buckets
                ],
            )
            for slot in range(NUM_APPEND_SLOTS)
        ]
        self.stream.connect(
            self.transport, self.node_name, self.buffers.append_region, answer.append_regions[0]
        )
        if self.device is not None and answer.device_lanes is not None:
            self.device.connect(self.node_name, answer.device_lanes)
        self._device_answer = answer.device_lanes
        self.page_tokens = answer.page_tokens
        self.num_pages = answer.num_pages
        self.num_free_pages = answer.num_free_pages
        self.doorbell.connect(self.node_name, answer.doorbell_address)

    def warm(self) -> None:
        """Post the warming write, once the step loop receives this link's notices; called off the step loop.

        Raises:
            PeerLostError: the node is gone.
        """
        assert self._query_plan is not None  # noqa: S101 - connect made it
        self.transport.post(self._query_plan, len(self.layout.buckets) - 1, Warm(answer=False).encode())
        self.ring()

    def ring(self) -> None:
        """Wake the node if it sleeps.

        Raises:
            PeerLostError: its process is gone.
        """
        if not self.doorbell.ring_peer(self.node_name):
            raise PeerLostError(self.node_name, "its process is gone")

    def query_staging(self, num_rows: int) -> torch.Tensor:
        """Return the registered [num_rows, query heads, head dim] that ``post_query`` sends."""
        geometry = self.layout.geometry
        return (
            self.buffers.queries[: self.layout.query_bytes(num_rows)]
            .view(getattr(torch, geometry.dtype))
            .view(num_rows, geometry.num_query_heads, geometry.head_dim)
        )

    def partial_views(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of where ``num_rows`` outputs [rows, heads, dim] and lse [rows, heads] arrive."""
        layout, geometry = self.layout, self.layout.geometry
        bucket = layout.buckets[layout.bucket_index(num_rows)]
        memory = self.buffers.partials[: layout.partial_bytes(bucket)]
        out = memory[: layout.query_bytes(num_rows)].view(getattr(torch, geometry.dtype))
        start = layout.lse_offset(bucket)
        lse = memory[start : start + num_rows * geometry.num_query_heads * 4].view(torch.float32)
        return (
            out.view(num_rows, geometry.num_query_heads, geometry.head_dim),
            lse.view(num_rows, geometry.num_query_heads),
        )

    def append_staging(self, slot: int, num_rows: int) -> torch.Tensor:
        """Return the registered [layers, num_rows, 2, KV heads, head dim] that ``post_append`` sends."""
        layout, geometry = self.layout, self.layout.geometry
        bucket = layout.buckets[layout.bucket_index(num_rows)]
        start = slot * layout.append_slot_bytes
        memory = self.buffers.appends[start : start + layout.append_bytes(bucket)]
        rows = memory.view(getattr(torch, geometry.kv_dtype)).view(
            geometry.num_layers, bucket, 2, geometry.num_kv_heads, geometry.head_dim
        )
        return rows[:, :num_rows]

    def post_query(self, layer: int, step: int, num_rows: int, plan: np.ndarray | None) -> None:
        """Send the staged queries of one layer; layer 0 takes the step's plan.

        Raises:
            PeerLostError: the node is gone.
        """
        self.partial = None
        self._unanswered = (layer, step)
        notice = Query(0, layer, step, self._append_counter, num_rows, plan)
        assert self._query_plan is not None  # noqa: S101 - connect made it
        self.transport.post(self._query_plan, self.layout.bucket_index(num_rows), notice.encode())
        self.ring()

    def free_slot(self) -> int | None:
        """Return an append slot that may be filled, or None while all are under way.

        Raises:
            PeerLostError: the node is gone.
        """
        return next(
            (
                slot
                for slot in range(NUM_APPEND_SLOTS)
                # Of a step that was given up layers may be under way that no append tells of.
                if slot not in self._appends_in_flight and self.stream.is_done(slot)
            ),
            None,
        )

    def post_layer(self, slot: int, layer: int, num_rows: int) -> None:
        """Send one layer of a slot that is being filled; the node hears of it by ``tell_append``.

        Raises:
            PeerLostError: the node is gone.
        """
        self.stream.post(slot, layer, num_rows)

    def tell_append(self, slot: int, num_rows: int, entries: np.ndarray, num_pages: int) -> None:
        """Do as ``post_append`` for a slot whose layers are all there.

        Raises:
            PeerLostError: the node is gone.
        """
        notice = self._append(slot, num_rows, entries, num_pages)
        self.transport.notify(self.node_name, notice.encode())
        self.ring()

    def post_append(self, slot: int, num_rows: int, entries: np.ndarray, num_pages: int) -> None:
        """Send a filled slot; ``num_pages`` is what the node will take for it.

        Raises:
            PeerLostError: the node is gone.
        """
        notice = self._append(slot, num_rows, entries, num_pages)
        self.transport.post(self._append_plans[slot], self.layout.bucket_index(num_rows), notice.encode())
        self.ring()

    def _append(self, slot: int, num_rows: int, entries: np.ndarray, num_pages: int) -> Append:
        self._append_counter += 1
        self._appends_in_flight[slot] = _AppendInFlight(self._append_counter, num_pages)
        return Append(0, slot, self._append_counter, num_rows, entries)

    def open_device(self) -> None:
        """Let graphs reach the node's memory, where both sides have lanes; the link must be warm."""
        if self.device is None:
            return
        reason = "it has none"
        if self._device_answer is not None:
            try:
                self.device.open(self.node_name, self._device_answer)
            except (PeerLostError, UnavailableError) as error:
                reason = str(error)
            else:
                return
        logger.warning("%s: no device lanes, so decode steps are posted: %s", self.node_name, reason)
        self.device.release()
        self.device = None

    def send_step(self, step: int, lanes: tuple[LaneStep, ...], *, num_pages: int) -> None:
        """Tell the node that a step of captured graphs begins; it takes ``num_pages`` for it.

        Raises:
            PeerLostError: the node is gone.
        """
        self.check()
        self._steps_in_flight[step] = num_pages
        self.transport.notify(self.node_name, Step(step, self._append_counter, lanes).encode())
        self.ring()

    def send_retract(self, step: int) -> None:
        """Tell the node to forget what a step stored.

        Raises:
            PeerLostError: the node is gone.
        """
        self.transport.notify(self.node_name, Retract(step).encode())
        self.ring()

    def has_answered(self, step: int) -> bool:
        """True when the node has answered a step, or was not told of it."""
        return step not in self._steps_in_flight

    def has_launched(self, step: int) -> bool:
        """True when the node has answered a step, and did not refuse it."""
        return step not in self._steps_in_flight and not self._refusal

    def refuse(self, reason: str) -> None:
        """Use the node no more."""
        self._refusal = self._refusal or reason

    def check(self) -> None:
        """Look whether the node can still be used.

        Raises:
            PeerLostError: it does not hold what a step's plan named, or is out of step.
        """
        if self._refusal:
            raise PeerLostError(self.node_name, self._refusal)

    def send_free(self, sequence_ids: Sequence[int]) -> None:
        """Tell the node that sequences ended.

        Raises:
            PeerLostError: the node is gone.
        """
        for start in range(0, len(sequence_ids), MAX_FREE):
            self.transport.notify(self.node_name, Free(sequence_ids[start : start + MAX_FREE]).encode())
            self.num_frees_in_flight += 1
        self.ring()

    def send_find(self, number: int, keys: np.ndarray) -> None:
        """Ask which blocks the node holds: [num_blocks] keys, at most MAX_BLOCKS.

        Raises:
            PeerLostError: the node is gone.
        """
        self._notify(Find(number, keys))

    def send_share(self, sequence_id: int, blocks: np.ndarray, pinning: Pinning) -> None:
        """Let a sequence hold blocks of the node, and pin them or not.

        Args:
            sequence_id: the sequence.
            blocks: [num_blocks] of BLOCK_DTYPE, at most MAX_BLOCKS.
            pinning: what becomes of their pins.

        Raises:
            PeerLostError: the node is gone.
        """
        self._shares_in_flight[sequence_id] = len(blocks)
        self._notify(Share(sequence_id, blocks, pinning))

    def send_publish(self, sequence_id: int, blocks: np.ndarray, pinning: Pinning) -> None:
        """Name blocks that a sequence holds there, once all that was sent is filed: as in ``send_share``.

        Raises:
            PeerLostError: the node is gone.
        """
        self._notify(Publish(sequence_id, self._append_counter, blocks, pinning))

    def _notify(self, notice: WireNotice) -> None:
        self.transport.notify(self.node_name, notice.encode())
        self.ring()

    def probe(self) -> None:
        """Send an empty FREE: harmless, and it fails if the node is gone.

        Raises:
            PeerLostError: the node is gone.
        """
        self.transport.notify(self.node_name, Free(()).encode())
        self.num_frees_in_flight += 1
        self.ring()

    def has_partial(self, layer: int, step: int) -> bool:
        """True when this layer's outputs are in the partial region.

        Raises:
            PeerLostError: the node says it does not hold what the plan named.
        """
        partial = self.partial
        if partial is None or partial.step != step or partial.layer != layer:
            return False
        if partial.status is not RowStatus.OK:
            raise PeerLostError(self.node_name, f"its keys and values do not fit the plan of step {step}")
        return True

    def receive(self, notice: WireNotice) -> None:
        """Take in one notice of this node."""
        match notice:
            case Partial():
                self.partial = notice
                if self._unanswered == (notice.layer, notice.step):
                    self._unanswered = None
                self.num_free_pages = notice.num_free_pages
            case Appended():
                flight = self._appends_in_flight.get(notice.slot)
                if flight is not None and flight.counter == notice.counter:
                    del self._appends_in_flight[notice.slot]
                self.num_free_pages = notice.num_free_pages
                self._note_failed(notice.failed, step=0)
            case Freed():
                self.num_frees_in_flight -= 1
                self.num_free_pages = notice.num_free_pages
            case Found() | Shared() | Published():
                self._take_block_news(notice)
            case Stepped():
                self._steps_in_flight.pop(notice.step, None)
                self.num_free_pages = notice.num_free_pages
                self._note_failed(notice.failed, step=notice.step)
                if notice.status is not RowStatus.OK:
                    self.refuse(f"its keys and values do not fit the plan of step {notice.step}")
            case LaneData() if self.device is not None:
                self.device.receive(notice)
            case Warm(answer=True):
                self.is_warm = True
                self.num_free_pages = notice.num_free_pages
            case _:
                return

    def _note_failed(self, sequence_ids: Iterable[int], *, step: int) -> None:
        for sequence_id in sequence_ids:
            self.failed_sequences.setdefault(sequence_id, step)

    def _take_block_news(self, notice: Found | Shared | Published) -> None:
        if not isinstance(notice, Found):
            self.num_free_pages = notice.num_free_pages
        if isinstance(notice, Shared):
            self._shares_in_flight.pop(notice.sequence, None)
        self.block_news.append(notice)

    def close(self) -> None:
        """Disconnect and deregister the buffers.

        Unless the link is quiet the node may still write to them, and deregistering does not stop it: keep
        this object until that cannot be any more.
        """
        if self.device is not None:
            self.device.close_views()
        self.transport.disconnect(self.node_name)
        self.doorbell.disconnect(self.node_name)
        self.buffers.release(self.transport)
        if self.device is not None:
            self.device.release()
