"""A pool under any constant load settles, within its bounds, without going up and down in turn."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool_model import Load, PoolModel

from kernelflume.scaler.scaling_policy import ScalingPolicy

policies = st.builds(
    ScalingPolicy,
    minimum_nodes=st.integers(1, 3),
    maximum_nodes=st.integers(3, 9),
    maximum_nodes_at_once=st.integers(1, 4),
    beta_memory=st.floats(0.5, 1.0),
    gamma=st.floats(0.3, 1.0),
    prewarm_margin=st.floats(1.0, 3.0),
    scale_down_fraction=st.floats(0.3, 1.0),
    scale_down_cooldown_s=st.floats(0, 60),
    silence_s=st.floats(0, 60),
)
loads = st.builds(
    Load,
    held_tokens=st.integers(0, 40_000),
    num_tails=st.integers(0, 200),
    waiting_tokens=st.sampled_from([0, 0, 0, 5_000]),
)


@settings(max_examples=60)
@given(policies, loads, st.integers(1, 9), st.floats(0.2, 20))
def test_constant_load(policy: ScalingPolicy, load: Load, num_nodes: int, prewarm_s: float) -> None:
    pool = PoolModel(policy, num_nodes=num_nodes, prewarm_s=prewarm_s, capacity_tokens=5_000)
    pool.run(lambda _: load, 900)
    assert policy.minimum_nodes <= pool.num_nodes <= policy.most_nodes
    begun = [(target, reason) for _, target, reason in pool.changes if reason != "demand_gone"]
    sizes = [num_nodes, *(target for target, _ in begun)]
    ups = sum(later > earlier for earlier, later in itertools.pairwise(sizes))
    downs = sum(later < earlier for earlier, later in itertools.pairwise(sizes))
    # A node beyond the bounds goes first, whatever the load is; after that there is one direction.
    if num_nodes <= policy.most_nodes:
        assert not (ups and downs), pool.changes
    settled = [at for at, _, _ in pool.changes if at > 700]
    assert len(settled) <= 2, pool.changes
