"""Times what the CPUs of a weight node and an attention node do for one decode step of captured graphs.

    python benchmarks/step_host.py [--rows 1 8 32 64] [--contexts 2048 8192 32768] [--steps 200]

Everything is the product's own code but CUDA, FlashInfer and NIXL: graphs take no time, and notices go from
one list to another. Times are medians of a step in microseconds; a phase is without the phases that it calls.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import pickle
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import numpy as np
import torch

from kernelflume.anode.exchange import Exchange
from kernelflume.anode.gpu import launcher
from kernelflume.anode.kvpool import KvPool
from kernelflume.anode.links import Link as AttentionLink
from kernelflume.core.geometry import KvGeometry
from kernelflume.core.ranges import SequenceRoute
from kernelflume.core.sampling import SamplingParameters
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.transport import wire
from kernelflume.transport.doorbell import Doorbell
from kernelflume.transport.lanes import LaneLayout
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport
from kernelflume.transport.waiter import Waiter, WaitPolicy
from kernelflume.wnode.engine import Engine
from kernelflume.wnode.gpu.captured_steps import CapturedSteps
from kernelflume.wnode.gpu.device_end import DeviceEnd
from kernelflume.wnode.gpu.device_stage import QueryFirst
from kernelflume.wnode.gpu.graph_runner import GraphRunner
from kernelflume.wnode.gpu.lane import LaneBuffers
from kernelflume.wnode.gpu.lane_routes import LaneRoutes
from kernelflume.wnode.hand_overs import HandOvers
from kernelflume.wnode.inbox import Inbox
from kernelflume.wnode.kernel_threads import KernelThreads
from kernelflume.wnode.ledger import AdoptedTable, Ledger
from kernelflume.wnode.link import Link, LinkBuffers
from kernelflume.wnode.links import LinkTable
from kernelflume.wnode.pipeline.choice import LiveMicrobatches
from kernelflume.wnode.pipeline.lane_plan import LanePlan
from kernelflume.wnode.pipeline.live_profile import LiveProfile
from kernelflume.wnode.pipeline.remote_times import RemoteTimes
from kernelflume.wnode.pipeline.weight_times import GraphTimes, WeightTimes
from kernelflume.wnode.prefix_cache import PrefixCache
from kernelflume.wnode.reporter import Reporter
from kernelflume.wnode.request_keys import RequestKeys
from kernelflume.wnode.scheduler import BatchLimits, Scheduler
from kernelflume.wnode.sequence import Sequence, SequenceEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernelflume.anode.gpu.work import LaneWork
    from kernelflume.wnode.gpu.step_stream import Mark

GEOMETRY = KvGeometry(
    model_id="none",
    model_revision="1",
    num_layers=1,
    num_query_heads=1,
    num_kv_heads=1,
    head_dim=16,
    dtype="bfloat16",
    kv_dtype="bfloat16",
)
PAGE_TOKENS = 16
MAX_ROWS = 64
GROWTH = 1024
"""Tokens that each sequence may grow by while it is timed."""


class Phases:
    """Time by phase, each without those inside it."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._inside: list[float] = [0.0]
        self.steps: list[dict[str, float]] = []

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time counts as a phase's."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                self._spent[phase] += took - self._inside.pop()
                self._inside[-1] += took

        return run

    def end_step(self) -> None:
        """Begin to count anew."""
        self.steps.append(dict(self._spent))
        self._spent.clear()

    def medians(self) -> dict[str, float]:
        """Return each phase's microseconds a step."""
        names = dict.fromkeys(name for step in self.steps for name in step)
        return {name: 1e6 * statistics.median(step.get(name, 0.0) for step in self.steps) for name in names}


class InstantGraphs:
    """Graphs that take no time."""

    num_captures = 1

    def replay(self, num_rows: tuple[int, ...]) -> list[torch.Tensor]:
        """Return no logits."""
        return [torch.empty(0) for rows in num_rows if rows]


class InstantStream:
    """A stream on which everything is done once the attention node has launched the step."""

    def __init__(self, attend: Callable[[], bool]) -> None:
        self._mark = cast("Mark", mock.Mock(query=attend))

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Return nothing to enter."""
        return contextlib.nullcontext()

    def enqueue(self, work: Callable[[], object]) -> None:
        """Do it."""
        work()

    def mark(self) -> Mark:
        """Return the only mark."""
        return self._mark

    def pinned(self, memory: torch.Tensor) -> torch.Tensor:
        """Return it as it is."""
        return memory


class InstantTimer:
    """A clock by which every step takes as long as the profile expects."""

    seconds = 1e-2

    def begin(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class InstantExchange:
    """Lanes whose rows need no way."""

    stream = None
    failure = None
    needs_host = False

    def __init__(self, num_lanes: int) -> None:
        self.stages = [mock.Mock(upload=lambda _: None) for _ in range(num_lanes)]

    def begin(self, *_: object) -> None:
        """Nothing."""

    def turn(self) -> bool:
        """Nothing is due."""
        return True


class AttentionDevice:
    """A link whose graphs take no time; what FlashInfer's plan is given is prepared as in earnest."""

    is_driven = False
    files_in_layer = False
    is_open = True
    is_idle = True

    def has_ended(self, step: int) -> bool:
        """Graphs take no time."""
        del step
        return True

    def __init__(self, layout: LaneLayout, num_lanes: int, num_pages: int) -> None:
        self.layout, self.num_lanes = layout, num_lanes
        self._indices = np.zeros(num_pages, np.int32)
        self._indptr = np.zeros(layout.max_rows + 1, np.int32)
        self._last = np.zeros(layout.max_rows, np.int32)
        self._slots = np.zeros(layout.max_rows, np.int64)

    def check(self) -> None:
        """Nothing fails."""

    def launch(self, work: list[LaneWork], step: int) -> None:
        """Fill what is pinned memory in earnest."""
        del step
        for table, slots in work:
            self._slots[: len(slots)] = slots
            padded = table.padded(self.layout.graph_rows(max(1, len(table.last_page_len))))
            self._indptr[: len(padded.indptr)] = padded.indptr
            self._last[: len(padded.last_page_len)] = padded.last_page_len
            self._indices[: len(padded.indices)] = padded.indices


class ViewedLoopback(LoopbackTransport):
    """Says that kernels reach everything."""

    def remote_view(self, *_: object) -> int:
        """Return a view of nothing."""
        return 1


class Rig:
    """A weight node in steady decode, and its attention node."""

    def __init__(self, num_rows: int, context: int, phases: Phases) -> None:
        clock = MonotonicClock()
        network = LoopbackNetwork()
        plan = LanePlan.of("auto", MAX_ROWS)
        layout = LaneLayout(GEOMETRY, MAX_ROWS)
        # The attention node.
        self.attention = ViewedLoopback("a#1", network)
        num_pages = num_rows * ((context + GROWTH) // PAGE_TOKENS + 1)
        pool = KvPool(
            GEOMETRY, page_tokens=PAGE_TOKENS, num_bytes=num_pages * PAGE_TOKENS * GEOMETRY.token_bytes
        )
        doorbell = mock.Mock(spec=Doorbell, ring_peer=lambda _: True)
        self.exchange = Exchange(transport=self.attention, doorbell=doorbell, pool=pool, clock=clock)
        device = AttentionDevice(layout, plan.num_lanes, num_pages)
        peer = AttentionLink(
            "w#1", layout=layout, buffers=[cast("Any", mock.Mock())], plans=[], kernels=[], doorbell=None,
            device=cast("Any", device),
        )  # fmt: skip
        self.exchange._links["w#1"] = peer  # noqa: SLF001 - a link without a handshake
        # The weight node.
        transport = ViewedLoopback("w#1", network)
        transport.connect("a#1", b"a#1")
        self.attention.connect("w#1", b"w#1")
        links = LinkTable(
            Waiter(transport, doorbell, clock, WaitPolicy()), clock, exchange_timeout_s=5.0, gone=lambda _: ""
        )
        end = DeviceEnd(
            layout, num_lanes=plan.num_lanes, query_first="local", transport=cast("Any", transport),
            device=torch.device("cpu"),
        )  # fmt: skip
        end._views = [1] * plan.num_lanes  # noqa: SLF001 - as if it had been opened
        link = Link("a#1", layout, cast("LinkBuffers", None), transport, doorbell, device=end)
        link.page_tokens, link.num_pages, link.is_warm = PAGE_TOKENS, num_pages, True
        links.add(link)
        ledger = Ledger(links)
        ledger.adopt(AdoptedTable(1, ("a",), frozenset(("a",))))
        self.scheduler = Scheduler(
            BatchLimits(max_num_seqs=MAX_ROWS, max_num_batched_tokens=MAX_ROWS), ledger
        )
        for number in range(1, num_rows + 1):
            sequence = Sequence(
                f"r{number}", [1] * context, SamplingParameters(temperature=0.0, max_tokens=1 << 20), 0
            )
            sequence.apply(SequenceEvent.ADMIT)
            sequence.sequence_id, sequence.num_computed, sequence.output = number, context, [1]
            sequence.route = SequenceRoute().with_tail("a").extended(context)
            sequence.queue_s = 0.0
            self.scheduler.running.append(sequence)
            pool.append(peer.held(number), 0, context)
        link.num_free_pages = pool.num_free_pages
        self._run_attention = phases.timed("A: rest", self._turn_attention)
        lanes = [LaneBuffers.allocate(GEOMETRY, MAX_ROWS, torch.device("cpu")) for _ in range(plan.num_lanes)]
        times = {(count, rows): GraphTimes(1e-2, 1e-3, 1e-3) for count, rows in plan.steps}
        profile = LiveProfile(WeightTimes(32, times), RemoteTimes())
        steps = CapturedSteps(InstantGraphs(), [InstantTimer()], profile, LiveMicrobatches(profile), plan)
        runner = self._runner(steps=steps, lanes=lanes, layout=layout, plan=plan, links=links, clock=clock)
        connection = mock.Mock(send=pickle.dumps)
        cache = PrefixCache(
            links=links, ledger=ledger, scheduler=self.scheduler, clock=clock,
            send=connection.send, enabled=False,
        )  # fmt: skip
        hand_overs = HandOvers(self.scheduler, cache, clock, timeout_s=1.0)
        self.engine = Engine(
            decoder=mock.Mock(config=GEOMETRY), kv_dtype=torch.bfloat16,
            scheduler=self.scheduler, prefix_cache=cache,
            hand_overs=hand_overs, ledger=ledger, links=links, inbox=Inbox(),
            reporter=Reporter(connection, clock), clock=clock, kernel_threads=KernelThreads(1, 1),
            graph_runner=runner, eos_token_ids=frozenset(), max_model_len=1 << 24,
            request_keys=RequestKeys(0, "w-1"),
        )  # fmt: skip

    def _runner(
        self,
        *,
        steps: CapturedSteps,
        lanes: list[LaneBuffers],
        layout: LaneLayout,
        plan: LanePlan,
        links: LinkTable,
        clock: MonotonicClock,
    ) -> GraphRunner:
        stream = InstantStream(self._attend)
        return GraphRunner(
            steps=steps, stream=stream, layout=layout, lanes=lanes,
            exchange=cast("Any", InstantExchange(plan.num_lanes)), links=links, clock=clock,
            max_step_rows=plan.max_step_rows, query_first=QueryFirst.LOCAL, timeout_s=5.0,
            eos_token_ids=frozenset(),
        )  # fmt: skip

    def _attend(self) -> bool:
        """The step is done once the attention node has launched it."""
        self._run_attention()
        return True

    def _turn_attention(self) -> None:
        self.exchange.turn(self.attention.poll())


PHASES: tuple[tuple[str, Any, str], ...] = (
    ("W: schedule", Scheduler, "schedule"),
    ("W: place", Ledger, "place"),
    ("W: can run", GraphRunner, "can_run"),
    ("W: split", CapturedSteps, "split"),
    ("W: routes", LaneRoutes, "of"),
    ("W: notices", GraphRunner, "_tell"),
    ("W: upload", GraphRunner, "_upload_routes"),
    ("W: inputs", GraphRunner, "_bring_inputs"),
    ("W: profile", CapturedSteps, "note"),
    ("W: commit", Engine, "_commit"),
    ("W: emit", Reporter, "send"),
    ("W: report", Reporter, "report_step"),
    ("A: decode", wire, "decode"),
    ("A: page table", launcher, "_planned"),
    ("A: slots", launcher, "_take_slots"),
    ("A: plan's input", AttentionDevice, "launch"),
)


@contextlib.contextmanager
def timed_phases(phases: Phases) -> Iterator[None]:
    """Time the phases."""
    with contextlib.ExitStack() as stack:
        for phase, owner, name in PHASES:
            found = vars(owner)[name]
            if isinstance(found, (staticmethod, classmethod)):
                timed: Any = type(found)(phases.timed(phase, found.__func__))
            else:
                timed = phases.timed(phase, found)
            stack.enter_context(mock.patch.object(owner, name, timed))
        yield


def measure(num_rows: int, context: int, num_steps: int) -> dict[str, float]:
    """Return microseconds a step by phase."""
    phases = Phases()
    with timed_phases(phases):
        rig = Rig(num_rows, context, phases)
        turn = phases.timed("W: rest", rig.engine.turn)
        for _ in range(20):
            turn()
        phases.end_step()
        phases.steps.clear()
        for _ in range(num_steps):
            turn()
            phases.end_step()
    return phases.medians()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    found = {
        (rows, context): measure(rows, context, options.steps)
        for rows in options.rows
        for context in options.contexts
    }
    names = [*(name for name, _, _ in PHASES), "W: rest", "A: rest"]
    print("| phase |", " | ".join(f"{rows} x {context // 1024}K" for rows, context in found), "|")
    print("|---|" + "---|" * len(found))
    for name in sorted(names, key=lambda name: name[0] == "A"):
        print(f"| {name} |", " | ".join(f"{times.get(name, 0.0):.0f}" for times in found.values()), "|")
    for side in "WA":
        totals = [sum(us for name, us in times.items() if name[0] == side) for times in found.values()]
        print(f"| **{side} in all** |", " | ".join(f"**{total:.0f}**" for total in totals), "|")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
