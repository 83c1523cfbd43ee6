"""Continuous batching: decode first, prompts in chunks, the youngest gives way."""

from __future__ import annotations

import pytest
from tests.wnode_fakes import FakeLink, make_ledger, make_sequence

from kernelflume.core.errors import LifecycleError
from kernelflume.core.ranges import SequenceRoute
from kernelflume.wnode.scheduler import BatchLimits, Plan, Scheduler
from kernelflume.wnode.sequence import Sequence, SequenceEvent, SequenceState

PAGE_TOKENS = FakeLink("").page_tokens


def make_scheduler(
    *links: FakeLink, max_num_seqs: int = 8, max_rows: int = 16, max_range_tokens: int = 0
) -> Scheduler:
    limits = BatchLimits(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_rows)
    return Scheduler(limits, make_ledger(*links, max_range_tokens=max_range_tokens))


def step(scheduler: Scheduler) -> dict[str, int]:
    """Schedule and commit one step; return rows by request. Sampled sequences get one token."""
    batch = scheduler.schedule().batch
    if batch is None:
        return {}
    sampled = {id(chunk) for chunk in batch.chunks if chunk.samples}
    for chunk in batch.chunks:
        scheduler._ledger.commit(chunk.sequence, chunk.writes)
        chunk.sequence.num_computed += chunk.num_rows
        if id(chunk) in sampled:
            chunk.sequence.output.append(1)
    return {chunk.sequence.request_id: chunk.num_rows for chunk in batch.chunks}


def test_long_prompt_is_prefilled_in_chunks_beside_decoding_rows() -> None:
    scheduler = make_scheduler(FakeLink("a"))
    scheduler.submit(make_sequence(4, request_id="short"))
    assert step(scheduler) == {"short": 4}
    scheduler.submit(make_sequence(40, request_id="long"))
    assert step(scheduler) == {"short": 1, "long": 15}
    assert step(scheduler) == {"short": 1, "long": 15}
    assert step(scheduler) == {"short": 1, "long": 10}
    assert step(scheduler) == {"short": 1, "long": 1}


def test_no_more_sequences_run_than_allowed() -> None:
    scheduler = make_scheduler(FakeLink("a"), max_num_seqs=2)
    for number in range(3):
        scheduler.submit(make_sequence(1, request_id=str(number)))
    assert set(step(scheduler)) == {"0", "1"}
    assert [sequence.request_id for sequence in scheduler.waiting] == ["2"]
    scheduler.remove(scheduler.running[0])
    assert set(step(scheduler)) == {"1", "2"}


def test_what_was_begun_elsewhere_runs_before_what_was_not_begun() -> None:
    scheduler = make_scheduler(FakeLink("a"), max_num_seqs=2)
    for name, output in (("new", []), ("first", [1]), ("newer", []), ("second", [1])):
        sequence = make_sequence(2, request_id=name)
        sequence.output = list(output)
        scheduler.submit(sequence)
    assert [sequence.request_id for sequence in scheduler.waiting] == ["first", "second", "new", "newer"]


def test_nothing_runs_without_an_attention_node() -> None:
    scheduler = make_scheduler()
    scheduler.submit(make_sequence(3))
    assert scheduler.schedule() == Plan()
    assert scheduler.refusals() == []


def test_request_larger_than_the_pool_is_refused_with_both_figures() -> None:
    scheduler = make_scheduler(FakeLink("a", num_pages=2, num_usable_pages=2))
    scheduler.submit(make_sequence(8, request_id="large"))
    scheduler.submit(make_sequence(7, request_id="fits"))
    (refusal,) = scheduler.refusals()
    assert refusal.sequence.request_id == "large"
    assert "9 tokens" in refusal.reason
    assert "hold 8" in refusal.reason


def test_youngest_gives_way_when_the_pool_is_full_and_keeps_its_tokens() -> None:
    link = FakeLink("a", num_pages=4, num_usable_pages=4)
    scheduler = make_scheduler(link)
    for name in ("old", "young"):
        scheduler.submit(make_sequence(4, request_id=name))
    step(scheduler)
    link.num_usable_pages = 2
    step(scheduler)
    link.num_usable_pages = 0
    for _ in range(3):
        step(scheduler)
    plan = scheduler.schedule()
    batch, victim = plan.batch, plan.victim
    assert victim is not None
    assert victim.request_id == "young"
    assert batch is None or all(chunk.sequence is not victim for chunk in batch.chunks)
    tokens = victim.tokens(0, victim.num_tokens)
    scheduler.restart(victim)
    assert victim.state is SequenceState.WAITING
    assert victim.num_computed == 0
    assert victim.tokens(0, victim.num_tokens) == tokens
    assert scheduler.waiting[0] is victim


def test_nobody_gives_way_while_pages_are_being_freed() -> None:
    link = FakeLink("a", num_pages=1, num_usable_pages=1)
    scheduler = make_scheduler(link)
    scheduler.submit(make_sequence(3))
    step(scheduler)
    link.num_usable_pages = 0
    step(scheduler)
    link.is_settling = True
    assert scheduler.schedule() == Plan()
    link.is_settling = False
    assert scheduler.schedule().victim is not None


def test_pool_that_others_hold_pages_of_is_worth_waiting_for() -> None:
    link = FakeLink("a", num_pages=4, num_usable_pages=4)
    scheduler = make_scheduler(link, max_rows=8)
    scheduler.submit(make_sequence(15))
    step(scheduler)
    link.num_usable_pages = 1  # another weight node holds the fourth
    victim = scheduler.schedule().victim
    assert victim is not None
    assert not scheduler.has_pool_alone(victim)
    link.num_pages = 3
    assert scheduler.has_pool_alone(victim)


def test_nobody_gives_way_while_no_attention_node_is_left() -> None:
    """There is no room for want of a node, not because another sequence takes it."""
    scheduler = make_scheduler(FakeLink("a"), FakeLink("b"))
    for name in ("one", "two"):
        scheduler.submit(make_sequence(3, request_id=name))
    step(scheduler)
    scheduler._ledger.links = make_ledger().links
    assert scheduler.schedule() == Plan()
    scheduler._ledger.links = make_ledger(FakeLink("a"), FakeLink("b")).links
    assert step(scheduler) == {"one": 1, "two": 1}


def test_restarted_sequence_runs_under_a_new_id() -> None:
    scheduler = make_scheduler(FakeLink("a"))
    sequence = make_sequence(3)
    scheduler.submit(sequence)
    step(scheduler)
    first = sequence.sequence_id
    scheduler.restart(sequence)
    step(scheduler)
    assert sequence.sequence_id > first


def test_waiting_sequence_can_be_removed() -> None:
    scheduler = make_scheduler(FakeLink("a"))
    sequence = make_sequence(3)
    scheduler.submit(sequence)
    scheduler.remove(sequence)
    assert sequence.state is SequenceState.ENDED
    assert scheduler.find("r") is None


def test_illegal_event_changes_nothing() -> None:
    sequence: Sequence = make_sequence(3)
    with pytest.raises(LifecycleError, match="waiting: restart"):
        sequence.restart()
    assert sequence.state is SequenceState.WAITING
    sequence.apply(SequenceEvent.END)
    with pytest.raises(LifecycleError):
        sequence.apply(SequenceEvent.ADMIT)


def test_tokens_span_prompt_and_output() -> None:
    sequence = make_sequence(3)
    sequence.output = [10, 11]
    assert sequence.tokens(0, 5) == [1, 2, 3, 10, 11]
    assert sequence.tokens(2, 4) == [3, 10]
    assert sequence.tokens(3, 5) == [10, 11]


def test_rows_of_one_node_lie_side_by_side() -> None:
    """Rows side by side are merged where they lie; a sequence on both nodes goes between."""
    scheduler = make_scheduler(FakeLink("a"), FakeLink("b"), max_range_tokens=16)
    lengths = {"0": 8, "1": 8, "2": 8, "3": 20, "4": 8, "5": 8}
    for request_id, length in lengths.items():
        scheduler.submit(make_sequence(length, request_id=request_id))
    while scheduler.waiting or not all(sequence.is_decoding for sequence in scheduler.running):
        step(scheduler)
    batch = scheduler.schedule().batch
    assert batch is not None
    routes = [chunk.sequence.route.node_ids for chunk in batch.chunks]
    assert {len(route) for route in routes} == {1, 2}
    for node_id in "ab":
        places = [place for place, route in enumerate(routes) if node_id in route]
        assert places == list(range(places[0], places[-1] + 1))


def wait_sharing(scheduler: Scheduler, num_prompt: int, *, request_id: str, num_shared: int) -> Sequence:
    """Queue a sequence that shares its first tokens with others."""
    sequence = make_sequence(num_prompt, request_id=request_id)
    scheduler.submit(sequence)
    sequence.share(scheduler.new_id(), SequenceRoute().with_tail("a").extended(num_shared), PAGE_TOKENS)
    return sequence


def test_sequence_runs_once_it_has_looked_up_and_none_overtakes_it() -> None:
    scheduler = make_scheduler(FakeLink("a"))
    for name in ("first", "second"):
        scheduler.submit(make_sequence(4, request_id=name))
    assert scheduler.schedule(lambda sequence: sequence.request_id == "second") == Plan()
    assert scheduler.schedule(lambda _: True).batch is not None
    assert [sequence.request_id for sequence in scheduler.running] == ["first", "second"]


def test_only_what_is_not_shared_needs_room_and_is_computed() -> None:
    link = FakeLink("a", num_pages=6, num_usable_pages=2)
    scheduler = make_scheduler(link)
    sequence = wait_sharing(scheduler, 19, request_id="shares", num_shared=16)
    shared_under = sequence.sequence_id
    assert step(scheduler) == {"shares": 3}
    assert sequence.sequence_id == shared_under
    assert sequence.num_cached == 16
    assert [(owned.node_id, owned.tokens.end) for owned in sequence.route.ranges] == [("a", 19)]


@pytest.mark.parametrize(("num_prompt", "num_pages"), [(7, 1), (8, 2), (11, 2)])
def test_a_shared_last_block_needs_a_page_for_its_copy(num_prompt: int, num_pages: int) -> None:
    link = FakeLink("a", num_pages=10, num_usable_pages=num_pages - 1)
    scheduler = make_scheduler(link)
    sequence = wait_sharing(scheduler, num_prompt, request_id="r", num_shared=6)
    assert not scheduler.has_room(sequence)
    assert scheduler.schedule().batch is None
    link.num_usable_pages = num_pages
    assert scheduler.has_room(sequence)
    assert step(scheduler) == {"r": num_prompt - 6}


def test_room_elsewhere_is_none_for_the_copy_of_a_shared_last_block() -> None:
    scheduler = make_scheduler(FakeLink("a", num_usable_pages=0), FakeLink("b"))
    sequence = wait_sharing(scheduler, 8, request_id="r", num_shared=6)
    assert not scheduler.has_room(sequence)
    assert scheduler.schedule().batch is None
    scheduler.give_back(sequence)
    assert step(scheduler) == {"r": 8}


def test_waiting_sequences_give_back_before_a_running_one_gives_way() -> None:
    link = FakeLink("a", num_pages=10, num_usable_pages=10)
    scheduler = make_scheduler(link)
    scheduler.submit(make_sequence(4, request_id="runs"))
    step(scheduler)
    waiting = [wait_sharing(scheduler, 12, request_id=name, num_shared=8) for name in ("first", "second")]
    scheduler.submit(make_sequence(12, request_id="third"))
    link.num_usable_pages = 0
    plan = scheduler.schedule()
    assert (plan.victim, plan.returns) == (None, tuple(waiting))
    assert scheduler.is_starved
    for sequence in waiting:
        before = sequence.sequence_id
        scheduler.give_back(sequence)
        assert sequence.sequence_id != before
        assert (sequence.num_computed, sequence.route) == (0, SequenceRoute())
    link.is_settling = True
    assert scheduler.schedule() == Plan()
    link.is_settling = False
    victim = scheduler.schedule().victim
    assert victim is not None
    assert victim.request_id == "runs"


def test_of_what_waits_only_the_first_keeps_what_it_shares_when_nothing_runs() -> None:
    link = FakeLink("a", num_pages=10, num_usable_pages=1)
    scheduler = make_scheduler(link)
    wait_sharing(scheduler, 20, request_id="first", num_shared=8)
    second = wait_sharing(scheduler, 20, request_id="second", num_shared=8)
    plan = scheduler.schedule()
    assert (plan.batch, plan.victim, plan.returns) == (None, None, (second,))


def test_cached_tokens_are_the_fewest_of_all_runs_before_the_first_token() -> None:
    scheduler = make_scheduler(FakeLink("a"))
    sequence = wait_sharing(scheduler, 30, request_id="r", num_shared=8)
    step(scheduler)
    assert sequence.num_cached == 8
    scheduler.restart(sequence)
    sequence.share(
        scheduler.new_id(), SequenceRoute().with_tail("a").extended(20), PAGE_TOKENS
    )  # its own, too
    step(scheduler)
    assert sequence.num_cached == 8
