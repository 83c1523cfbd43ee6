"""Stop strings: the outcome depends on the text alone, not on how it came."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelflume.router.stopping import StopMatcher

LETTERS = st.text(alphabet="ab\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4)


def outcome_of(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read off the definition: the stop that is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(pieces=st.lists(LETTERS, max_size=8), stops=STOPS)
@settings(deadline=None)
def test_cutting_the_text_changes_nothing(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    shown, matched = outcome_of(text, stops)
    matcher = StopMatcher(stops)
    so_far = ""
    for piece in pieces:
        scan = matcher.feed(piece)
        so_far += scan.text
        assert shown.startswith(so_far), "text was shown that a stop string takes back"
        if scan.matched is not None:
            assert (so_far, scan.matched) == (shown, matched)
            return
    assert matched is None
    assert so_far + matcher.flush() == text


@given(pieces=st.lists(LETTERS, min_size=1, max_size=6), stops=STOPS, num_unarmed=st.integers(0, 6))
@settings(deadline=None)
def test_unarmed_pieces_only_hide_matches_that_end_in_them(
    pieces: list[str], stops: list[str], num_unarmed: int
) -> None:
    text = "".join(pieces)
    num_hidden = len("".join(pieces[:num_unarmed]))
    expected: tuple[str, str | None] = (text, None)
    for end in range(num_hidden + 1, len(text) + 1):
        ends = [stop for stop in stops if text[:end].endswith(stop)]
        if ends:
            # What was shown before it was known to be a beginning is not taken back.
            expected = (text[: end - len(max(ends, key=len))], max(ends, key=len))
            break
    matcher = StopMatcher(stops)
    so_far = ""
    for index, piece in enumerate(pieces):
        scan = matcher.feed(piece, armed=index >= num_unarmed)
        so_far += scan.text
        if scan.matched is not None:
            assert (so_far, scan.matched) == expected
            return
    assert (so_far + matcher.flush(), None) == expected
