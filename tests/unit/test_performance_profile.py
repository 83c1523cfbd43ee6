"""A profile file is one, or is refused with what is wrong with it: the policy plans with its figures."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.profile import Curve, PerformanceProfile

PROFILE = PerformanceProfile(
    model_id="m",
    hardware="h",
    num_layers=30,
    projection_s=Curve(((1.0, 1e-3), (8.0, 2e-3))),
    post_attention_s=Curve(((1.0, 1e-3),)),
    step_overhead_s=Curve(((1.0, 1e-2),)),
    exchange_s=Curve(((1.0, 1e-3),)),
    attention_bytes_per_s=1e9,
    prewarm_s=3.0,
)
LEFT_OUT = object()


def changed(name: str, value: Any) -> Any:
    fields = {**PROFILE.to_dict(), name: value}
    return {key: kept for key, kept in fields.items() if kept is not LEFT_OUT}


NO_LAYERS: list[Any] = [0, -3, 2.5, True, "30", None, 10**400]
NO_SECONDS: list[Any] = [-1, True, "3", None, float("nan"), float("inf"), 1e300, 10**400]
NO_POINTS: list[Any] = [5, [], [[1]], [[9, 1], [9, 1]], [[1, -1], [9, 1]], [[float("nan"), 1], [9, 1]]]
LIES: list[tuple[str, Any]] = [
    *(("num_layers", value) for value in NO_LAYERS),
    *(("prewarm_s", value) for value in NO_SECONDS),
    *(("further_node_share", value) for value in NO_SECONDS if value is not None),
    *(("projection_s", {"points": points}) for points in NO_POINTS),
    *(("projection_s", 3), ("projection_s", None), ("prefill_s", 3)),
    *(("prefill_s", {"points": points}) for points in NO_POINTS),
    *(("schema", 0), ("schema", None), ("model_id", 3), ("hardware", None), ("attention_bytes_per_s", 0)),
    *(("mood", "fine"), ("prewarm_s", LEFT_OUT), ("projection_s", LEFT_OUT)),
]


def test_a_profile_is_read_back() -> None:
    assert PerformanceProfile.from_dict(json.loads(json.dumps(PROFILE.to_dict()))) == PROFILE


def test_what_only_the_simulator_reads_is_read_back_and_unknown_in_earlier_files() -> None:
    prompts = Curve(((16.0, 0.1), (64.0, 0.2)))
    measured = dataclasses.replace(PROFILE, prefill_s=prompts, further_node_share=0.2)
    fields = json.loads(json.dumps(measured.to_dict()))
    assert PerformanceProfile.from_dict(fields) == measured
    del fields["further_node_share"]
    assert PerformanceProfile.from_dict(fields | {"schema": 3}).further_node_share is None
    del fields["prefill_s"]
    assert PerformanceProfile.from_dict(fields | {"schema": 2}).prefill_s is None


@pytest.mark.parametrize("fields", [[], 5, None, "text", [[1, 2]], {}])
def test_what_is_no_profile_is_refused(fields: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^profile: "):
        PerformanceProfile.from_dict(fields)


@pytest.mark.parametrize(("name", "value"), LIES)
def test_a_figure_that_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^profile: "):
        PerformanceProfile.from_dict(changed(name, value))
