"""The mean time of steps that are told of now and then."""

from __future__ import annotations

from kernelflume.cli.step_counter import StepCounter


def test_steps_count_from_the_first_change_to_the_last() -> None:
    counter = StepCounter()
    assert (counter.num_steps, counter.mean_s) == (0, 0.0)
    # The first number is as old as it may be; 10 steps in 1 s, one of 3 s among the next 10.
    for now_s, num_steps in ((0.0, 7), (0.2, 10), (0.7, 10), (1.2, 20), (5.1, 30), (9.0, 30)):
        counter.look(now_s, num_steps)
    assert counter.num_steps == 20
    assert counter.mean_s == (5.1 - 0.2) / 20


def test_what_was_counted_of_other_steps_is_forgotten() -> None:
    counter = StepCounter()
    for now_s, num_steps in ((0.0, 1), (1.0, 2), (2.0, 3)):
        counter.look(now_s, num_steps)
    counter.restart()
    assert counter.num_steps == 0
    for now_s, num_steps in ((3.0, 9), (4.0, 10), (4.5, 11)):
        counter.look(now_s, num_steps)
    assert (counter.num_steps, counter.mean_s) == (1, 0.5)
