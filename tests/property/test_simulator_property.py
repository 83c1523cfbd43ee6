"""What holds for every simulation, whatever the sessions and the strategy."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simulated import STRATEGIES, session, simulator_of, write_profiles

from kernelflume.scaler.sim import measures, simulation, world
from kernelflume.scaler.sim.course import Course
from kernelflume.scaler.sim.engine import Engine
from kernelflume.scaler.sim.events import Event, EventKind, EventQueue
from kernelflume.scaler.sim.report import fields_of

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.sessions import Session

NAMES = [str(strategy["name"]) for strategy in STRATEGIES]
# The model and the GPUs are the same for all examples of a test.
SETTINGS = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

turns = st.lists(st.tuples(st.integers(1, 900), st.integers(1, 400)), min_size=1, max_size=4)

CACHE = {"capacity_gb": 0.002, "fetch_gb_per_s": 0.01, "source": "a test"}
"""976 tokens."""
arrivals = st.one_of(
    st.just({"concurrency": None}),
    st.fixed_dictionaries(
        {
            "concurrency": st.sampled_from([1, 3, 8]),
            "admits": st.sampled_from(["sessions", "turns", "batches"]),
        }
    ),
)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[tuple[Session, ...], dict[str, Any], dict[str, Any]]:
    several = draw(st.lists(st.tuples(turns, st.integers(0, 20)), min_size=1, max_size=8))
    sessions = tuple(
        session(number, *some, start_s=float(start), think_s=draw(st.sampled_from([0.0, 1.5])))
        for number, (some, start) in enumerate(several)
    )
    workload = {
        "keep_between_turns": draw(st.booleans()),
        "think": draw(st.booleans()),
        "prefill_tokens_per_s": draw(st.sampled_from([None, 2000.0])),
        "prefix_cache": draw(st.sampled_from([None, CACHE])),
        "least_step_s": draw(st.sampled_from([0.0, 0.03])),
    }
    return sessions, draw(arrivals), workload


def run(
    folder: Path, name: str, sessions: tuple[Session, ...], coming: dict[str, Any], **more: Any
) -> Result:
    simulator = simulator_of(folder, sessions, **coming, **more)
    [strategy] = [one for one in simulator.config.strategies if one.name == name]
    return simulator.run(strategy)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profiles(tmp_path)
    return tmp_path


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the books of every engine before each plan, and at its end."""
    plan = Engine.plan

    def checking(engine: Engine) -> float | None:
        for shard in engine.shards:
            grown = sum(engine.step - tail.tail_since_step for tail in shard.tails.values())
            parts = [*engine.running.values(), *engine.idle.values()]
            assert shard.held(engine.step) == grown + sum(one.parts.get(shard, 0) for one in parts)
            assert 0 <= shard.held(engine.step) <= shard.capacity_tokens
            read = sum(one.parts.get(shard, 0) for one in engine.running.values())
            assert shard.read(engine.step) == grown + read
        at_s = plan(engine)
        end = engine.step + sum(piece.num_steps for piece in engine._plan)
        assert all(shard.held(end) <= shard.capacity_tokens for shard in engine.shards)
        return at_s

    monkeypatch.setattr(Engine, "plan", checking)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(workload=workloads())
def test_capacity_is_never_exceeded_tokens_are_conserved_and_cost_is_the_integral_of_billed_gpus(
    folder: Path, name: str, workload: Any
) -> None:
    sessions, coming, settings_ = workload
    # Of each run: a fixed pool has one for every layout, and for what the sessions hold.
    runs: list[dict[int, list[Any]]] = []

    class Noting(measures.Billing):
        def begin(self, hardware: str, num_gpus: int, now_s: float) -> int:
            number = super().begin(hardware, num_gpus, now_s)
            runs[-1][number] = [hardware, num_gpus, now_s, None]
            return number

        def end(self, number: int, now_s: float) -> None:
            super().end(number, now_s)
            runs[-1][number][3] = now_s

    with pytest.MonkeyPatch.context() as patch:
        real = world.World

        def noted(**fields: Any) -> Any:
            runs.append({})
            return real(billing=Noting(), **fields)

        patch.setattr(simulation, "World", noted)
        result = run(folder, name, sessions, coming, workload=settings_)
    assert result.output_tokens + result.refused_tokens == sum(one.output_tokens for one in sessions)
    assert 0 <= result.turn_attainment <= 1
    assert 0 <= result.step_attainment <= 1 + 1e-9
    costs = [integral(spans) for spans in runs]
    assert any(math.isclose(result.cost_usd, cost, rel_tol=1e-9, abs_tol=1e-12) for cost in costs)
    last = [max(moment for span in spans.values() for moment in span[2:]) for spans in runs]
    assert result.duration_s in last


def integral(spans: dict[int, list[Any]]) -> float:
    """Add up what is paid between any two moments at which a bill begins or ends."""
    prices = {"gpu.yaml": 2.0, "other.yaml": 1.0, "spot": 0.5}
    moments: list[float] = sorted({moment for span in spans.values() for moment in span[2:]})
    cost: float = sum(
        (later - moment)
        / 3600
        * sum(span[1] * prices[span[0]] for span in spans.values() if span[2] <= moment and span[3] >= later)
        for moment, later in itertools.pairwise(moments)
    )
    return cost


COMING = st.sampled_from(
    [
        {"kind": "closed", "concurrency": 2},
        {"kind": "closed", "concurrency": 2, "counts": "turns"},
        {"kind": "batches", "size": 3},
        {"kind": "poisson", "sessions_per_s": 0.05},
        {"kind": "poisson", "sessions_per_s": 5.0},
        {"kind": "bursts", "sessions_per_s": 0.2, "peak": 10, "burst_s": 5, "period_s": 30},
    ]
)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(
    coming=COMING,
    seed=st.integers(0, 99),
    behaving=st.fixed_dictionaries(
        {"think": st.booleans(), "least_step_s": st.sampled_from([0.0, 0.03])},
    ),
)
def test_the_same_holds_of_drawn_sessions_however_they_come(
    folder: Path, name: str, coming: dict[str, Any], seed: int, behaving: dict[str, Any]
) -> None:
    # Contexts of about 800 tokens, of which a node holds a few.
    drawn = {"kind": "generator", "num_sessions": 5, "context_scale": 0.01}
    workload = {"source": drawn, "arrivals": coming, **behaving}
    least_step_s = behaving["least_step_s"]

    simulator = simulator_of(folder, workload=workload, seed=seed)
    [strategy] = [one for one in simulator.config.strategies if one.name == name]
    result = simulator.run(strategy)
    assert result.output_tokens + result.refused_tokens == simulator.demand.output_tokens
    if result.num_steps:
        assert result.step_p50_s >= least_step_s * 0.997  # a bin of the histogram is wider than nothing
        assert result.duration_s >= result.num_steps / max(1, result.output_tokens) * least_step_s


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(workload=workloads(), price=st.floats(0.01, 100))
def test_a_doubled_price_doubles_the_cost_and_changes_nothing_else(
    folder: Path, name: str, workload: Any, price: float
) -> None:
    sessions, coming, settings_ = workload
    one = fields_of(run(folder, name, sessions, coming, workload=settings_, price=price))
    two = fields_of(run(folder, name, sessions, coming, workload=settings_, price=2 * price))
    for cost in ("cost_usd", "usd_per_million_tokens"):
        assert two.pop(cost) == pytest.approx(2 * one.pop(cost))
    assert one == two


@pytest.mark.parametrize(
    ("name", "gpus", "price"),
    [
        ("under", 1, 2.0),
        ("over", 1, 2.0),
        ("current", 1, 2.0),
        ("watched", 2, 2.0),
        ("kernelflume", 2, 2.0),
        ("leaving", 1, 2.0),
        ("in-order", 1, 2.0),
        ("bound", 1, 2.0),
        ("longest", 1, 2.0),
        ("filled", 2, 2.0),
        ("moving", 1, 2.0),
        ("peak", 1, 2.0),
        ("mixed", 1, 3.0),
    ],
)
@SETTINGS
@given(seconds=st.floats(1, 1e4))
def test_without_load_the_minimum_is_paid(
    folder: Path, name: str, gpus: int, price: float, seconds: float
) -> None:
    result = run(folder, name, (), {"concurrency": 4}, workload={"least_duration_s": seconds})
    assert result.output_tokens == 0
    assert result.cost_usd == pytest.approx(gpus * price * seconds / 3600)


@SETTINGS
@given(data=st.data())
def test_the_order_of_events_is_not_that_of_their_coming(data: st.DataObject) -> None:
    events = data.draw(
        st.sets(
            st.builds(
                Event,
                st.sampled_from([0.0, 1.0, 2.0]),
                st.sampled_from(EventKind),
                st.integers(0, 3),
                st.integers(0, 3),
            ),
            min_size=1,
        ).map(list)
    )
    orders = []
    for coming in (events, data.draw(st.permutations(events))):
        queue = EventQueue()
        for event in coming:
            queue.add(event)
        orders.append([queue.pop() for _ in coming])
    assert orders[0] == orders[1] == sorted(events)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(workload=workloads(), data=st.data())
def test_sessions_that_arrive_together_may_be_asked_for_in_any_order(
    folder: Path, name: str, workload: Any, data: st.DataObject
) -> None:
    sessions, _, settings_ = workload
    order = data.draw(st.permutations(sessions))

    def results(coming: Any) -> Any:
        def begin(course: Any) -> None:
            for one in coming:
                course._ask(one, 0, 0.0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Course, "_begin", begin)
            return fields_of(run(folder, name, sessions, {"concurrency": None}, workload=settings_))

    assert results(sessions) == results(order)
