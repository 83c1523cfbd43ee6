"""The device path without GPUs: captured steps are generators that run in stream order, later than launched.

Step loops, links, pools, plans, tables and counters are the product's own. Streams of a weight node and of
its attention nodes go on whenever somebody polls, in an order drawn from a seed. Memory is real: each side
writes to the addresses that the other one registered.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from kernelflume.anode.host_pages import HostPages
from kernelflume.core.regions import DeviceLanes, MemoryRegion
from kernelflume.cuda.exchange import (
    APPEND_COUNTER_OFFSET,
    COUNTERS_BYTES,
    QUERY_COUNTER_OFFSET,
    ROUTES_HEADER,
    RowTables,
    WaitKind,
)
from kernelflume.cuda.status import Failure
from kernelflume.tensor.partials import merge_into
from kernelflume.transport.lanes import NUM_APPEND_SLOTS, LaneLayout
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport
from kernelflume.wnode.attention import SelfAttention
from kernelflume.wnode.gpu.captured_steps import CapturedSteps
from kernelflume.wnode.gpu.device_end import DeviceEnd
from kernelflume.wnode.gpu.device_stage import QueryFirst
from kernelflume.wnode.gpu.graph_runner import GraphRunner
from kernelflume.wnode.gpu.lane import LaneBuffers
from kernelflume.wnode.pipeline.choice import FixedMicrobatches
from kernelflume.wnode.pipeline.lane_plan import LanePlan
from kernelflume.wnode.pipeline.live_profile import LiveProfile
from kernelflume.wnode.pipeline.remote_times import RemoteTimes
from tests.inprocess import CONFIG, GEOMETRY, PAGE_TOKENS, LocalAttentionNode, LocalWeightNode
from tests.pipeline_world import World as Times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kernelflume.anode.gpu.work import LaneWork
    from kernelflume.anode.kvpool import KvPool
    from kernelflume.transport.base import Notice
    from kernelflume.transport.wire import LaneData
    from kernelflume.wnode.link import Link

LAYERS = GEOMETRY.num_layers
CPU = torch.device("cpu")
MAX_TURNS = 200_000


def memory_at(address: int, num_bytes: int) -> np.ndarray:
    """The bytes at an address, as a peer's kernels reach them."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))


class FakeStream:
    """Work in order; a generator that yields waits."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._running: Iterator[None] | None = None
        self.num_enqueued = 0
        self.num_done = 0

    def current(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def enqueue(self, work: Callable[[], object]) -> None:
        self._work.append(work)
        self.num_enqueued += 1

    def pinned(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.clone()

    def mark(self) -> FakeMark:
        return FakeMark(self, self.num_enqueued)

    def advance(self) -> None:
        """Do a piece of work, if there is any that can be done."""
        if self._running is None and self._work:
            result = self._work.popleft()()
            if hasattr(result, "__next__"):
                self._running = cast("Iterator[None]", result)
            else:
                self.num_done += 1
                return
        if self._running is not None:
            try:
                next(self._running)
            except StopIteration:
                self._running = None
                self.num_done += 1


@dataclass(frozen=True)
class FakeMark:
    """See ``Mark``."""

    stream: FakeStream
    count: int

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.stream.num_done >= self.count

    def synchronize(self) -> None:
        for _ in range(MAX_TURNS):
            if self.query():
                return
            self.stream.advance()
        raise AssertionError("a stream hangs")


class FakeDeviceLink:
    """See ``GraphLink``: what ``DeviceLink`` does, on a fake stream and over the pool's host memory."""

    files_in_layer = False
    is_driven = False

    def __init__(self, offer: DeviceLanes, pool: KvPool, world: DeviceWorld) -> None:
        assert isinstance(pool.storage, HostPages)
        self._offer, self._pool, self._pages, self._world = offer, pool, pool.storage, world
        self.layout = LaneLayout(pool.geometry, offer.max_rows)
        self.stream = FakeStream()
        self.num_lanes = len(offer.lanes)
        sizes = (self.layout.query_region_bytes, self.layout.append_region_bytes, COUNTERS_BYTES)
        self.memory = [[np.zeros(size, np.uint8) for size in sizes] for _ in offer.lanes]
        self.num_bytes = sum(sizes) * self.num_lanes
        self.is_open = False
        self.name = ""
        """Of the node."""
        self._steps: dict[int, FakeMark] = {}
        self._num_queries = [0] * self.num_lanes
        self._num_appends = [0] * self.num_lanes
        for lane in self.memory:
            world.reachable[lane[0].ctypes.data] = lane

    @property
    def lanes(self) -> DeviceLanes:
        regions = tuple(
            tuple(MemoryRegion(part.ctypes.data, part.nbytes) for part in lane) for lane in self.memory
        )
        return DeviceLanes(self.layout.max_rows, self._offer.query_first, regions)

    @property
    def is_idle(self) -> bool:
        return self.stream.num_done == self.stream.num_enqueued

    def has_ended(self, step: int) -> bool:
        return step not in self._steps or self._steps[step].query()

    def open(self, weight_node: str) -> None:
        del weight_node
        self.is_open = True

    def can_launch(self, step: int) -> bool:
        del step
        return True

    def launch(self, work: Sequence[LaneWork], step: int) -> None:
        # Of each parity one may be under way.
        before = [mark for number, mark in sorted(self._steps.items())][-2:-1]
        for mark in before:
            self._world.until(mark.query)
        plans = []
        for index, (table, slots) in enumerate(work):
            plans.append((index, table, slots.copy(), self._num_queries[index], self._num_appends[index]))
            self._num_queries[index] += LAYERS if len(table.last_page_len) else 0
            self._num_appends[index] += bool(len(slots))
        self.stream.enqueue(lambda: self._play(plans))
        self._steps = dict([*self._steps.items(), (step, self.stream.mark())][-2:])

    def receive(self, notice: LaneData) -> None:
        raise AssertionError(notice)

    def drive(self) -> bool:
        return False

    def check(self) -> None:
        pass

    def release(self, step: int) -> None:
        pass

    def close_views(self) -> None:
        self.is_open = False

    def close(self) -> None:
        pass

    def _play(self, plans: list[tuple[int, Any, np.ndarray, int, int]]) -> Iterator[None]:
        for layer in range(LAYERS):
            for index, table, _, num_queries, _ in plans:
                rows = len(table.last_page_len)
                if not rows:
                    continue
                while self._counter(index, QUERY_COUNTER_OFFSET) < num_queries + layer + 1:
                    yield
                self._answer(index, layer, table, rows)
        for index, _, slots, _, num_appends in plans:
            if len(slots):
                while self._counter(index, APPEND_COUNTER_OFFSET) < num_appends + 1:
                    yield
                slot = (
                    self.memory[index][1]
                    .view(np.float32)
                    .reshape(
                        NUM_APPEND_SLOTS,
                        LAYERS,
                        self.layout.max_rows,
                        2,
                        CONFIG.num_kv_heads,
                        CONFIG.head_dim,
                    )[num_appends % NUM_APPEND_SLOTS]
                )
                kept = np.flatnonzero(slots >= 0)
                if len(kept):
                    self._pool.store(slots[kept], torch.from_numpy(slot[:, kept].copy()))

    def _counter(self, lane: int, offset: int) -> int:
        return int(self.memory[lane][2][offset : offset + 8].view(np.uint64)[0])

    def _answer(self, lane: int, layer: int, table: Any, rows: int) -> None:
        heads, dim, group = (
            CONFIG.num_query_heads,
            CONFIG.head_dim,
            CONFIG.num_query_heads // CONFIG.num_kv_heads,
        )
        queries = torch.from_numpy(
            self.memory[lane][0].view(np.float32).reshape(-1, heads, dim)[:rows].copy()
        )
        out, lse = np.zeros((rows, heads, dim), np.float32), np.full((rows, heads), -np.inf, np.float32)
        bits = torch.from_numpy(self._pages.bits[layer]).view(torch.float32)  # [2, KV heads, slots, dim]
        for row in range(rows):
            pages = table.indices[table.indptr[row] : table.indptr[row + 1]].astype(np.int64)
            if not len(pages):
                continue
            slots = (pages[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)).ravel()
            slots = torch.from_numpy(slots[: (len(pages) - 1) * PAGE_TOKENS + table.last_page_len[row]])
            keys, values = (bits[kind][:, slots].repeat_interleave(group, dim=0) for kind in (0, 1))
            scores = torch.einsum("hd,htd->ht", queries[row], keys) * dim**-0.5
            out[row] = torch.einsum("ht,htd->hd", scores.softmax(-1), values).numpy()
            lse[row] = scores.logsumexp(-1).numpy()
        partials, counters = self._offer.lanes[lane]
        target = memory_at(partials.address, partials.num_bytes)
        target[: out.nbytes] = out.view(np.uint8).ravel()
        start = self.layout.lse_offset(self.layout.max_rows)
        target[start : start + lse.nbytes] = lse.view(np.uint8).ravel()
        memory_at(counters.address, 8).view(np.uint64)[0] += 1


class FakeStage:
    """Tables that are replaced in stream order."""

    def __init__(self, world: DeviceWorld, layout: LaneLayout) -> None:
        self._stream = world.stream
        self._tables = RowTables(layout.max_rows)
        self.memory, _, _ = self._tables.empty()
        self.num_uploads = 0

    def upload(self, memory: np.ndarray) -> None:
        copy = memory.copy()
        self.num_uploads += 1
        self._stream.enqueue(lambda: self._replace(copy))

    def _replace(self, memory: np.ndarray) -> None:
        self.memory[:] = memory

    @property
    def header(self) -> Any:
        return self.memory[: ROUTES_HEADER.itemsize].view(ROUTES_HEADER)[0]

    def table(self, kind: int, node: int, count: int) -> np.ndarray:
        max_rows = self._tables.max_rows
        tables = self.memory[ROUTES_HEADER.itemsize :].view(np.int32).reshape(3, -1, max_rows)
        return cast("np.ndarray", tables[kind, node, :count])


class FakeExchange:
    """See ``GraphExchange``: the status word, and nothing else."""

    stream = None
    needs_host = False

    def __init__(self, world: DeviceWorld, layout: LaneLayout, num_lanes: int, transport: Any) -> None:
        self._layout, self._num_lanes, self._transport = layout, num_lanes, transport
        self.stages = [FakeStage(world, layout) for _ in range(num_lanes)]
        self.failure: Failure | None = None

    def make_end(self) -> DeviceEnd:
        return DeviceEnd(
            self._layout,
            num_lanes=self._num_lanes,
            query_first="local",
            transport=self._transport,
            device=CPU,
        )

    def begin(self, *_: object) -> None:
        pass

    def turn(self) -> bool:
        return True

    def abort(self) -> None:
        self.failure = self.failure or Failure(WaitKind.ABORTED, 0, 0)

    def reset(self) -> None:
        self.failure = None


class LaneRun:
    """One lane's way through a step: what ``StepProgram`` and the exchange's kernels do."""

    def __init__(self, world: DeviceWorld, index: int) -> None:
        self._world = world
        self._index = index
        self._lane, self._stage = world.lanes[index], world.exchange.stages[index]
        self._decoder = world.weight.decoder
        self._rows = int(self._stage.header["num_rows"])
        self._state = self._decoder.begin(
            self._lane.token_ids[: self._rows].clone(), self._lane.positions[: self._rows].clone()
        )
        self._own: Any = None

    def project(self, layer: int) -> Iterator[None]:
        if layer:
            yield from self._finish(layer - 1)
        decoder, lane, rows = self._decoder, self._lane, self._rows
        query = decoder.project_query(layer, self._state)
        for node in range(int(self._stage.header["num_nodes"])):
            route = self._stage.header["nodes"][node]
            if count := int(route["num_query_rows"]):
                wanted = query[torch.from_numpy(self._stage.table(0, node, count).astype(np.int64))]
                queries, _, counters = self._world.views[int(route["remote"])]
                queries[: wanted.nbytes] = wanted.contiguous().numpy().view(np.uint8).ravel()
                counters[QUERY_COUNTER_OFFSET : QUERY_COUNTER_OFFSET + 8].view(np.uint64)[0] += 1
        key, value = decoder.project_kv(layer, self._state, out=lane.keys_values[layer, :rows])
        attention = SelfAttention([1] * rows, CONFIG.num_query_heads, CONFIG.num_kv_heads, CONFIG.head_dim)
        self._own = attention.attend(query, key, value)

    def finish(self, logits: torch.Tensor) -> Iterator[None]:
        yield from self._finish(LAYERS - 1)
        lane, rows, layout = self._lane, self._rows, self._world.layout
        for node in range(int(self._stage.header["num_nodes"])):
            route = self._stage.header["nodes"][node]
            if count := int(route["num_kv_rows"]):
                kept = torch.from_numpy(self._stage.table(2, node, count).astype(np.int64))
                _, appends, counters = self._world.views[int(route["remote"])]
                slot = int(route["append_offset"]) // layout.append_slot_bytes
                target = appends.view(np.float32).reshape(NUM_APPEND_SLOTS, *lane.keys_values.shape)
                target[slot, :, :count] = lane.keys_values[:, kept].numpy()
                counters[APPEND_COUNTER_OFFSET : APPEND_COUNTER_OFFSET + 8].view(np.uint64)[0] += 1
                route["append_offset"] = layout.append_slot_bytes - int(route["append_offset"])
            if int(route["num_query_rows"]):
                route["partials_before"] += LAYERS
        logits[:rows] = self._decoder.logits(self._state)
        lane.token_ids[:rows] = logits[:rows].argmax(-1)
        lane.positions[:rows] += 1

    def _finish(self, layer: int) -> Iterator[None]:
        layout, heads, dim = self._world.layout, CONFIG.num_query_heads, CONFIG.head_dim
        out, lse = self._own
        for node in range(int(self._stage.header["num_nodes"])):
            route = self._stage.header["nodes"][node]
            count = int(route["num_query_rows"])
            if not count:
                continue
            counter = memory_at(int(route["partial_counter"]), 8).view(np.uint64)
            exchange = self._world.exchange
            while counter[0] < int(route["partials_before"]) + layer + 1:
                if exchange.failure is None and self._world.times_out(int(route["remote"])):
                    exchange.failure = Failure(WaitKind.PARTIAL, self._index, node)
                if exchange.failure is not None:
                    break
                yield
            rows = torch.from_numpy(self._stage.table(0, node, count).astype(np.int64))
            num_bytes = layout.query_bytes(count)
            theirs = memory_at(int(route["partial_out"]), num_bytes).view(np.float32).copy()
            their_lse = memory_at(int(route["partial_lse"]), count * heads * 4).view(np.float32).copy()
            mine, my_lse = out[rows], lse[rows]
            merge_into(
                mine,
                my_lse,
                torch.from_numpy(theirs.reshape(count, heads, dim)),
                torch.from_numpy(their_lse.reshape(count, heads)),
            )
            out[rows], lse[rows] = mine, my_lse
        self._decoder.finish_layer(layer, self._state, out.reshape(self._rows, -1))


class FakeGraphs:
    """See ``Graphs``: a replay enqueues the generator of a step."""

    num_captures = 1

    def __init__(self, world: DeviceWorld) -> None:
        self._world = world
        self._logits: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def replay(self, num_rows: tuple[int, ...]) -> list[torch.Tensor]:
        logits = self._logits.setdefault(
            num_rows, [torch.zeros(rows, CONFIG.vocab_size) for rows in num_rows if rows]
        )
        runner = self._world.weight.runner
        assert runner is not None
        self._world.most_under_way = max(self._world.most_under_way, 1 + len(runner._under_way))
        self._world.stream.enqueue(lambda: self._play(logits))
        return logits

    def _play(self, logits: list[torch.Tensor]) -> Iterator[None]:
        runs = [
            LaneRun(self._world, index)
            for index, stage in enumerate(self._world.exchange.stages[: len(logits)])
            if int(stage.header["num_rows"])
        ]
        for layer in range(LAYERS):
            for run in runs:
                yield from run.project(layer)
        for run, of_lane in zip(runs, logits, strict=False):
            yield from run.finish(of_lane)


class NoTimer:
    """Takes a constant for every step."""

    seconds = 1e-3

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass


class WorldTransport(LoopbackTransport):
    """Time passes whenever somebody polls."""

    def __init__(self, name: str, network: LoopbackNetwork, world: DeviceWorld) -> None:
        super().__init__(name, network)
        self._world = world

    def poll(self) -> list[Notice]:
        self._world.tick()
        return super().poll()

    def remote_view(self, peer: str, regions: Sequence[MemoryRegion]) -> int:
        del peer
        views = self._world.views
        views[len(views) + 1] = self._world.reachable[regions[0].address]
        return len(views)

    def release_view(self, view: int) -> None:
        assert view in self._world.views


class DeviceWorld:
    """A weight node and attention nodes on the device path, on this thread alone."""

    def __init__(
        self,
        num_nodes: int,
        *,
        seed: int = 0,
        num_pages: int = 200,
        microbatches: str = "1",
        max_num_seqs: int = 8,
        active: int | None = None,
        promptness: float = 0.7,
        **options: Any,
    ) -> None:
        self.random = Random(seed)  # noqa: S311 - a repeatable order of events
        self.promptness = promptness
        """How often an attention node looks at its notices; streams do not wait for that."""
        self.network = LoopbackNetwork()
        self.stream = FakeStream()
        self.reachable: dict[int, list[np.ndarray]] = {}
        self.views: dict[int, list[np.ndarray]] = {}
        self.has_patience = True
        """False: waits for nodes that are silent end."""
        self.most_under_way = 0
        """Steps that the weight node had launched and not settled."""
        self.links: list[FakeDeviceLink] = []
        self.nodes: list[LocalAttentionNode] = []
        self.silent: set[str] = set()
        self.pace: dict[str, float] = {}
        """How often a node's stream goes on when others do; by its name, always unless told."""
        self._is_ticking = False
        self.plan = LanePlan.of(microbatches, max_num_seqs)
        self.layout = LaneLayout(GEOMETRY, self.plan.max_rows)
        self.lanes = [
            LaneBuffers.allocate(GEOMETRY, self.layout.max_rows, CPU) for _ in range(self.plan.num_lanes)
        ]
        self.weight = LocalWeightNode(
            self.network,
            max_num_seqs=max_num_seqs,
            transport=WorldTransport("w#1", self.network, self),
            make_runner=self._make_runner,
            **options,
        )
        for index in range(num_nodes):
            self.add_node(f"a{index}#1", num_pages=num_pages)
        self.weight.adopt(*[f"a{index}" for index in range(num_nodes if active is None else active)])

    def _make_runner(self, weight: LocalWeightNode) -> GraphRunner:
        self.exchange = FakeExchange(self, self.layout, self.plan.num_lanes, weight.transport)
        profile = LiveProfile(Times().weights(max_rows=8), RemoteTimes())
        choice = FixedMicrobatches(self.plan.fixed_count or 1)
        steps = CapturedSteps(FakeGraphs(self), [NoTimer(), NoTimer()], profile, choice, self.plan)
        return GraphRunner(
            steps=steps,
            stream=self.stream,
            layout=self.layout,
            lanes=self.lanes,
            exchange=cast("Any", self.exchange),
            links=weight.links,
            clock=weight.clock,
            max_step_rows=self.plan.max_step_rows,
            query_first=QueryFirst.LOCAL,
            timeout_s=10.0,
            eos_token_ids=weight.eos_token_ids,
        )

    def add_node(self, name: str, *, num_pages: int) -> LocalAttentionNode:
        """Start an attention node and link it; it is not in the table yet."""
        transport = WorldTransport(name, self.network, self)
        node = LocalAttentionNode(
            name, self.network, num_pages=num_pages, transport=transport, threaded=False
        )
        node.open_device_link = lambda offer: self._open_link(offer, node)
        self.nodes.append(node)
        self.weight.attach(node)
        return node

    def _open_link(self, offer: DeviceLanes, node: LocalAttentionNode) -> Any:
        link = FakeDeviceLink(offer, node.pool, self)
        link.name = node.name
        self.links.append(link)
        return link

    def times_out(self, view: int) -> bool:
        """Tell whether a wait for a node has taken too long."""
        if self.has_patience or not self._have_all_answered():
            return False
        return any(
            link.name in self.silent
            for link in self.links
            if any(lane is self.views[view] for lane in link.memory)
        )

    def _have_all_answered(self) -> bool:
        """Tell whether no node that speaks has an answer due: time-outs are longer than that takes."""
        links = self.weight.links.all()
        return not any(link._steps_in_flight for link in links if link.node_name not in self.silent)

    def tick(self) -> None:
        """Let every stream and node go on a little, or not."""
        if self._is_ticking:
            self._advance()
            return
        self._is_ticking = True
        try:
            self._advance()
            for node in self.nodes:
                if node.name not in self.silent and self.random.random() < self.promptness:
                    node.exchange.turn(LoopbackTransport.poll(node.transport))
        finally:
            self._is_ticking = False

    def _advance(self) -> None:
        names = [(link.stream, link.name) for link in self.links]
        streams = [(stream, self.pace.get(name, 1.0)) for stream, name in names if name not in self.silent]
        for stream, pace in ((self.stream, 1.0), *streams):
            if pace < 1.0 and self.random.random() >= pace:
                continue
            for _ in range(self.random.randrange(4)):
                stream.advance()

    def until(self, condition: Callable[[], bool], *, ticking: bool = False) -> None:
        """Let streams go on until something holds, and attention nodes too if ``ticking``."""
        for _ in range(MAX_TURNS):
            if condition():
                return
            if ticking:
                self.tick()
            else:
                self._advance()
        raise AssertionError("the condition never held")

    def kill(self, name: str) -> None:
        """Let a node vanish as a killed process does."""
        self.network.cut(name)
        self.silent.add(name)

    def link_of(self, node_id: str) -> Link:
        link = self.weight.links.of_node(node_id)
        assert link is not None
        return link

    def drain(self) -> None:
        """Turn until every page of nodes that speak is free."""
        speaking = [node for node in self.nodes if node.name not in self.silent]
        self.weight.turn_until(lambda: all(node.num_used_pages == 0 for node in speaking))

    def close(self) -> None:
        for node in self.nodes:
            node.stop()
        self.weight.close()


def wrong_keys(world: DeviceWorld, name: str) -> list[tuple[str, int, int]]:
    """Compare what a node holds of running sequences with dense attention's keys and values.

    Returns:
        (request, position, layer) of each that differs.
    """
    [node] = [node for node in world.nodes if node.name == name]
    [link] = node.exchange._links.values()
    assert isinstance(node.pool.storage, HostPages)
    bits = [torch.from_numpy(layer).view(torch.float32) for layer in node.pool.storage.bits]
    found = []
    for sequence in world.weight.scheduler.running:
        held = link.sequences.get(sequence.sequence_id)
        if held is None:
            continue
        expected = world.weight.reference_keys_values(sequence.tokens(0, sequence.num_computed))
        positions = [place for tokens in held.held.ranges for place in range(tokens.start, tokens.end)]
        for index, position in enumerate(positions):
            slot = held.pages[index // PAGE_TOKENS] * PAGE_TOKENS + index % PAGE_TOKENS
            for layer in range(LAYERS):
                there = bits[layer][:, :, slot]  # [2, KV heads, dim]
                if position < sequence.num_computed and not torch.allclose(
                    there, expected[layer][position], atol=1e-3
                ):
                    found.append((sequence.request_id, position, layer))
    return found
