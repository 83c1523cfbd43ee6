"""Loads of weight nodes: whatever happens to requests, nothing of them is left in the end."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from kernelflume.router.loads import Load, LoadBook, RunLoad

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["begin", "computed", "grew", "release", "report"]), st.integers(0, 7)),
    max_size=60,
)


@given(ACTIONS)
def test_each_load_counts_once_until_it_is_released(actions: list[tuple[str, int]]) -> None:
    books = [LoadBook(), LoadBook()]
    runs: list[RunLoad] = []
    for action, number in actions:
        if action == "begin":
            pair = (books[number % 2], books[number // 2 % 2])
            runs.append(RunLoad(*pair, num_tokens=10 + number, num_pending_tokens=number))
        elif action == "report":
            books[number % 2].report(Load(number, 10 * number, number))
        elif runs:
            run = runs[number % len(runs)]
            run.grew(number) if action == "grew" else getattr(run, action)()
        for book in books:
            own, whole = astuple(book.own), astuple(book.load())
            assert min(own) >= 0
            assert all(ours <= all_of_it for ours, all_of_it in zip(own, whole, strict=True))
    for run in runs:
        run.release()
    assert [book.own for book in books] == [Load(), Load()]


def test_a_report_is_brought_up_to_date_with_what_was_sent_since() -> None:
    book = LoadBook()
    first = book.acquire(num_tokens=100, num_pending_tokens=60)
    book.report(Load(3, 500, 80))  # another router's requests among them
    assert book.load() == Load(3, 500, 80)
    second = book.acquire(num_tokens=50, num_pending_tokens=50)
    assert book.load() == Load(4, 550, 130)
    first.computed()
    first.grew(5)
    first.release()
    assert book.load() == Load(3, 450, 70)
    # A report that is too old to know of a request hides nothing of it.
    book.report(Load())
    assert book.load() == Load(1, 50, 50)
    second.release()
    assert book.load() == Load(0, 0, 0)


def test_a_divided_run_moves_on_with_its_first_token() -> None:
    prefill, decode = LoadBook(), LoadBook()
    run = RunLoad(prefill, decode, num_tokens=100, num_pending_tokens=40)
    assert (prefill.own, decode.own) == (Load(1, 100, 40), Load(1, 100, 0))
    run.computed()
    run.grew(3)
    assert (prefill.own, decode.own) == (Load(), Load(1, 103, 0))
    run.release()
    run.grew(3)
    assert (prefill.own, decode.own) == (Load(), Load())
