"""Token ranges opened for a cause, where blocks begin; pages counted as the attention nodes count them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.wnode_fakes import FakeLink, make_ledger, make_sequence

if TYPE_CHECKING:
    from kernelflume.wnode.sequence import Sequence

from kernelflume.core.ranges import SequenceRoute
from kernelflume.wnode.batch import Chunk
from kernelflume.wnode.ledger import AdoptedTable, Ledger

PAGE_TOKENS = FakeLink("").page_tokens


def store(ledger: Ledger, sequence: Sequence, num_rows: int) -> None:
    """Place and commit rows, as a step does."""
    ledger.begin_step([sequence])
    writes = ledger.place(sequence, num_rows)
    assert writes is not None
    assert sum(write.num_rows for write in writes) == num_rows
    ledger.commit(sequence, writes)
    sequence.num_computed += num_rows


def spans(sequence: Sequence) -> list[tuple[str, int, int]]:
    return [(owned.node_id, owned.tokens.start, owned.tokens.end) for owned in sequence.route.ranges]


def test_tail_stays_where_it_is_while_there_is_room() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), FakeLink("b")), make_sequence(1)
    for _ in range(5):
        store(ledger, sequence, 3)
    assert spans(sequence) == [("a", 0, 15)]


def test_one_sequence_after_another_fills_all_nodes() -> None:
    ledger = make_ledger(FakeLink("a"), FakeLink("b"), FakeLink("c"))
    nodes = []
    for number in range(1, 7):
        sequence = make_sequence(number)
        store(ledger, sequence, 3)
        nodes += [node for node, _, _ in spans(sequence)]
        ledger.forget(number)  # it ends, and its pages are kept and count as free
    assert nodes == ["a", "b", "c"] * 2


def test_range_limit_alternates_between_nodes() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), FakeLink("b"), max_range_tokens=4), make_sequence(1)
    store(ledger, sequence, 10)
    assert [(start, end) for _, start, end in spans(sequence)] == [(0, 4), (4, 8), (8, 10)]
    assert {node for node, _, _ in spans(sequence)} == {"a", "b"}


def test_range_limit_with_one_node_seals_on_the_same_node() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), max_range_tokens=4), make_sequence(1)
    store(ledger, sequence, 9)
    assert spans(sequence) == [("a", 0, 4), ("a", 4, 8), ("a", 8, 9)]


def test_full_node_spills_over_within_one_chunk() -> None:
    ledger = make_ledger(FakeLink("a", num_usable_pages=2), FakeLink("b", num_usable_pages=1))
    sequence = make_sequence(1)
    store(ledger, sequence, 12)
    assert spans(sequence) == [("a", 0, 8), ("b", 8, 12)]


def test_full_pool_places_nothing_and_promises_nothing() -> None:
    ledger, sequence = make_ledger(FakeLink("a", num_usable_pages=2)), make_sequence(1)
    ledger.begin_step([])
    assert ledger.place(sequence, 9) is None
    assert ledger.usable_pages("a") == 2


def test_last_page_is_filled_before_a_page_is_counted() -> None:
    ledger, sequence = make_ledger(FakeLink("a", num_usable_pages=1)), make_sequence(1)
    ledger.begin_step([])
    first = ledger.place(sequence, 3)
    assert first is not None
    assert [write.num_new_pages for write in first] == [1]
    ledger.commit(sequence, first)
    sequence.num_computed = 3
    ledger.links.of_node("a").num_usable_pages = 0  # type: ignore[union-attr, misc]
    ledger.begin_step([sequence])
    second = ledger.place(sequence, 1)
    assert second is not None
    assert [write.num_new_pages for write in second] == [0]
    ledger.commit(sequence, second)
    sequence.num_computed = 4
    ledger.begin_step([sequence])
    assert ledger.place(sequence, 1) is None


def test_two_sequences_of_a_step_do_not_take_the_same_page() -> None:
    ledger = make_ledger(FakeLink("a", num_usable_pages=1))
    ledger.begin_step([])
    assert ledger.place(make_sequence(1, request_id="1"), 1) is not None
    assert ledger.place(make_sequence(1, request_id="2"), 1) is None


def test_adopted_node_takes_over_some_tails_at_their_next_block() -> None:
    ledger = make_ledger(FakeLink("a"), FakeLink("b"), active=("a",))
    sequences: list[Sequence] = []
    for number in range(4):
        sequence = make_sequence(4, request_id=str(number))
        sequence.sequence_id = number + 1
        ledger.rebalance(sequences)
        store(ledger, sequence, 4)
        sequences.append(sequence)
    ledger.adopt(AdoptedTable(2, ("a", "b"), frozenset({"a", "b"})))
    assert ledger.rebalance(sequences) == 2
    for sequence in sequences:
        store(ledger, sequence, 1)
    moved = [sequence for sequence in sequences if sequence.route.tail_node_id == "b"]
    assert len(moved) == 2
    assert all(spans(sequence) == [("a", 0, 4), ("b", 4, 5)] for sequence in moved)


def test_a_second_table_before_the_next_token_takes_nothing_from_a_node_that_joined() -> None:
    ledger = make_ledger(FakeLink("a"), FakeLink("b"), active=("a",))
    sequences = [make_sequence(4, request_id=str(number)) for number in range(4)]
    for number, sequence in enumerate(sequences):
        sequence.sequence_id = number + 1
        ledger.rebalance(sequences[:number])
        store(ledger, sequence, 4)
    known = frozenset({"a", "b"})
    ledger.adopt(AdoptedTable(2, ("a", "b"), known))
    assert ledger.rebalance(sequences) == 2
    ledger.adopt(AdoptedTable(3, ("a", "b"), known, {"a": 1000, "b": 1000}))
    assert ledger.rebalance(sequences) == 0
    for sequence in sequences:
        store(ledger, sequence, 1)
    assert [sequence.route.tail_node_id for sequence in sequences].count("b") == 2


def test_a_node_that_is_resumed_before_the_next_token_keeps_its_tail() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), FakeLink("b")), make_sequence(4)
    sequence.sequence_id = 1
    store(ledger, sequence, 4)
    known = frozenset({"a", "b"})
    ledger.adopt(AdoptedTable(2, ("b",), known))
    assert ledger.rebalance([sequence]) == 1
    ledger.adopt(AdoptedTable(3, ("a",), known))
    ledger.rebalance([sequence])
    store(ledger, sequence, 2)
    assert spans(sequence) == [("a", 0, 6)]


def test_a_move_that_the_step_under_way_carries_out_opens_one_range() -> None:
    ledger = make_ledger(FakeLink("a", page_tokens=1), FakeLink("b", page_tokens=1))
    sequence = make_sequence(4)
    sequence.sequence_id = 1
    store(ledger, sequence, 4)
    ledger.adopt(AdoptedTable(2, ("b",), frozenset({"a", "b"})))
    assert ledger.rebalance([sequence]) == 1
    ledger.begin_step([sequence])
    writes = ledger.place(sequence, 1)
    assert writes is not None
    chunk = Chunk.of(sequence, 1, writes)
    ledger.begin_step([sequence])
    behind = ledger.place_next(chunk)
    assert behind is not None
    ledger.commit(sequence, chunk.writes)
    ledger.commit(sequence, behind)
    assert spans(sequence) == [("a", 0, 4), ("b", 4, 6)]


def test_draining_node_keeps_its_ranges_and_gets_no_token_more() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), FakeLink("b")), make_sequence(4)
    sequence.sequence_id = 1
    store(ledger, sequence, 4)
    ledger.adopt(AdoptedTable(2, ("b",), frozenset({"a", "b"})))
    assert ledger.rebalance([sequence]) == 1
    store(ledger, sequence, 2)
    assert spans(sequence) == [("a", 0, 4), ("b", 4, 6)]


def test_block_is_filled_where_it_was_begun_before_its_tail_moves() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), FakeLink("b")), make_sequence(4)
    sequence.sequence_id = 1
    store(ledger, sequence, 5)
    ledger.links.of_node("a").num_usable_pages = 0  # type: ignore[union-attr, misc]
    ledger.adopt(AdoptedTable(2, ("b",), frozenset({"a", "b"})))
    assert ledger.rebalance([sequence]) == 1
    for _ in range(2):
        store(ledger, sequence, 1)
        assert spans(sequence) == [("a", 0, sequence.num_computed)]
    ledger.adopt(AdoptedTable(3, ("b",), frozenset({"a", "b"})))
    assert ledger.rebalance([sequence]) == 0  # it is on its way
    store(ledger, sequence, 4)
    assert spans(sequence) == [("a", 0, 8), ("b", 8, 11)]
    store(ledger, sequence, 1)
    assert spans(sequence) == [("a", 0, 8), ("b", 8, 12)]


def test_block_is_filled_while_no_node_is_active_and_no_other_is_begun() -> None:
    ledger, sequence = make_ledger(FakeLink("a")), make_sequence(4)
    sequence.sequence_id = 1
    store(ledger, sequence, 3)
    ledger.adopt(AdoptedTable(2, (), frozenset({"a"})))
    ledger.rebalance([sequence])
    store(ledger, sequence, 1)
    ledger.begin_step([sequence])
    assert ledger.place(sequence, 1) is None
    assert ledger.page_tokens == 0


def test_one_chunk_that_fills_a_block_and_goes_on_is_one_write() -> None:
    ledger, sequence = make_ledger(FakeLink("a")), make_sequence(40)
    store(ledger, sequence, 3)
    ledger.begin_step([sequence])
    (write,) = ledger.place(sequence, 10) or ()
    assert (write.num_rows, write.num_new_pages, write.opens_range) == (10, 3, False)


def share(sequence: Sequence, *spans: tuple[str, int]) -> None:
    """Let a sequence begin with what nodes hold: so many tokens each."""
    route = SequenceRoute()
    for node_id, num_tokens in spans:
        route = route.with_tail(node_id).extended(num_tokens)
    sequence.share(1, route, PAGE_TOKENS)


def test_shared_beginning_is_gone_on_with_where_it_ends() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), FakeLink("b", num_usable_pages=90)), make_sequence(20)
    share(sequence, ("a", 8))
    store(ledger, sequence, 12)
    assert spans(sequence) == [("a", 0, 20)]


def test_the_copy_of_a_shared_last_block_is_promised_once_and_where_the_block_lies() -> None:
    link = FakeLink("a", num_usable_pages=2)
    ledger, sequence = make_ledger(link, FakeLink("b")), make_sequence(20)
    share(sequence, ("a", 6))
    ledger.begin_step([])
    for _ in range(2):  # a step that is given up changes nothing
        ledger.begin_step([])
        writes = ledger.place(sequence, 3)
        assert writes is not None
        assert sum(write.num_new_pages for write in writes) == 2
    link.num_usable_pages = 0
    ledger.begin_step([])
    assert not ledger.can_go_on(sequence)
    assert ledger.place(sequence, 1) is None
    link.num_usable_pages = 1
    store(ledger, sequence, 1)
    link.num_usable_pages = 0
    ledger.begin_step([])
    assert ledger.can_go_on(sequence)
    (write,) = ledger.place(sequence, 1) or ()
    assert write.num_new_pages == 0


def test_two_copies_of_a_step_do_not_take_the_same_page() -> None:
    ledger = make_ledger(FakeLink("a", num_usable_pages=1))
    first, second = make_sequence(20, request_id="1"), make_sequence(20, request_id="2")
    share(first, ("a", 6))
    share(second, ("a", 6))
    ledger.begin_step([])
    assert ledger.place(first, 1) is not None
    assert ledger.place(second, 1) is None


def test_shared_beginning_is_left_for_a_node_with_far_more_room_or_when_its_own_leaves() -> None:
    for links, active in (
        ((FakeLink("a", num_usable_pages=40), FakeLink("b")), ("a", "b")),
        ((FakeLink("a", num_usable_pages=0), FakeLink("b", num_usable_pages=7)), ("a", "b")),
        ((FakeLink("a"), FakeLink("b")), ("b",)),
    ):
        ledger, sequence = make_ledger(*links, active=active), make_sequence(20)
        share(sequence, ("b", 4), ("a", 4))
        store(ledger, sequence, 5)
        store(ledger, sequence, 7)
        assert spans(sequence) == [("b", 0, 4), ("a", 4, 8), ("b", 8, 20)]


def test_what_follows_a_shared_beginning_is_spread_where_it_is_long() -> None:
    links = [FakeLink("a", num_usable_pages=20), FakeLink("b", num_usable_pages=14)]
    ledger, sequence = make_ledger(*links, spread_tokens=8), make_sequence(48)
    share(sequence, ("b", 8))
    for _ in range(4):
        store(ledger, sequence, 10)
    assert spans(sequence) == [("b", 0, 16), ("a", 16, 48)]


def test_node_at_its_threshold_is_left_while_another_is_below_its_own() -> None:
    links = FakeLink("a", num_usable_pages=100), FakeLink("b", num_usable_pages=100)
    ledger, sequence = make_ledger(*links), make_sequence(100)
    sequence.sequence_id = 1
    ledger.adopt(AdoptedTable(2, ("a", "b"), frozenset({"a", "b"}), {"a": 8, "b": 12}))
    ledger.begin_step([])
    store(ledger, sequence, 30)
    assert {node_id: sequence.route.num_tokens_on(node_id) for node_id in ("a", "b")} in (
        {"a": 18, "b": 12},  # beyond both thresholds it goes on where it is
        {"a": 8, "b": 22},
    )
    assert len(spans(sequence)) == 2


def test_nodes_beyond_their_thresholds_are_filled_up() -> None:
    ledger, sequence = make_ledger(FakeLink("a", num_pages=3, num_usable_pages=3)), make_sequence(100)
    sequence.sequence_id = 1
    ledger.adopt(AdoptedTable(2, ("a",), frozenset({"a"}), {"a": 4}))
    ledger.begin_step([])
    store(ledger, sequence, 12)
    assert spans(sequence) == [("a", 0, 12)]
    ledger.begin_step([sequence])
    ledger.links.of_node("a").num_usable_pages = 0  # type: ignore[union-attr, misc]
    assert ledger.place(sequence, 1) is None


def test_long_prompt_is_spread_so_that_nodes_are_left_equally_free() -> None:
    links = [FakeLink("a", num_usable_pages=20), FakeLink("b", num_usable_pages=14), FakeLink("c", 4, 100, 4)]
    ledger, sequence = make_ledger(*links, spread_tokens=8), make_sequence(40)
    sequence.sequence_id = 1
    ledger.begin_step([])
    for _ in range(4):  # in chunks, which do not end where ranges do
        store(ledger, sequence, 10)
    assert spans(sequence) == [("a", 0, 32), ("b", 32, 40)]
    store(ledger, sequence, 1)
    assert sequence.route.tail_node_id == "b"  # decoding goes on where the prompt ended


def test_short_prompt_and_single_node_are_not_spread() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), FakeLink("b"), spread_tokens=8), make_sequence(15)
    sequence.sequence_id = 1
    store(ledger, sequence, 15)
    assert len(spans(sequence)) == 1
    ledger, sequence = make_ledger(FakeLink("a"), spread_tokens=8), make_sequence(40)
    sequence.sequence_id = 1
    store(ledger, sequence, 40)
    assert spans(sequence) == [("a", 0, 40)]


def test_spread_gives_way_to_a_node_that_leaves() -> None:
    ledger, sequence = make_ledger(FakeLink("a"), FakeLink("b"), spread_tokens=8), make_sequence(40)
    sequence.sequence_id = 1
    store(ledger, sequence, 10)
    assert [span[0] for span in spans(sequence)] == ["a"]
    ledger.adopt(AdoptedTable(2, ("a",), frozenset({"a", "b"})))
    ledger.rebalance([sequence])
    store(ledger, sequence, 30)
    assert {span[0] for span in spans(sequence)} == {"a"}


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(0, 7),
    st.lists(st.integers(3, 60), min_size=1, max_size=4),
)
def test_routes_cover_every_token_once_and_pages_are_never_overdrawn(
    steps: list[int], max_range_tokens: int, pages: list[int]
) -> None:
    links = [FakeLink(f"n{index}", num_usable_pages=count) for index, count in enumerate(pages)]
    ledger, sequence = make_ledger(*links, max_range_tokens=max_range_tokens), make_sequence(1)
    for num_rows in steps:
        ledger.begin_step([sequence])
        writes = ledger.place(sequence, num_rows)
        if writes is None:
            break
        ledger.commit(sequence, writes)
        for write in writes:
            link = ledger.links.of_node(write.node_id)
            assert link is not None
            link.num_usable_pages -= write.num_new_pages  # type: ignore[misc]
            assert link.num_usable_pages >= 0
        sequence.num_computed += num_rows
        assert sequence.route.num_tokens == sequence.num_computed
        assert all(owned.tokens.start % PAGE_TOKENS == 0 for owned in sequence.route.ranges)
        for fake, count in zip(links, pages, strict=True):
            held = sequence.route.num_tokens_on(fake.node_id)
            assert -(-held // fake.page_tokens) == count - fake.num_usable_pages


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sets(st.sampled_from("abc"))), min_size=1, max_size=30),
    st.integers(0, 9),
    st.integers(0, 8),
)
def test_ranges_begin_where_blocks_do_whatever_tables_come(
    steps: list[tuple[int, set[str]]], max_range_tokens: int, spread_tokens: int
) -> None:
    ledger = make_ledger(
        *map(FakeLink, "abc"), max_range_tokens=max_range_tokens, spread_tokens=spread_tokens
    )
    sequences = [make_sequence(30, request_id=str(number)) for number in (1, 2)]
    for number, sequence in enumerate(sequences):
        sequence.sequence_id = number + 1
    for epoch, (num_rows, active) in enumerate(steps):
        ledger.adopt(AdoptedTable(epoch + 2, tuple(sorted(active)), frozenset("abc")))
        ledger.rebalance([sequence for sequence in sequences if sequence.num_computed])
        ledger.begin_step(sequences)
        for sequence in sequences:
            before = sequence.route.tail_node_id
            writes = ledger.place(sequence, num_rows)
            if writes is None:
                assert not active
                continue
            begun = [write for write in writes if write.opens_range]
            assert {write.node_id for write in begun} <= active
            in_block = -sequence.num_computed % PAGE_TOKENS
            ledger.commit(sequence, writes)
            sequence.num_computed += num_rows
            assert all(owned.tokens.start % PAGE_TOKENS == 0 for owned in sequence.route.ranges)
            # A node that is not active any more gets no more than its block wants.
            assert before in (None, *active) or num_rows <= in_block or sequence.route.tail_node_id in active
