from __future__ import annotations

import pytest

from kernelflume.core.pipeline import StageTimes, choose, fill_s, predict, step_s

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


def test_what_fills_the_pipe_is_the_other_node_s_stage_or_what_it_cannot_hide() -> None:
    assert fill_s(StageTimes(100, 300), 1) == 0
    assert fill_s(StageTimes(100, 300), 2) == 100
    assert fill_s(StageTimes(100, 80), 2) == 60
    assert fill_s(StageTimes(100, 40), 2) == 0
    assert fill_s(StageTimes(100, 100), 2) == 100
    assert step_s(StageTimes(100, 300), 2, num_layers=4, overhead_s=7) == 7 + 4 * 600 + 100


def test_the_exchange_counts_on_the_weight_node_once_for_each_microbatch() -> None:
    times = StageTimes(150, 40, exchange_s=-5, weight_exchange_s=10)
    assert predict(times, 1).layer_s == 185
    assert predict(times, 2).layer_s == 320
    assert predict(times, 4).layer_s == 640


NUM_LAYERS = 32
MEASURED = {
    # batch, thousands of tokens: stages of one and of two microbatches (weight, attention), steps of both
    (16, 2): ((150.2, 43.2), (146.2, 27.1), 192.1, 296.5),
    (16, 4): ((150.0, 72.9), (145.9, 41.9), 222.3, 297.6),
    (16, 16): ((149.8, 251.8), (146.6, 130.8), 399.7, 299.7),
    (32, 2): ((153.2, 73.2), (148.0, 42.8), 226.3, 302.9),
    (32, 4): ((153.9, 132.0), (147.9, 72.4), 285.4, 303.2),
    (32, 16): ((153.8, 492.1), (148.4, 251.5), 644.0, 519.9),
    (64, 2): ((156.8, 139.3), (150.1, 72.8), 296.3, 310.1),
    (64, 4): ((156.8, 256.8), (150.6, 132.8), 413.2, 311.1),
    (64, 16): ((156.0, 976.2), (150.1, 492.6), 1130.3, 999.6),
    (128, 4): ((170.6, 503.9), (155.7, 256.9), 678.2, 529.1),
    (128, 16): ((170.6, 1945.3), (155.9, 975.1), 2120.8, 1972.4),
}
"""Microseconds a layer, Llama-3.1-8B's shape on two H200s."""


@pytest.mark.parametrize("cell", MEASURED)
def test_measured_steps_of_two_microbatches_are_predicted(cell: tuple[int, int]) -> None:
    # What the exchange costs the weight node is taken from batch 16 at 2K alone.
    _, short, _, short_us = MEASURED[16, 2]
    costs = (short_us - fill_s(StageTimes(*short), 2) / NUM_LAYERS) / 2 - short[0]
    one, two, one_us, two_us = MEASURED[cell]
    round_trip = one_us - sum(one)
    stages = {
        1: StageTimes(*one, round_trip, costs),
        2: StageTimes(*two, round_trip, costs),
    }
    predicted = step_s(stages[2], 2, num_layers=NUM_LAYERS, overhead_s=0.0) / NUM_LAYERS
    assert predicted == pytest.approx(two_us, rel=0.031)
    assert choose(stages).num_microbatches == (2 if two_us < one_us else 1)
