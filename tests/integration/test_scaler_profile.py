"""The profile that the policy reads follows what nodes tell in their leases, over a real store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from tests.scaler_rig import eventually, scaler_rig

from kernelflume.core.profile import Curve, PerformanceProfile
from kernelflume.core.routing import NodeState
from kernelflume.scaler.refinement import BOUND
from kernelflume.scaler.scaling_policy import ScalingPolicy

pytestmark = pytest.mark.redis

PROFILE = PerformanceProfile(
    model_id="m",
    hardware="test",
    num_layers=10,
    projection_s=Curve(((1, 1e-3),)),
    post_attention_s=Curve(((1, 2e-3),)),
    step_overhead_s=Curve(((1, 5e-3),)),
    exchange_s=Curve(((1, 1e-3),)),
    attention_bytes_per_s=4e9,
    prewarm_s=2.0,
)


async def test_a_node_s_bandwidth_refines_the_profile_of_the_next_decisions(valkey_url: str) -> None:
    scaling = ScalingPolicy(maximum_nodes=1)
    async with scaler_rig(valkey_url, initial_target=1, scaling=scaling, profile=PROFILE) as rig:
        await rig.settles_at(a_1=NodeState.ACTIVE)

        async def bandwidth_is(expected: float) -> bool:
            found = rig.metrics.registry.get_sample_value("kernelflume_attention_bytes_per_second")
            return found == pytest.approx(expected)

        await eventually(partial(bandwidth_is, 4e9))
        node = rig.provider.nodes["a-1"]
        expected = 4e9
        for told in (1e9, 1.1e9, 1e12):  # each counts once, and moves it by no more than the bound
            expected *= (1 + BOUND) if told > expected else 1 / (1 + BOUND)
            node.load = replace(node.load, scan_bytes_per_s=told)
            await eventually(partial(bandwidth_is, expected))
        assert rig.controller.sizing is not None
