"""When steps are split in two, and when that is taken back."""

from __future__ import annotations

import itertools

import pytest
from tests.pipeline_world import Run, World

from kernelflume.wnode.pipeline.choice import (
    FIRST_CHECK,
    FIRST_PAUSE,
    LAST_CHECK,
    LEAST_PAUSE,
    NUM_CHECKED,
    NUM_RECENT,
    NUM_TRIED,
    FixedMicrobatches,
)
from kernelflume.wnode.pipeline.load import Load

SHORT, LONG = Load(32, 32 * 1024), Load(32, 32 * 16384)


def test_short_contexts_are_never_split() -> None:
    run = Run(World())
    assert set(run.steps(500, SHORT)) == {1}


def test_long_contexts_are_split_after_a_trial_and_checked_now_and_then() -> None:
    run = Run(World())
    chosen = run.steps(FIRST_CHECK * 20, LONG)
    assert chosen[:NUM_RECENT] == [1] * NUM_RECENT
    assert set(chosen[NUM_RECENT:][: FIRST_CHECK // 2]) == {2}
    # Checks at once, after 64 steps, after 128, ...
    later = chosen[NUM_RECENT:]
    assert later.count(1) == NUM_CHECKED * 4
    assert later[-1] == 2


def test_a_fixed_number_is_fixed() -> None:
    fixed = FixedMicrobatches(4)
    fixed.observe(4, LONG, 1.0)
    assert fixed.choose(LONG) == fixed.choose(SHORT) == 4


def test_a_split_that_does_not_hold_what_it_promised_is_taken_back_at_once() -> None:
    run = Run(World(factor=1.5))
    chosen = run.steps(FIRST_PAUSE, LONG)
    assert chosen.count(2) == NUM_TRIED
    assert chosen[NUM_RECENT : NUM_RECENT + NUM_TRIED] == [2] * NUM_TRIED


def test_what_the_trial_showed_is_remembered() -> None:
    # Attention takes a little longer than the weight node: a gain, if the exchange cost nothing.
    run = Run(World(exchange_us=20.0))
    load = Load(32, 200_000)
    chosen = run.still(1000, load)
    assert chosen.count(2) == NUM_TRIED
    predicted, true = run.profile.predict(2, load), run.world.step_s(2, load)
    assert predicted == pytest.approx(true, rel=0.05)


def test_a_bad_split_is_tried_again_after_ever_longer_pauses_or_at_another_load() -> None:
    run = Run(World())
    honest = run.profile.predict

    def promising(num_microbatches: int, load: Load) -> float | None:
        """Promise of two microbatches what never comes true."""
        serial_s = honest(1, load)
        return serial_s if serial_s is None or num_microbatches == 1 else serial_s / 2

    run.profile.predict = promising  # type: ignore[method-assign]
    run.still(NUM_RECENT, SHORT)
    tries = [index for index, count in enumerate(run.still(1000, SHORT)) if count == 2][::NUM_TRIED]
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses[0] >= FIRST_PAUSE
    assert all(later >= 1.9 * earlier for earlier, later in itertools.pairwise(pauses))
    moved = run.still(LEAST_PAUSE + NUM_RECENT + 1, Load(32, 2 * SHORT.num_tokens))
    assert 2 in moved


def test_a_split_ends_when_its_reason_ends() -> None:
    run = Run(World())
    assert run.steps(200, LONG)[-1] == 2
    assert run.steps(20, Load(32, 33_000))[1:] == [1] * 19


def test_a_split_that_became_slow_is_found_by_a_check() -> None:
    run = Run(World())
    assert run.steps(200, LONG)[-1] == 2
    run.world.factor = 1.4
    chosen = run.steps(FIRST_CHECK * 4, LONG)
    assert chosen[-1] == 1


def test_one_row_is_one_microbatch() -> None:
    run = Run(World())
    assert run.steps(100, LONG)[-1] == 2
    assert set(run.steps(20, Load(1, LONG.num_tokens))) == {1}


def test_a_load_that_moves_during_a_trial_decides_nothing() -> None:
    run = Run(World())
    run.steps(NUM_RECENT + 1, LONG)
    assert run.chosen[-1] == 2
    assert run.step(Load(32, LONG.num_tokens * 2)) == 1


def test_checks_stay_rare() -> None:
    run = Run(World(noise=0.005))
    chosen = run.steps(8 * LAST_CHECK, Load(8, 8 * 65536))
    assert chosen[-LAST_CHECK:].count(1) <= 2 * NUM_CHECKED


def test_a_step_chosen_before_a_trial_or_check_began_is_not_taken_for_one_of_it() -> None:
    # One step of one microbatch that was disturbed, observed when the trial of two has begun, ends no trial.
    run = Run(World())
    chosen = run.late(FIRST_CHECK * 4, LONG)
    first = chosen.index(2)
    assert first <= NUM_RECENT + 1
    assert chosen[first:][: FIRST_CHECK // 2] == [2] * (FIRST_CHECK // 2)
    # A check takes one step more, as the last is chosen before the decision.
    assert chosen[first:].count(1) in range(NUM_CHECKED, 3 * (NUM_CHECKED + 1) + 1)
    assert chosen[-1] == 2
    slow = Run(World(factor=2.0))
    assert slow.late(FIRST_PAUSE // 2, LONG).count(2) == NUM_TRIED + 1
