"""A scripted weight node and a small attention node around the same transport, for tests of either side."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.core.geometry import KvGeometry
from kernelflume.core.retention import AS_IT_IS
from kernelflume.tensor.partials import Partial
from kernelflume.transport import wire
from kernelflume.transport.base import Transport, Write
from kernelflume.transport.lanes import NUM_APPEND_SLOTS, LaneLayout
from kernelflume.transport.memory import allocate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.anode.kernels import AttentionKernel, Share, StepAttention
    from kernelflume.core.regions import MemoryRegion
    from kernelflume.core.retention import Pinning
    from kernelflume.transport.base import WritePlan

GEOMETRY = KvGeometry(
    model_id="tiny",
    model_revision="1",
    num_layers=3,
    num_query_heads=6,
    num_kv_heads=2,
    head_dim=16,
    dtype="float32",
    kv_dtype="float32",
)


class OnePlanKernel:
    """A kernel whose next plan ends the one before, as ``AttentionKernel.plan`` says it may."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self._kernel = kernel
        self._num_plans = 0

    def plan(self, queries: torch.Tensor, shares: Sequence[Share]) -> StepAttention:
        self._num_plans += 1
        return OnePlanStep(self, self._num_plans, self._kernel.plan(queries, shares))

    def apart(self) -> OnePlanKernel:
        return OnePlanKernel(self._kernel.apart())

    def check(self, plan: int) -> None:
        assert plan == self._num_plans, "this kernel has planned another step since"


class OnePlanStep:
    """A plan of ``OnePlanKernel``."""

    def __init__(self, kernel: OnePlanKernel, plan: int, attention: StepAttention) -> None:
        self._kernel = kernel
        self._plan = plan
        self._attention = attention

    def run(self, layer: int, into: Partial) -> None:
        self._kernel.check(self._plan)
        self._attention.run(layer, into)


def with_dtypes(dtype: str, kv_dtype: str | None = None) -> KvGeometry:
    return dataclasses.replace(GEOMETRY, dtype=dtype, kv_dtype=kv_dtype or dtype)


@dataclass
class Tokens:
    """Keys and values of one sequence, as the weight node computed them."""

    keys: torch.Tensor
    """[num_layers, num_tokens, num_kv_heads, head_dim]"""
    values: torch.Tensor

    @property
    def num_tokens(self) -> int:
        return self.keys.shape[1]

    @classmethod
    def random(cls, geometry: KvGeometry, num_tokens: int, generator: torch.Generator) -> Tokens:
        shape = (geometry.num_layers, num_tokens, geometry.num_kv_heads, geometry.head_dim)
        dtype = getattr(torch, geometry.kv_dtype)
        return cls(
            torch.randn(shape, generator=generator).to(dtype),
            torch.randn(shape, generator=generator).to(dtype),
        )

    def rows(self, start: int, end: int) -> torch.Tensor:
        """Return [num_layers, rows, 2, num_kv_heads, head_dim]."""
        return torch.stack([self.keys[:, start:end], self.values[:, start:end]], dim=2)


class WeightNode:
    """The other end of the protocol, driven by hand. Have it linked, then ``connect`` it."""

    def __init__(
        self, transport: Transport, geometry: KvGeometry, *, num_lanes: int = 1, max_rows: int = 16
    ) -> None:
        self.transport = transport
        self.geometry = geometry
        self.layout = LaneLayout(geometry, max_rows)
        self.num_lanes = num_lanes
        self.node_name = ""
        layout = self.layout
        self.queries = [allocate(layout.query_region_bytes) for _ in range(num_lanes)]
        self.appends = [allocate(layout.append_region_bytes) for _ in range(num_lanes)]
        self.partials = [allocate(layout.partial_region_bytes) for _ in range(num_lanes)]
        self.query_regions = [transport.register(memory) for memory in self.queries]
        self.append_regions = [transport.register(memory) for memory in self.appends]
        self.partial_regions = tuple(transport.register(memory) for memory in self.partials)
        self.query_plans: list[WritePlan] = []
        self.append_plans: list[list[WritePlan]] = []
        self.appends_sent = [0] * num_lanes
        self.received: list[wire.WireNotice] = []

    def connect(
        self,
        node_name: str,
        metadata: bytes,
        query_regions: Sequence[MemoryRegion],
        append_regions: Sequence[MemoryRegion],
    ) -> None:
        layout = self.layout
        self.node_name = node_name
        self.transport.connect(node_name, metadata)
        self.query_plans, self.append_plans = [], []
        for lane in range(self.num_lanes):
            self.query_plans.append(
                self.transport.plan_writes(
                    node_name,
                    [
                        Write(self.query_regions[lane], 0, query_regions[lane], 0, layout.query_bytes(rows))
                        for rows in layout.buckets
                    ],
                )
            )
            self.append_plans.append(
                [
                    self.transport.plan_writes(
                        node_name,
                        [
                            Write(
                                self.append_regions[lane],
                                slot * layout.append_slot_bytes,
                                append_regions[lane],
                                slot * layout.append_slot_bytes,
                                layout.append_bytes(rows),
                            )
                            for rows in layout.buckets
                        ],
                    )
                    for slot in range(NUM_APPEND_SLOTS)
                ]
            )

    def warm(self) -> None:
        notice = wire.Warm(answer=False)
        self.transport.post(self.query_plans[0], len(self.layout.buckets) - 1, notice.encode())

    def query(
        self,
        queries: torch.Tensor,
        *,
        layer: int,
        step: int,
        plan: Sequence[tuple[int, int, int]] = (),
        lane: int = 0,
        appends: int | None = None,
    ) -> None:
        """Send [num_rows, num_query_heads, head_dim] and, at layer 0, (sequence, rows, held) entries."""
        num_rows = len(queries)
        tensor(self.queries[lane], self.geometry.dtype)[: queries.numel()].copy_(queries.flatten())
        notice = wire.Query(
            lane,
            layer,
            step,
            self.appends_sent[lane] if appends is None else appends,
            num_rows,
            np.array(list(plan), wire.PLAN_DTYPE) if layer == 0 else None,
        )
        self.transport.post(self.query_plans[lane], self.layout.bucket_index(num_rows), notice.encode())

    def append(
        self,
        rows: torch.Tensor,
        entries: Sequence[tuple[int, int, int]],
        *,
        lane: int = 0,
        notice_later: bool = False,
    ) -> Callable[[], None]:
        """Send [num_layers, num_rows, 2, num_kv_heads, head_dim] of (sequence, rows, start) entries.

        With ``notice_later`` only the data is placed, and the function that is returned sends the notice.
        """
        num_rows = rows.shape[1]
        self.appends_sent[lane] += 1
        counter = self.appends_sent[lane]
        slot = (counter - 1) % NUM_APPEND_SLOTS
        bucket = self.layout.bucket_index(num_rows)
        memory = self.appends[lane][slot * self.layout.append_slot_bytes :]
        memory = memory[: self.layout.append_bytes(self.layout.buckets[bucket])]
        staging = tensor(memory, self.geometry.kv_dtype).view(
            self.geometry.num_layers, -1, *rows.shape[2:]
        )  # fmt: skip
        staging[:, :num_rows].copy_(rows)
        notice = wire.Append(
            lane, slot, counter, num_rows, np.array(list(entries), wire.APPEND_DTYPE)
        ).encode()

        def send() -> None:
            self.transport.post(self.append_plans[lane][slot], bucket, notice)

        if not notice_later:
            send()
        return send

    def free(self, *sequences: int) -> None:
        self.transport.notify(self.node_name, wire.Free(sequences).encode())

    def find(self, keys: Sequence[bytes], *, number: int = 1) -> None:
        notice = wire.Find(number, np.array(keys, wire.BLOCK_DTYPE["key"]))
        self.transport.notify(self.node_name, notice.encode())

    def share(
        self, sequence: int, blocks: Sequence[tuple[bytes, int, int]], pinning: Pinning = AS_IT_IS
    ) -> None:
        """Ask for (key, start, tokens) blocks."""
        notice = wire.Share(sequence, np.array(list(blocks), wire.BLOCK_DTYPE), pinning)
        self.transport.notify(self.node_name, notice.encode())

    def publish(
        self,
        sequence: int,
        blocks: Sequence[tuple[bytes, int, int]],
        pinning: Pinning = AS_IT_IS,
        *,
        appends: int | None = None,
    ) -> None:
        """Name (key, start, tokens) blocks once so many appends are filed; by default all that were sent."""
        counter = self.appends_sent[0] if appends is None else appends
        notice = wire.Publish(sequence, counter, np.array(list(blocks), wire.BLOCK_DTYPE), pinning)
        self.transport.notify(self.node_name, notice.encode())

    def poll(self) -> list[wire.WireNotice]:
        """Return what arrived."""
        return [wire.decode(notice.payload) for notice in self.transport.poll()]

    def partial(self, num_rows: int, *, lane: int = 0) -> Partial:
        """Return a copy of what lies in the partial region."""
        layout, geometry = self.layout, self.geometry
        bucket = layout.buckets[layout.bucket_index(num_rows)]
        middle = layout.lse_offset(bucket)
        out = tensor(self.partials[lane][:middle], geometry.dtype).view(bucket, geometry.num_query_heads, -1)
        lse = tensor(self.partials[lane][middle : layout.partial_bytes(bucket)], "float32").view(bucket, -1)
        return Partial(out[:num_rows].clone(), lse[:num_rows].clone())


def tensor(memory: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(memory).view(getattr(torch, dtype))


@dataclass
class SilentDoorbell:
    """A doorbell without a socket that counts its rings."""

    address: str = "127.0.0.1:9"
    lines: dict[str, str] = field(default_factory=dict)
    rung: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def connect(self, peer: str, address: str) -> None:
        self.lines[peer] = address

    def disconnect(self, peer: str) -> None:
        self.lines.pop(peer, None)

    def ring_peer(self, peer: str) -> bool:
        if peer in self.lines:
            self.rung.append(self.lines[peer])
        return peer not in self.gone
