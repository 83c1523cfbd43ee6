from __future__ import annotations

import pytest

from kernelflume.router.stopping import Scan, StopMatcher


def test_without_stops_text_passes_at_once() -> None:
    assert StopMatcher([]).feed("abc") == Scan("abc")


def test_a_possible_beginning_is_held_back_until_it_is_none() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.feed("go ST") == Scan("go ")
    assert matcher.feed("AY") == Scan("STAY")
    assert matcher.feed("S") == Scan("")
    assert matcher.flush() == "S"


def test_a_match_over_pieces_ends_the_text_before_it() -> None:
    matcher = StopMatcher(["STOP"])
    assert [matcher.feed(piece) for piece in ("a S", "T", "OP b")] == [Scan("a "), Scan(""), Scan("", "STOP")]


def test_the_match_can_be_included() -> None:
    matcher = StopMatcher(["\n\n"], include_match=True)
    assert matcher.feed("a\n") == Scan("a")
    assert matcher.feed("\nb") == Scan("\n\n", "\n\n")


@pytest.mark.parametrize(
    ("stops", "text", "shown", "matched"),
    [
        (["bc", "abcd"], "xabcd", "xa", "bc"),  # complete first
        (["bc", "abc"], "xabc", "x", "abc"),  # equally soon: the longest
        (["aab"], "aaab", "a", "aab"),  # begins within a failed beginning
        (["b", "a"], "ab", "", "a"),
    ],
)
def test_which_of_several_wins(stops: list[str], text: str, shown: str, matched: str) -> None:
    assert StopMatcher(stops).feed(text) == Scan(shown, matched)


def test_a_match_that_ends_unarmed_does_not_count_but_one_that_ends_later_does() -> None:
    matcher = StopMatcher(["ab", "bcd"])
    assert matcher.feed("xab", armed=False) == Scan("xa")
    assert matcher.feed("c", armed=False) == Scan("")
    assert matcher.feed("d") == Scan("", "bcd")


def test_a_match_inside_held_unarmed_text_does_not_count() -> None:
    matcher = StopMatcher(["ab", "xabc"])
    assert matcher.feed("xab", armed=False) == Scan("")
    assert matcher.feed("d") == Scan("xabd")
    assert matcher.feed("ab") == Scan("", "ab")
