"""When the next step may be launched before the tokens of the one ahead of it are known."""

from __future__ import annotations

from typing import Any

import pytest
from tests.decode_rows import chunk

from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.ahead import Obstacle, Outlook, ending, obstacle
from kernelflume.wnode.batch import Chunk, KvWrite, StepBatch
from kernelflume.wnode.sequence import Sequence, SequenceEvent


def row(sequence_id: int, num_held: int = 10, *, num_prompt: int = 6, **sampling: Any) -> Chunk:
    """A decode row of a sequence that has ``num_held`` + 1 tokens, the last ones generated."""
    found = chunk(sequence_id, {"a": num_held}, "a")
    parameters = SamplingParameters(**({"temperature": 0.0, "max_tokens": 100} | sampling))
    sequence = Sequence(f"r{sequence_id}", [1] * num_prompt, parameters, 0)
    sequence.output = [1] * (num_held + 1 - num_prompt)
    sequence.sequence_id, sequence.num_computed, sequence.route = sequence_id, num_held, found.route
    return Chunk.of(sequence, 1, found.writes)


def outlook(*running: int, **changes: Any) -> Outlook:
    seen = {"has_news": False, "could_admit": False} | changes
    return Outlook(running=running, **seen)


BATCH = StepBatch.of([row(1), row(2)])


def test_steady_decode_has_no_obstacle() -> None:
    assert obstacle(BATCH, outlook(1, 2)) is None


def test_a_sequence_that_ended_since_is_none() -> None:
    assert obstacle(BATCH, outlook(2)) is None


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (outlook(1, 2, has_news=True), Obstacle.NEWS),
        (outlook(1, 2, 3), Obstacle.PROMPTS),
        (outlook(1, 2, could_admit=True), Obstacle.ADMISSION),
    ],
)
def test_what_is_to_be_done_between_two_steps_is_in_the_way(seen: Outlook, expected: Obstacle) -> None:
    assert obstacle(BATCH, seen) is expected


@pytest.mark.parametrize(
    "sampling",
    [{"logprobs": 2}, {"frequency_penalty": 0.1}, {"logit_bias": ((3, 1.0),)}, {"min_tokens": 50}],
)
def test_a_row_whose_token_the_host_chooses_is_in_the_way(sampling: dict[str, Any]) -> None:
    batch = StepBatch.of([row(1), row(2, **sampling)])
    assert obstacle(batch, outlook(1, 2)) is Obstacle.HOST


def test_a_sequence_that_is_handed_over_behind_its_next_token_is_in_the_way() -> None:
    leaving = row(2)
    leaving.sequence.hands_over = True
    assert obstacle(StepBatch.of([row(1), leaving]), outlook(1, 2)) is Obstacle.HAND_OVER


@pytest.mark.parametrize("sampling", [{"temperature": 0.8}, {"top_p": 0.9, "temperature": 1.0}, {"top_k": 3}])
def test_draws_on_the_device_are_not(sampling: dict[str, Any]) -> None:
    assert obstacle(StepBatch.of([row(1, **sampling)]), outlook(1)) is None


def test_what_surely_ends_is_known_by_its_length() -> None:
    # 11 tokens are known, 5 of them generated; the step gives the 12th, which is the 6th.
    rows = [row(1, max_tokens=6), row(2, max_tokens=7), row(3, stop_token_ids=(1,))]
    assert ending(StepBatch.of(rows), max_model_len=100) == {1}
    assert ending(StepBatch.of(rows), max_model_len=12) == {1, 2, 3}
    assert ending(StepBatch.of(rows), max_model_len=13) == {1}


def test_the_row_behind_a_row_begins_where_that_will_end() -> None:
    first = row(1, 10)
    second = first.next((KvWrite("b", 1, 1, opens_range=True),))
    third = second.next((KvWrite("b", 1, 0, opens_range=False),))
    assert (first.is_known, second.is_known, third.is_known) == (True, False, False)
    assert [each.start for each in (first, second, third)] == [10, 11, 12]
    assert [each.route.num_tokens for each in (first, second, third)] == [10, 11, 12]
    assert [owned.node_id for owned in third.route.ranges] == ["a", "b"]
    # The sequence itself knows of none of it.
    assert first.sequence.route.num_tokens == first.sequence.num_computed == 10
    first.sequence.apply(SequenceEvent.ADMIT)
    first.sequence.append(7)
    assert second.is_known
    assert not third.is_known
