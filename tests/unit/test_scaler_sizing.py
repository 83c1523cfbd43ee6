"""How many nodes: single decisions, and whole days of a pool under a virtual clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.pool_model import TOKEN_BYTES, Load, PoolModel

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.profile import Curve, PerformanceProfile
from kernelflume.scaler.pool_view import NodeUse, PendingKind, PoolView
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.sizing import (
    FOREVER_S,
    SizingAction,
    SizingReason,
    SizingState,
    after_change,
    measure,
    size,
)

POLICY = ScalingPolicy(beta_memory=0.9, gamma=0.85, scale_down_cooldown_s=30, silence_s=20, maximum_nodes=8)


def view(*held: int, num_tails: int = 4, waiting: int = 0, pending: PendingKind | None = None) -> PoolView:
    nodes = tuple(
        NodeUse(
            node_id=f"a-{number}",
            capacity_tokens=1000,
            held_tokens=tokens,
            num_tails=num_tails,
            growth_tokens_per_s=num_tails * 10.0,
        )
        for number, tokens in enumerate(held)
    )
    return PoolView(
        now_s=1000.0,
        nodes=nodes,
        num_requests=4,
        waiting_tokens=waiting,
        rows=4,
        pending=pending,
        is_pending_own=True,
    )


STATE = SizingState(prewarm_s=2.0)


def decide(
    pool: PoolView, policy: ScalingPolicy = POLICY, state: SizingState = STATE
) -> tuple[str, str, int]:
    sizing, _ = size(pool, state, policy, profile=None, token_bytes=TOKEN_BYTES)
    return str(sizing.action), str(sizing.reason), sizing.target


def test_horizon_shorter_than_a_prewarm_grows_the_pool() -> None:
    # Threshold 900, growth 40 tokens/s, ahead 1.5 x 2 s: 120 tokens of room are the limit.
    assert decide(view(779)) == ("none", "steady", 1)
    assert decide(view(781)) == ("scale", "horizon", 2)


def test_the_pool_s_room_counts_and_each_node_s_horizon_is_shown() -> None:
    pool = view(900, 100)
    assert decide(pool) == ("none", "steady", 2)
    figures = measure(pool, STATE, POLICY, profile=None, token_bytes=TOKEN_BYTES)
    assert [node.fill_s for node in figures.nodes] == [0.0, 20.0]
    assert figures.horizon_s == 800 / 80
    idle = measure(view(0, num_tails=0), STATE, POLICY, profile=None, token_bytes=TOKEN_BYTES)
    assert idle.horizon_s == idle.nodes[0].fill_s == FOREVER_S


def test_growth_too_fast_for_one_node_asks_for_several() -> None:
    assert decide(view(800, num_tails=200)) == ("scale", "horizon", 5)  # bounded by maximum_nodes_at_once
    assert decide(view(0, num_tails=80))[2] == 3  # 2,400 tokens in 3 s, 900 a node


def test_prompts_that_wait_scale_by_footprint_at_once() -> None:
    sizing, _ = size(view(500, waiting=2000), STATE, POLICY, profile=None, token_bytes=TOKEN_BYTES)
    assert (sizing.reason, sizing.target, sizing.at_once) == (SizingReason.FOOTPRINT, 3, True)
    assert decide(view(100, waiting=300)) == ("none", "steady", 1)


def test_bounds_and_budget_are_kept_and_said() -> None:
    assert decide(view(900), POLICY.model_copy(update={"maximum_nodes": 1})) == ("none", "maximum", 1)
    costly = ScalingPolicy(node_cost_per_hour=2.0, maximum_cost_per_hour=5.0)
    assert costly.most_nodes == 2
    assert decide(view(900, 900), costly) == ("none", "maximum", 2)
    assert decide(view(1, 1, 1), costly) == ("scale", "maximum", 2)
    assert decide(view(1), ScalingPolicy(minimum_nodes=3)) == ("scale", "minimum", 3)


def test_while_an_operation_runs_nothing_else_is_begun() -> None:
    assert decide(view(900, pending=PendingKind.GROWING)) == ("none", "pending", 1)
    assert decide(view(900, pending=PendingKind.SHRINKING)) == ("none", "pending", 1)


def test_prewarmed_nodes_are_published_at_the_watermark() -> None:
    assert decide(view(760, pending=PendingKind.READY)) == ("none", "pending", 1)
    assert decide(view(766, pending=PendingKind.READY)) == ("publish", "watermark", 1)
    assert decide(view(10, waiting=2000, pending=PendingKind.READY))[0] == "publish"


def test_prewarmed_nodes_that_nobody_needs_are_given_up_after_the_cooldown() -> None:
    pool = view(10, pending=PendingKind.READY)
    assert decide(pool, state=SizingState(prewarm_s=2.0, calm_since_s=971.0)) == ("none", "pending", 1)
    assert decide(pool, state=SizingState(prewarm_s=2.0, calm_since_s=970.0)) == ("cancel", "demand_gone", 1)


def test_a_drain_that_growth_overtakes_is_cancelled() -> None:
    assert decide(view(890, pending=PendingKind.DRAINING)) == ("cancel", "overtaken", 1)
    assert decide(view(100, pending=PendingKind.DRAINING)) == ("none", "pending", 1)


def test_another_s_operation_is_left_alone() -> None:
    pool = view(890, pending=PendingKind.DRAINING)
    foreign = PoolView(
        now_s=pool.now_s, nodes=pool.nodes, num_requests=4, waiting_tokens=0, rows=4, pending=pool.pending
    )
    assert decide(foreign) == ("none", "pending", 1)


def test_longest_prewarm_counts_at_once_and_a_shorter_one_by_and_by() -> None:
    state = after_change(SizingState(prewarm_s=2.0), now_s=0.0, prewarm_s=6.0)
    assert state.prewarm_s == 6.0
    assert after_change(state, now_s=0.0, prewarm_s=2.0).prewarm_s == 4.0
    assert after_change(state, now_s=5.0).prewarm_s == 6.0


def test_a_slo_tightens_the_threshold() -> None:
    profile = PerformanceProfile(
        model_id="m",
        hardware="made up",
        num_layers=10,
        projection_s=Curve(((1, 1e-3),)),
        post_attention_s=Curve(((1, 1e-3),)),
        step_overhead_s=Curve(((1, 0.0),)),
        exchange_s=Curve(((1, 0.0),)),
        attention_bytes_per_s=1e6,
        prewarm_s=2.0,
    )
    policy = ScalingPolicy(tpot_slo_s=25e-3, beta_slo=0.8)
    pool = view(100)
    figures = measure(pool, SizingState(), policy, profile=profile, token_bytes=TOKEN_BYTES)
    # 2.5 ms a layer less 2 ms: 0.5 ms x 1 MB/s x 10 layers x 0.8 = 4,000 bytes = 40 tokens.
    assert figures.threshold_tokens == 40
    assert figures.prewarm_s == 2.0
    unreachable = policy.model_copy(update={"tpot_slo_s": 10e-3})
    figures = measure(pool, SizingState(), unreachable, profile=profile, token_bytes=TOKEN_BYTES)
    assert figures.slo_unreachable
    assert figures.threshold_tokens == 900


def test_growth_is_met_ahead_of_need() -> None:
    pool = PoolModel(POLICY)
    pool.run(lambda now: Load(held_tokens=int(16 / 0.05 * now), num_tails=16), 150)  # 48,000 tokens
    assert pool.num_nodes >= 5
    assert pool.overfull_s == 0
    assert all(reason == "horizon" for _, _, reason in pool.changes)


@pytest.mark.parametrize("capacity", [2_000, 10_000, 100_000])
def test_constant_load_at_seventy_percent_changes_the_pool_once_at_most(capacity: int) -> None:
    pool = PoolModel(POLICY, capacity_tokens=capacity)
    pool.run(lambda _: Load(held_tokens=int(0.7 * capacity), num_tails=8), 600)
    assert len(pool.changes) <= 1


def test_load_then_silence_returns_to_the_minimum() -> None:
    pool = PoolModel(POLICY)
    pool.run(lambda now: Load(held_tokens=int(300 * now), num_tails=15), 100)
    assert pool.num_nodes > 2
    ended = pool.now_s
    pool.run(lambda _: Load(0, 0), POLICY.silence_s + pool.drain_s + 5)
    assert pool.num_nodes == 1
    assert pool.changes[-1][2] == "silence"
    assert pool.changes[-1][0] - ended <= POLICY.silence_s + 1


def test_less_load_goes_down_one_node_a_cooldown() -> None:
    pool = PoolModel(POLICY, num_nodes=5)
    pool.run(lambda _: Load(held_tokens=5_000, num_tails=1), 300)
    assert pool.num_nodes == 1
    downs = [at for at, _, reason in pool.changes if reason == "low_use"]
    assert len(downs) == 4
    assert min(later - earlier for earlier, later in pairwise(downs)) >= 30


def test_a_prewarm_that_fails_twice_is_tried_again() -> None:
    pool = PoolModel(POLICY, fails=lambda attempt: attempt <= 2)
    pool.run(lambda now: Load(held_tokens=min(8_600, int(100 * now)), num_tails=16), 120)
    assert pool.num_nodes == 2
    assert len(pool.changes) == 3


def test_policy_text_is_read_back_and_each_bad_setting_is_named() -> None:
    assert ScalingPolicy.parse(POLICY.to_yaml()) == POLICY
    assert ScalingPolicy.parse("") == ScalingPolicy()
    for text, names in {
        "gamma: 1.5": "gamma",
        "gama: 0.5": "gama",
        "minimum_nodes: 9\nmaximum_nodes: 3": "minimum_nodes",
        "maximum_cost_per_hour: 1": "node_cost_per_hour",
        "node_cost_per_hour: 2\nmaximum_cost_per_hour: 1": "does not pay",
        "- 1": "mapping",
        "{": "YAML",
        "tpot_slo_s: .inf": "tpot_slo_s",
    }.items():
        with pytest.raises(InvalidRequestError, match=names):
            ScalingPolicy.parse(text)


def test_actions_have_names_that_a_log_can_keep() -> None:
    assert {str(action) for action in SizingAction} == {"none", "scale", "publish", "cancel"}
