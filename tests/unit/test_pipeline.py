from __future__ import annotations

import pytest

from kernelflume.core.pipeline import StageTimes, choose, predict

US = 1e-6


def test_one_microbatch_goes_there_and_back() -> None:
    choice = predict(StageTimes(150 * US, 490 * US, 5 * US), 1)
    assert choice.layer_s == pytest.approx(645 * US)
    assert choice.bound == "round_trip"


@pytest.mark.parametrize(
    ("weight", "attention", "layer", "bound"),
    [(150, 250, 500, "attention"), (150, 40, 300, "weight"), (100, 100, 207, "round_trip")],
)
def test_of_two_the_slowest_stage_sets_the_pace(
    weight: float, attention: float, layer: float, bound: str
) -> None:
    choice = predict(StageTimes(weight * US, attention * US, 7 * US), 2)
    assert choice.layer_s == pytest.approx(layer * US)
    assert choice.bound == bound


def test_a_weight_node_bound_by_its_weights_stays_at_one_microbatch_over_short_contexts() -> None:
    # Half of the rows take as long: the weights are read twice.
    times = {1: StageTimes(155 * US, 78 * US, 7 * US), 2: StageTimes(152 * US, 42 * US, 7 * US)}
    assert choose(times).num_microbatches == 1


def test_long_contexts_hide_the_weight_node_behind_attention() -> None:
    times = {1: StageTimes(155 * US, 490 * US, 7 * US), 2: StageTimes(152 * US, 248 * US, 7 * US)}
    choice = choose(times)
    assert (choice.num_microbatches, choice.bound) == (2, "attention")
    assert choice.layer_s == pytest.approx(496 * US)


def test_a_gain_within_the_noise_is_not_worth_a_change() -> None:
    times = {1: StageTimes(100 * US, 900 * US, 0.0), 2: StageTimes(100 * US, 495 * US, 0.0)}
    assert choose(times).num_microbatches == 1
    assert choose(times, least_gain=0.0).num_microbatches == 2
