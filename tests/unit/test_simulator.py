"""The simulator's parts, each against a plain calculation, and its strategies at work on a few sessions."""

from __future__ import annotations

import json
import math
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulated import STRATEGY, session, simulator_of, write_profiles

from kernelflume.core.errors import ConfigurationError, ConflictError
from kernelflume.scaler.sim.config import parse_config
from kernelflume.scaler.sim.engine import Engine
from kernelflume.scaler.sim.events import Event, EventKind, EventQueue
from kernelflume.scaler.sim.generator import generate
from kernelflume.scaler.sim.measures import Histogram, Sample, StepMeter, Timeline
from kernelflume.scaler.sim.profiles import known, load_hardware, load_model
from kernelflume.scaler.sim.shards import Residence, Shard
from kernelflume.scaler.sim.spread import level_out
from kernelflume.scaler.sim.sweep import combinations
from kernelflume.scaler.sim.workload import build_demand
from kernelflume.scaler.sim.workload_settings import GeneratorSource, Workload
from kernelflume.scaler.sizing import SizingReason

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.scaler.sim.result import Result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profiles(tmp_path)
    return tmp_path


def run(simulator: Any, name: str) -> Result:
    [strategy] = [one for one in simulator.config.strategies if one.name == name]
    result: Result = simulator.run(strategy)
    return result


class Kinked:
    """Steps that are as long as the longer of two stages, as in a pipeline."""

    def step_s(self, rows: int, most_read_tokens: float, num_shards: int) -> float:
        return max(1e-3 * rows, 1e-6 * most_read_tokens) + 1e-4 * num_shards


@given(
    tails=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    held=st.lists(st.integers(0, 5000), min_size=3, max_size=3),
    outputs=st.lists(st.integers(1, 3000), min_size=6, max_size=6),
)
def test_steps_in_closed_form_take_what_they_take_one_by_one(
    tails: list[int], held: list[int], outputs: list[int]
) -> None:
    engine = Engine(1, Kinked(), StepMeter(1.0))
    engine.shards = [Shard(number, 10**6, 10**6) for number in range(3)]
    lengths = []
    read = list(held)
    for number, place in enumerate(tails):
        shard = engine.shards[place - 1]
        one = session(number, (1, outputs[number]))
        added = {shard: held[place - 1]} if place not in tails[:number] else {}
        engine.join(Residence(one, 0, 0.0), added, shard)
        lengths.append((outputs[number], place - 1))
    read = [shard.read(0) for shard in engine.shards]
    num_steps = min(outputs[: len(tails)])
    at_s = engine.plan()
    num_read = sum(1 for shard in engine.shards if shard.tails or shard.base_read)
    seconds = 0.0
    for _ in range(num_steps):
        seconds += Kinked().step_s(len(tails), max(read), num_read)
        for _, place in lengths:
            read[place] += 1
    assert at_s == pytest.approx(seconds, rel=1e-3)
    engine.catch_up(seconds / 2)
    assert engine.clock_s >= seconds / 2 * (1 - 1e-3)
    engine.finish_plan()
    assert engine.step == num_steps
    assert engine.clock_s == pytest.approx(at_s)


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_a_full_rank_is_scanned_in_the_same_time_whatever_the_number_of_ranks(
    folder: Path, num_ranks: int
) -> None:
    simulator = simulator_of(folder)
    kind = simulator.instance_kind(num_ranks)
    engine = Engine(1, kind.steps, StepMeter(1.0))
    shard = Shard(1, kind.capacity_tokens, kind.capacity_tokens, ways=num_ranks)
    engine.shards.append(shard)
    one = session(0, (kind.capacity_tokens - 10, 10))
    engine.join(Residence(one, 0, 0.0), {shard: one.turns[0].context_tokens}, shard)
    empty_s = kind.steps.step_s(1, 0, 1)
    scan = simulator.kernels.scan(1, 4, 2, 64)
    rank_bytes = one.turns[0].context_tokens * simulator.model.token_bytes / num_ranks
    assert engine.step_s() - empty_s == pytest.approx(rank_bytes / scan.bytes_per_s)


def test_an_event_that_is_due_already_is_refused() -> None:
    queue = EventQueue()
    queue.add(Event(1.0, EventKind.LOOK, 0))
    with pytest.raises(ConflictError):
        queue.add(Event(1.0, EventKind.LOOK, 0))


@given(
    lines=st.lists(
        st.tuples(st.integers(1, 500), st.floats(1e-3, 1.0), st.floats(0, 1e-3)), min_size=1, max_size=8
    )
)
def test_quantiles_of_a_histogram_are_those_of_its_values(lines: list[tuple[int, float, float]]) -> None:
    histogram = Histogram()
    values: list[float] = []
    for count, first_s, slope_s in lines:
        histogram.add_line(count, first_s, slope_s)
        values += [first_s + slope_s * index for index in range(count)]
    assert histogram.total == pytest.approx(len(values))
    assert histogram.mean_s == pytest.approx(sum(values) / len(values))
    assert histogram.quantile(1.0) == pytest.approx(max(values), rel=5e-3)


def test_the_timeline_is_bounded_and_keeps_the_peaks() -> None:
    timeline = Timeline(most=64)
    for index in range(10_000):
        held = 10**6 if index == 7_777 else index % 50
        timeline.add(Sample(
            time_s=index / 10, held_tokens=held, capacity_tokens=1, num_nodes=1, num_running=1, num_waiting=0,
            step_s=0.1,
        ))  # fmt: skip
    assert len(timeline.samples) <= 64
    assert max(sample.held_tokens for sample in timeline.samples) == 10**6
    assert timeline.mean_held_tokens == pytest.approx(24.5 + 100, rel=0.05)


@given(rooms=st.lists(st.integers(0, 1000), min_size=1, max_size=6), share=st.floats(0, 1))
def test_tokens_are_spread_so_that_nodes_are_left_equally_free(rooms: list[int], share: float) -> None:
    shards = {Shard(number, room, room): room for number, room in enumerate(rooms)}
    tokens = int(share * sum(rooms))
    added = level_out(shards, tokens)
    assert sum(added.values()) == tokens
    left = {shard: shards[shard] - added[shard] for shard in shards}
    assert min(left.values()) >= 0
    used = [left[shard] for shard in shards if added[shard]]
    if used:
        assert max(used) - min(used) <= 1
        assert max(left.values()) <= max(used) + 1


def test_generated_sessions_have_the_published_medians() -> None:
    sessions = generate(GeneratorSource(num_sessions=4000), np.random.default_rng(1))
    assert median(len(one.turns) for one in sessions) == pytest.approx(30, rel=0.05)
    assert median(one.peak_tokens for one in sessions) == pytest.approx(80_488, rel=0.05)
    assert median(one.output_tokens for one in sessions) == pytest.approx(15_666, rel=0.05)
    assert median(one.turns[0].context_tokens for one in sessions) == pytest.approx(12_278, rel=0.05)
    peaks = sorted(one.peak_tokens for one in sessions)
    assert peaks[3600] == pytest.approx(130_165, rel=0.05)
    for one in sessions:
        contexts = [turn.context_tokens for turn in one.turns]
        assert all(later >= turn.peak_tokens for turn, later in zip(one.turns, contexts[1:], strict=False))


def test_a_slice_of_low_dynamics_stays_near_the_median() -> None:
    def spread(dynamics: Any) -> float:
        source = GeneratorSource(num_sessions=500, dynamics=dynamics)
        peaks = [one.peak_tokens for one in generate(source, np.random.default_rng(1))]
        return float(np.std(peaks) / np.mean(peaks))

    assert spread("low") < 0.1 < spread("medium") < spread("high")


TRACES = {
    "sessions": (
        json.dumps({"requests": [
            {"t": 0, "in": 100, "out": 10, "think_time": 0.0},
            {"t": 9, "in": 130, "out": 5, "think_time": 2.0},
            {"t": 9, "type": "subagent", "requests": []},
        ]})
        + "\n" + json.dumps({"requests": [{"t": 0, "in": 7, "out": 0}]}) + "\n",
        [(0.0, [(100, 10, 0.0), (130, 5, 2.0)])],
    ),
    "mooncake": (
        """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0]}
{"timestamp": 1500, "input_length": 7322, "output_length": 490, "hash_ids": [0]}
""",
        [(0.0, [(6758, 500, 0.0)]), (1.5, [(7322, 490, 0.0)])],
    ),
    "azure": (
        """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
""",
        [(0.0, [(374, 44, 0.0)]), (4.314579, [(396, 109, 0.0)])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TRACES)
def test_traces_are_read(tmp_path: Path, kind: str) -> None:
    text, expected = TRACES[kind]
    (tmp_path / "trace").write_text(text)
    workload = Workload.model_validate({
        "source": {"kind": kind, "path": "trace"}, "arrivals": {"kind": "trace"},
    })  # fmt: skip
    demand = build_demand(workload, folder=tmp_path, seed=0)
    assert [
        (one.start_s, [(turn.context_tokens, turn.output_tokens, turn.think_s) for turn in one.turns])
        for one in demand.sessions
    ] == expected
    (tmp_path / "trace").write_text("nonsense\n1,2,3\n")
    with pytest.raises(ConfigurationError, match="trace"):
        build_demand(workload, folder=tmp_path, seed=0)


@pytest.mark.parametrize("kind", ["hardware", "models"])
def test_every_profile_of_the_package_is_good(tmp_path: Path, kind: str) -> None:
    load = load_hardware if kind == "hardware" else load_model
    assert known(kind)
    for name in known(kind):
        assert load(name, tmp_path).source
    with pytest.raises(ConfigurationError, match="no profile"):
        load("none", tmp_path)


def test_sizes_of_known_models(tmp_path: Path) -> None:
    for name, kib, parameters in (("llama-3.1-8b", 128, 8.03e9), ("llama-3.1-405b", 504, 405.8e9)):
        model = load_model(name, tmp_path)
        assert model.token_bytes == kib * 1024
        assert model.weight_bytes(2) / 2 == pytest.approx(parameters, rel=0.01)


def test_an_attention_node_is_added_before_the_pool_is_full(folder: Path) -> None:
    sessions = [session(number, (100, 900)) for number in range(8)]
    result = run(simulator_of(folder, sessions, concurrency=8), "kernelflume")
    assert result.num_put_aside == result.num_waits == result.refused_tokens == 0
    assert result.turn_attainment == 1.0
    reasons = [change.reason for change in result.timeline.changes]
    assert reasons[:2] == [SizingReason.HORIZON, SizingReason.WATERMARK]
    assert result.most_gpus == 3


def test_a_pool_is_drained_once_less_is_needed(folder: Path) -> None:
    first = [session(number, (1000, 200)) for number in range(6)]
    later = session(6, (100, 3000), start_s=1.0)
    result = run(simulator_of(folder, [*first, later], concurrency=None), "kernelflume")
    reasons = [change.reason for change in result.timeline.changes]
    assert SizingReason.LOW_USE in reasons
    assert "released" in reasons


def test_what_fits_no_instance_is_refused_there_and_served_by_several_attention_nodes(folder: Path) -> None:
    sessions = [session(0, (2000, 10), (2000, 10))]
    refused = run(simulator_of(folder, sessions), "current")
    assert refused.refused_tokens == 20
    assert refused.turn_attainment == 0.0
    assert run(simulator_of(folder, sessions), "kernelflume").refused_tokens == 0


def test_instances_start_for_what_waits_and_end_when_idle(folder: Path) -> None:
    sessions = [session(number, (1800, 100)) for number in range(3)] + [session(3, (10, 900), start_s=60.0)]
    simulator = simulator_of(folder, sessions, concurrency=None)
    result = run(simulator, "current")
    assert [change.reason for change in result.timeline.changes].count("started") == 2
    assert [change.reason for change in result.timeline.changes].count("idle") == 2
    assert result.num_waits == 2
    # Two of four waited for 1.1 seconds, which a turn of 100 tokens shares among them.
    assert 1.1 / 100 < result.turn_p99_s < 1.1 / 100 + result.step_p99_s


def test_sequences_that_outgrow_an_instance_give_way_or_move(folder: Path) -> None:
    sessions = [session(number, (300, 1000)) for number in range(3)]
    assert run(simulator_of(folder, sessions), "current").num_put_aside > 0
    moving = run(simulator_of(folder, sessions), "moving")
    assert moving.num_put_aside + moving.num_moved > 0
    assert run(simulator_of(folder, sessions), "peak").num_put_aside == 0


def test_fixed_pools_are_as_large_as_the_mean_or_the_most(folder: Path) -> None:
    sessions = [session(number, (600 if number < 4 else 50, 300), start_s=number / 10) for number in range(9)]
    simulator = simulator_of(folder, sessions, concurrency=None)
    mean, most = simulator.fixed_pools.kv_demand
    over = run(simulator, "over")
    assert 0 < mean < most <= sum(one.peak_tokens for one in sessions)
    assert over.most_gpus == math.ceil(most / simulator.rank_capacity_tokens)
    assert run(simulator, "under").most_gpus == math.ceil(mean / simulator.rank_capacity_tokens)


def test_the_same_seed_gives_the_same_figures(folder: Path) -> None:
    def results(seed: int) -> Any:
        workload = {
            "source": {"kind": "generator", "num_sessions": 5, "context_scale": 0.005},
            "arrivals": {"kind": "poisson", "sessions_per_s": 0.5},
        }
        result = run(simulator_of(folder, workload=workload, seed=seed), "kernelflume")
        return result.cost_usd, result.step_p99_s, result.timeline.samples

    assert results(3) == results(3)
    assert results(3) != results(4)


def test_bad_configurations_are_told(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"strategies: .*tpot_slo_s|tpot_slo_s"):
        parse_config("{name: a, model: m, hardware: h, prices: {}}")
    with pytest.raises(ConfigurationError, match=r"prices: none for gpu\.yaml"):
        simulator_of(folder, prices={})
    with pytest.raises(ConfigurationError, match="two strategies have one name"):
        simulator_of(folder, strategies=[STRATEGY["under"], STRATEGY["under"]])
    with pytest.raises(ConfigurationError, match="raise tensor_parallel"):
        simulator_of(folder, reserve_gb=0.011)


def test_a_sweep_runs_every_combination(folder: Path) -> None:
    fields = simulator_of(folder).config.model_dump(mode="json", exclude_unset=True)
    fields["sweep"] = {"seed": [1, 2], "strategies.current.startup_s": [1.1, 10.8]}
    runs = list(combinations(fields))
    assert [chosen for chosen, _ in runs] == [
        {"seed": seed, "strategies.current.startup_s": start_s} for seed in (1, 2) for start_s in (1.1, 10.8)
    ]
    assert [getattr(config.strategies[2], "startup_s", None) for _, config in runs] == [1.1, 10.8, 1.1, 10.8]
    fields["sweep"] = {"strategies.none.startup_s": [1]}
    with pytest.raises(ConfigurationError, match=r"there is no strategies\.none"):
        list(combinations(fields))
