"""What the simulator can be told beyond the paper's setting, each on a few sessions whose course is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.simulated import STRATEGY, session, simulator_of, write_profiles

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.attention_pool import AttentionPoolCluster
from kernelflume.scaler.sim.instances import InstanceCluster
from kernelflume.scaler.sim.prefix_cache import PrefixCache
from kernelflume.scaler.sim.report import fields_of
from kernelflume.scaler.sim.runs import run_many, run_one
from kernelflume.scaler.sim.sessions import Session, Turn
from kernelflume.scaler.sim.strategy_settings import KernelFlume
from kernelflume.scaler.sim.sweep import combinations, spread
from kernelflume.scaler.sim.workload import build_demand
from kernelflume.scaler.sim.workload_settings import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.scaler.sim.result import Result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_profiles(tmp_path)
    return tmp_path


def run(simulator: Any, name: str, **changes: Any) -> Result:
    [strategy] = [one for one in simulator.config.strategies if one.name == name]
    result: Result = simulator.run(strategy.model_copy(update=changes))
    return result


def reasons(result: Result) -> list[str]:
    return [change.reason for change in result.timeline.changes]


# --- spot nodes, replicas, several weight nodes -------------------------------------------------------


def test_sessions_of_a_lost_node_are_computed_again_and_all_is_decoded(folder: Path) -> None:
    sessions = [session(number, (300, 900)) for number in range(6)]
    result = run(simulator_of(folder, sessions, concurrency=6), "spot")
    assert result.num_preempted > 0
    assert result.recomputed_tokens > 0
    assert result.output_tokens == 6 * 900
    assert "notice" in reasons(result)


def test_with_copies_a_lost_node_costs_no_computation_but_twice_the_memory(folder: Path) -> None:
    sessions = [session(number, (300, 900)) for number in range(6)]
    simulator = simulator_of(folder, sessions, concurrency=6)
    strategy = simulator.config.strategies[-1]
    assert isinstance(strategy, KernelFlume)
    assert strategy.spot is not None
    # Six nodes where two would hold it all: there is always room for what one of them held.
    roomy = strategy.policy.model_copy(update={"minimum_nodes": 6})
    seldom = strategy.spot.model_copy(update={"preemptions_per_node_hour": 150})
    copies = run(simulator, "copies", weight_nodes=1, placement="level", policy=roomy, spot=seldom)
    assert copies.num_preempted > 0
    assert copies.recomputed_tokens == 0
    alone = simulator.pool_kind(strategy.model_copy(update={"replicas": 1}))
    assert simulator.pool_kind(strategy).node_capacity_tokens == alone.node_capacity_tokens // 2


def test_more_replicas_than_nodes_may_be_is_told(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="replicas"):
        run(simulator_of(folder, [session(0, (10, 10))]), "copies", replicas=40)


def test_weight_nodes_share_the_batch_and_are_all_paid(folder: Path) -> None:
    sessions = [session(number, (50, 300)) for number in range(8)]
    simulator = simulator_of(folder, sessions, concurrency=8)
    one, two = (run(simulator, "kernelflume", weight_nodes=count) for count in (1, 2))
    assert two.most_gpus == one.most_gpus + 1
    assert two.output_tokens == one.output_tokens
    # Attention nodes serve the parts of both one after another: not twice as fast, and not slower.
    assert 0.5 < two.step_p50_s / one.step_p50_s <= 1.0 + 1e-9


def test_packed_prompts_leave_the_newest_node_empty(folder: Path) -> None:
    policy = STRATEGY["kernelflume"]["policy"] | {"minimum_nodes": 3}
    strategies = [
        {"kind": "kernelflume", "name": name, "placement": name, "spread_tokens": 1, "policy": policy}
        for name in ("level", "pack")
    ]
    sessions = [session(number, (500, 5)) for number in range(4)]
    simulator = simulator_of(folder, sessions, strategies=strategies)
    used: dict[str, int] = {}
    place = AttentionPoolCluster.place
    for name in ("level", "pack"):
        seen: set[int] = set()

        def noting(cluster: Any, residence: Any, seen: set[int] = seen) -> Any:
            placed = place(cluster, residence)
            if placed is not None:
                seen.update(shard.number for shard, tokens in placed[1].items() if tokens)
            return placed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AttentionPoolCluster, "place", noting)
            run(simulator, name)
        used[name] = len(seen)
    assert used == {"level": 3, "pack": 1}


# --- instances ----------------------------------------------------------------------------------------


def test_an_instance_leaves_where_the_others_would_do(folder: Path) -> None:
    # The third one makes a second instance start; once it and the second are over, one instance would do.
    first = [session(0, (1000, 1500)), session(1, (1000, 400)), session(2, (1100, 100))]
    later = session(3, (50, 2000), start_s=2.0)
    simulator = simulator_of(folder, [*first, later], concurrency=None)
    result = run(simulator, "leaving", trigger_step_s=None)
    assert {"leaving", "left"} <= set(reasons(result))


def test_moving_takes_the_time_that_the_bytes_take(folder: Path) -> None:
    # The third one makes a second instance start and is soon over; then the first two outgrow theirs.
    sessions = [session(0, (1000, 1200)), session(1, (900, 1200)), session(2, (1200, 100))]
    simulator = simulator_of(folder, sessions)
    at_once = run(simulator, "moving")
    slow = run(simulator, "moving", migration_gb_per_s=1e-4)
    assert slow.num_moved > 0
    assert slow.turn_p99_s > at_once.turn_p99_s
    assert slow.output_tokens == at_once.output_tokens


def test_weights_are_loaded_on_top_of_a_start(folder: Path) -> None:
    sessions = [session(number, (1800, 900)) for number in range(2)]
    simulator = simulator_of(folder, sessions, concurrency=None)
    quick, slow = (run(simulator, "current", load_gb_per_s=rate) for rate in (None, 0.001))
    loading_s = simulator.weight_bytes / 1e6
    waited_s = (slow.turn_p99_s - quick.turn_p99_s) * 900
    assert waited_s == pytest.approx(loading_s, rel=0.05)


# --- prefix cache -------------------------------------------------------------------------------------


def test_a_cache_gives_back_what_was_held_and_forgets_the_longest_unused(folder: Path) -> None:
    cache = PrefixCache(1000)
    one, two = session(1, (400, 100), (10, 10)), session(2, (600, 100), (10, 10))
    cache.store(one, one.turns[0])
    assert cache.hit_tokens(one, one.turns[1]) == 500
    assert cache.hit_tokens(two, two.turns[0]) == 0
    cache.store(two, two.turns[0])
    # 1200 tokens are 200 too many: the first session loses its end, and keeps a prefix.
    assert cache.held_tokens == 1000
    assert cache.hit_tokens(one, one.turns[1]) == 300
    assert cache.hit_tokens(two, two.turns[1]) == 700
    del folder


def test_sessions_share_blocks_that_they_begin_with() -> None:
    cache = PrefixCache(10_000)
    first = Session(0, (Turn(1200, 5, blocks=(7, 8, 9)),))
    other = Session(1, (Turn(1500, 5, blocks=(7, 8, 4)),))
    cache.store(first, first.turns[0])
    assert cache.hit_tokens(other, other.turns[0]) == 1024
    assert cache.hit_tokens(first, first.turns[0]) == 1200


def test_what_a_cache_has_is_not_prefilled_and_its_memory_is_paid(folder: Path) -> None:
    sessions = [session(0, (500, 100), (20, 100), (20, 100))]
    dropped = {"keep_between_turns": False, "prefill_tokens_per_s": 1000.0}
    without = run(simulator_of(folder, sessions, workload=dropped), "kernelflume")
    cache = {"capacity_gb": 1.0, "usd_per_gb_hour": 3.0, "source": "a test"}
    with_it = run(simulator_of(folder, sessions, workload={**dropped, "prefix_cache": cache}), "kernelflume")
    assert (without.prefilled_tokens, without.fetched_tokens) == (500 + 620 + 740, 0)
    assert (with_it.prefilled_tokens, with_it.fetched_tokens) == (540, 600 + 720)
    assert with_it.duration_s < without.duration_s
    nodes_usd = sum(with_it.gpu_hours.values()) * 2.0
    assert with_it.cost_usd == pytest.approx(nodes_usd + 3.0 * with_it.duration_s / 3600)


# --- arrivals and sweeps ------------------------------------------------------------------------------


def test_bursts_have_their_mean_rate_and_their_peak(folder: Path) -> None:
    workload = Workload.model_validate({
        "source": {"kind": "generator", "num_sessions": 4000},
        "arrivals": {"kind": "bursts", "sessions_per_s": 2.0, "peak": 9, "burst_s": 10, "period_s": 100},
    })  # fmt: skip
    times = np.array([one.start_s for one in build_demand(workload, folder=folder, seed=1).sessions])
    assert len(times) / times[-1] == pytest.approx(2.0, rel=0.06)
    # 9 times the rate for a tenth of the time: as many as in the rest of it.
    assert np.mean(times % 100 < 10) == pytest.approx(0.5, abs=0.04)


def test_counted_turns_keep_the_batch_full_while_clients_think(folder: Path) -> None:
    sessions = [session(number, (50, 100), (10, 100), think_s=5.0) for number in range(8)]

    def outcome(admits: Any) -> Result:
        simulator = simulator_of(folder, sessions, concurrency=2, admits=admits, workload={"think": True})
        result = run(simulator, "over")
        assert result.output_tokens == 8 * 200
        assert max(sample.num_running for sample in result.timeline.samples) == 2
        return result

    # Four sessions one after another think for 5 seconds each; or others are decoded meanwhile.
    assert outcome("sessions").duration_s > 20
    assert outcome("turns").duration_s < 15


def test_a_batch_begins_when_the_last_one_is_over(folder: Path) -> None:
    sessions = [session(number, (50, 100 + 50 * number)) for number in range(4)]
    result = run(simulator_of(folder, sessions, concurrency=2, admits="batches"), "over")
    running = [sample.num_running for sample in result.timeline.samples]
    assert 0 in running[1:-1]
    assert result.output_tokens == sum(one.output_tokens for one in sessions)


def test_no_step_is_shorter_than_the_pace(folder: Path) -> None:
    sessions = [session(number, (50, 200)) for number in range(4)]

    def step_s(name: str, least_step_s: float) -> float:
        result = run(simulator_of(folder, sessions, workload={"least_step_s": least_step_s}), name)
        assert result.output_tokens == 800
        return result.duration_s / 200

    for name in ("over", "current", "kernelflume"):
        free_s = step_s(name, 0.0)
        assert step_s(name, 3 * free_s) == pytest.approx(3 * free_s, rel=0.05)


def test_ranks_that_are_filled_in_order_take_what_a_full_one_does(folder: Path) -> None:
    simulator = simulator_of(folder)
    capacity = simulator.rank_capacity_tokens
    even, in_order = (simulator.instance_kind(4, 0.0, fill).steps for fill in ("even", "in_order"))
    one = simulator.instance_kind(1).steps
    # Of the tokens of an instance each rank is said to read a fourth.
    for held in (0, capacity // 2, capacity, 3 * capacity, 4 * capacity):
        scanned = one.step_s(2, min(held, capacity), 1) - one.step_s(2, 0, 1)
        assert in_order.step_s(2, held / 4, 1) - in_order.step_s(2, 0, 1) == pytest.approx(scanned)
    assert in_order.step_s(2, capacity, 1) == even.step_s(2, capacity, 1)


def test_admission_by_the_longest_context_keeps_it_free_for_each_session(folder: Path) -> None:
    # 3055 tokens an instance: two of the longest, although five of these would fit.
    sessions = [session(number, (300, 200)) for number in range(4)] + [session(4, (1000, 200))]
    simulator = simulator_of(folder, sessions, concurrency=4)
    assert simulator.demand.longest_tokens == 1200
    assert run(simulator, "current").most_gpus == 1
    result = run(simulator, "longest")
    assert result.most_gpus == 2
    assert result.output_tokens == 1000
    assert max(sample.num_running for sample in result.timeline.samples) <= 4


def without_more(name: str) -> dict[str, Any]:
    return {"maximum_instances": 1} if STRATEGY[name]["kind"] == "instances" else {}


@pytest.mark.parametrize("name", ["bound", "in-order", "peak", "longest"])
def test_clients_that_think_do_not_hold_up_the_turns_of_others_for_ever(folder: Path, name: str) -> None:
    # Of 3055 tokens 2000 are kept for a session. While its client thinks, the other's turn waits for that
    # room, and is the one turn that there may be: the first client could not come back before it is over.
    sessions = [session(number, (1000, 100), (800, 100), think_s=1.0) for number in range(2)]
    simulator = simulator_of(folder, sessions, concurrency=1, admits="turns", workload={"think": True})
    result = run(simulator, name, **without_more(name))
    assert (result.output_tokens, result.refused_tokens) == (400, 0)
    assert max(sample.num_running for sample in result.timeline.samples) == 1


@pytest.mark.parametrize("name", ["bound", "peak", "longest"])
def test_next_turns_do_not_wait_for_those_that_wait_for_their_room(folder: Path, name: str) -> None:
    # Three sessions of 2000 tokens, two instances of 3055: the third waits, and next turns wait behind it.
    sessions = [session(number, (1000, 100), (800, 100)) for number in range(3)]
    simulator = simulator_of(folder, sessions, concurrency=3)
    more = {"minimum_instances": 2, "maximum_instances": 2} if without_more(name) else {}
    result = run(simulator, name, **more)
    assert (result.output_tokens, result.refused_tokens) == (600, 0)


def test_a_session_between_turns_keeps_its_room_where_an_instance_can_be_added(folder: Path) -> None:
    sessions = [session(number, (1000, 100), (800, 100), think_s=9.0) for number in range(2)]
    simulator = simulator_of(folder, sessions, concurrency=1, admits="turns", workload={"think": True})
    results = {most: run(simulator, "peak", maximum_instances=most) for most in (1, 2)}
    assert [results[most].most_gpus for most in (1, 2)] == [1, 2]
    # The other's turn runs at once in the room of who is away, or waits for an instance of its own.
    assert [results[most].num_waits for most in (1, 2)] == [0, 1]


def test_a_pool_for_the_longest_that_may_come_need_not_have_seen_it(folder: Path) -> None:
    source = {
        "kind": "generator",
        "num_sessions": 3,
        "maximum_context_tokens": 200_000,
        "context_scale": 0.01,
    }
    simulator = simulator_of(
        folder, workload={"source": source, "arrivals": {"kind": "closed", "concurrency": 2}}
    )
    assert simulator.demand.longest_tokens == 2000
    assert max(one.peak_tokens for one in simulator.demand.sessions) < 2000
    assert simulator.fixed_pools.pool_tokens("bound") == 2 * 2000
    assert run(simulator, "bound").most_gpus == 2


def test_settings_change_together_or_one_at_a_time(folder: Path) -> None:
    fields = simulator_of(folder).config.model_dump(mode="json", exclude_unset=True)
    fields["sweep"] = {"seed, tpot_slo_s": [[1, 0.1], [2, 0.2]]}
    fields["vary"] = {"reserve_gb": [0.001], "strategies.current.startup_s": [3]}
    runs = [spread(chosen) for chosen, _ in combinations(fields)]
    assert runs[:3] == [
        {"seed": 1, "tpot_slo_s": 0.1},
        {"seed": 1, "tpot_slo_s": 0.1, "reserve_gb": 0.001},
        {"seed": 1, "tpot_slo_s": 0.1, "strategies.current.startup_s": 3},
    ]
    assert len(runs) == 6
    fields["sweep"] = {"seed, tpot_slo_s": [[1]]}
    with pytest.raises(ConfigurationError, match="lists of 2 values"):
        list(combinations(fields))


def test_looks_that_find_nothing_new_need_not_be_simulated(folder: Path, monkeypatch: Any) -> None:
    sessions = [session(number, (200, 700), (50, 300), start_s=number / 2) for number in range(10)]
    simulator = simulator_of(folder, sessions, concurrency=None)
    num_looks = 0
    look = AttentionPoolCluster.on_look

    def counted(cluster: AttentionPoolCluster) -> float:
        nonlocal num_looks
        num_looks += 1
        return look(cluster)

    monkeypatch.setattr(AttentionPoolCluster, "on_look", counted)
    skipping = run(simulator, "kernelflume")
    few, num_looks = num_looks, 0
    monkeypatch.setattr(AttentionPoolCluster, "on_look", lambda cluster: (counted(cluster), cluster.now_s)[1])
    every = run(simulator, "kernelflume")
    assert few < num_looks
    assert reasons(skipping) == reasons(every)
    assert skipping.cost_usd == pytest.approx(every.cost_usd, rel=2e-3)


def test_nothing_is_looked_at_while_no_instance_runs(folder: Path, monkeypatch: Any) -> None:
    # Three instances run for long sessions; then clients of short ones think, whose KV one would hold.
    long = [session(number, (2000, 400)) for number in range(3)]
    short = [session(number, (100, 100), (50, 10), start_s=9.0, think_s=90.0) for number in range(3, 9)]
    simulator = simulator_of(
        folder, [*long, *short], concurrency=None, workload={"think": True, "least_duration_s": 400}
    )
    look, looks = InstanceCluster.on_look, {True: 0, False: 0}

    def result(*, skips: bool) -> Result:
        def counted(cluster: InstanceCluster) -> float:
            looks[skips] += 1
            until_s = look(cluster)
            return until_s if skips else cluster.now_s

        monkeypatch.setattr(InstanceCluster, "on_look", counted)
        return run(simulator, "leaving", trigger_step_s=None)

    skipping, every = result(skips=True), result(skips=False)
    assert looks[True] < looks[False] / 4
    assert reasons(every).count("leaving") > 1
    assert skipping.timeline.changes == every.timeline.changes
    assert fields_of(skipping) == fields_of(every)


def test_configurations_run_in_processes_as_in_one(folder: Path) -> None:
    source = {"kind": "generator", "num_sessions": 3, "context_scale": 0.005}
    configs = [
        simulator_of(folder, workload={"source": source}, seed=seed, strategies=[STRATEGY["current"]]).config
        for seed in (1, 2, 3)
    ]
    costs = [
        [
            [one.cost_usd for one in results]
            for _, results in run_many(configs, folder, num_processes=count, task=run_one)
        ]
        for count in (1, 2)
    ]
    assert costs[0] == costs[1]
    assert len({cost for [cost] in costs[0]}) == 3
