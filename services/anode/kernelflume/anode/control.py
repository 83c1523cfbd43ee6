"""What the shell and the worker of an attention node tell each other, over a pipe between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from kernelflume.anode.pin_counts import PinCounts
    from kernelflume.core.errors import KernelFlumeError
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.core.ranges import TokenRange
    from kernelflume.core.regions import DeviceLanes, MemoryRegion
    from kernelflume.transport.waiter import WaitPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """First message to a worker: all it needs to start."""

    node_name: str
    geometry: KvGeometry
    memory_bytes: int
    page_tokens: int
    prefix_cache: bool
    prefix_cache_ttl_s: float
    pinned_share: float
    num_threads: int
    device: str
    kernel: str
    transport_error_handling: str
    doorbell_host: str
    wait: WaitPolicy
    log_level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    """How long the parts of a worker's start took."""

    transport_s: float
    """Making the transport's agent."""
    pool_s: float
    """Faulting the KV pool in."""
    self_test_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """First message of a worker: memory is faulted in and the self-test passed."""

    transport: str
    """Kind and version of the transport, for the handshake."""
    memory: str
    """DRAM or VRAM: where weight nodes write to."""
    num_pages: int
    num_threads: int
    times: StartTimes


@dataclass(frozen=True, slots=True)
class Failed:
    """First message of a worker that cannot start."""

    error: KernelFlumeError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOrder:
    """Link a weight node, replacing an earlier link of the same node."""

    weight_node: str
    metadata: bytes
    num_lanes: int
    max_rows: int
    partial_regions: tuple[MemoryRegion, ...]
    doorbell_address: str
    device_lanes: DeviceLanes | None = None
    """The weight node's side of the lanes that kernels exchange through, if it has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """Answer to ``ConnectOrder``: where the weight node may write."""

    metadata: bytes
    query_regions: tuple[MemoryRegion, ...]
    append_regions: tuple[MemoryRegion, ...]
    doorbell_address: str
    num_free_pages: int
    device_lanes: DeviceLanes | None = None


@dataclass(frozen=True, slots=True)
class DisconnectOrder:
    """Drop the links of these weight nodes and free their sequences; unknown ones are skipped."""

    weight_nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Answer to ``DisconnectOrder``."""

    num_sequences_freed: int


@dataclass(frozen=True, slots=True)
class StatisticsOrder:
    """Ask for ``WorkerStatistics``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatistics:
    """What one weight node holds here."""

    weight_node: str
    num_sequences: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """Exact figures of the worker at one moment."""

    num_pages: int
    num_free_pages: int
    num_tokens: int
    pool_bytes: int
    buffer_bytes: int
    """Lanes and scratch, those of dropped links included until they are given back."""
    queries_served: int
    tokens_appended: int
    notices_rejected: int
    links_lost: int
    scan_bytes_per_s: float
    """Median of recent large decode steps; 0 while there are none."""
    num_cached_pages: int
    num_cached_tokens: int
    tokens_found: int
    """Of blocks that were asked for and are here."""
    tokens_shared: int
    """Given to sequences without an append."""
    pages_evicted: int
    """Cached pages that were dropped because their room was needed."""
    pages_expired: int
    """Cached pages whose time to live was over."""
    num_pinned_tokens: int
    """Of pages with a pin, which are held or cached."""
    max_pinned_tokens: int
    pin_counts: PinCounts
    """In pages."""
    links: tuple[LinkStatistics, ...]


@dataclass(frozen=True, slots=True)
class PagesOrder:
    """Ask for ``PageListing``."""


@dataclass(frozen=True, slots=True)
class SequenceListing:
    """What one sequence holds."""

    weight_node: str
    sequence_id: int
    ranges: tuple[TokenRange, ...]
    pages: np.ndarray
    """int32 [pages], in the order of its tokens."""


@dataclass(frozen=True, slots=True)
class PageListing:
    """Every page of the pool at one moment, in arrays of page numbers: a pool may have a million."""

    num_holders: np.ndarray
    """uint32 [pages of the pool]"""
    cached: np.ndarray
    """uint32, in the order in which they would be dropped."""
    free: np.ndarray
    """uint32, ascending"""
    pinned: np.ndarray
    """uint32, ascending: of the held and cached ones."""
    max_pinned: int
    sequences: tuple[SequenceListing, ...]


Order = ConnectOrder | DisconnectOrder | StatisticsOrder | PagesOrder
Result = Connected | Disconnected | WorkerStatistics | PageListing


@dataclass(frozen=True, slots=True)
class Call:
    """Shell to worker."""

    call_id: int
    order: Order


@dataclass(frozen=True, slots=True)
class Answer:
    """Worker to shell: the result of one call, or why there is none."""

    call_id: int
    result: Result | KernelFlumeError


@dataclass(frozen=True, slots=True)
class Stop:
    """Shell to worker: disconnect everyone and end."""
