"""Tool calls are the same however a model's text is cut, and what is no call is not lost."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernelflume.router.tools.hermes import HermesFormat
from kernelflume.router.tools.llama3 import Llama3Format
from kernelflume.router.tools.required import ListedCallsParser
from kernelflume.router.tools.smollm2 import SmolLM2Format
from kernelflume.router.tools.tagged import GuidedParser

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.router.tools.calls import ToolParser

NAMES = frozenset({"f", "g"})
PARSERS: dict[str, Callable[[int | None], ToolParser]] = {
    "hermes": lambda most: HermesFormat().new_parser(NAMES, max_calls=most),
    "smollm2": lambda most: SmolLM2Format().new_parser(NAMES, max_calls=most),
    "llama3": lambda most: Llama3Format().new_parser(NAMES, max_calls=most),
    "guided": lambda most: GuidedParser(NAMES, max_calls=most),
    "listed": lambda most: ListedCallsParser(NAMES, max_calls=most),
}
PIECES = st.sampled_from(
    [
        *["<tool_call>", "</tool_call>", "<|python_tag|>", "<tool", "</", "text", " ", "\n", "é"],
        *['{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "parameters": {}}', '{"name": "h"}'],
        *['"name": ', '"f"', '"arguments": ', '"parameters": ', '{"x": "}"}', '"{\\"y\\": 2}"', "null", "5"],
        *["{", "}", "[", "]", ",", ";", ":", '"', "\\"],
    ]
)
TEXTS = st.lists(PIECES, max_size=14).map("".join)


def read(parser: ToolParser, pieces: list[str]) -> tuple[str, list[list[str]]]:
    """Return the text and each call's name and arguments."""
    text = ""
    calls: list[list[str]] = []
    for parsed in [*map(parser.feed, pieces), parser.flush()]:
        text += parsed.text
        for delta in parsed.calls:
            if delta.name is not None:
                assert delta.index == len(calls)
                calls.append([delta.name, delta.arguments])
            else:
                assert delta.index == len(calls) - 1
                calls[-1][1] += delta.arguments
    assert parser.num_calls == len(calls)
    return text, calls


@pytest.mark.parametrize("kind", PARSERS)
@example(whole='{"x": "}"}{"name": "f", "arguments": {}}', cuts=[10], most=None)
@given(whole=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=6), most=st.sampled_from([None, 1]))
def test_the_cut_makes_no_difference(kind: str, whole: str, cuts: list[int], most: int | None) -> None:
    places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    pieces = [whole[start:end] for start, end in pairwise(places)]
    expected = read(PARSERS[kind](most), [whole])
    assert read(PARSERS[kind](most), pieces) == expected
    assert read(PARSERS[kind](most), list(whole)) == expected


@pytest.mark.parametrize("kind", ["hermes", "smollm2", "llama3", "guided"])
@given(whole=TEXTS)
def test_without_a_call_the_text_is_whole(kind: str, whole: str) -> None:
    text, calls = read(PARSERS[kind](None), [whole])
    if not calls:
        # But for the empty list, which says that no call is needed.
        assert text == whole or "<tool_call>" in whole
    assert all(name in NAMES for name, _ in calls)
