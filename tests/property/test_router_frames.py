"""The short way of writing chunks that are alike gives the very bytes of the general one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.sampling import FinishReason
from kernelflume.router.choice import Delta
from kernelflume.router.completion import Usage
from kernelflume.router.formats import AnswerHead, ChatFormat, CompletionFormat
from kernelflume.router.tools.calls import CallDelta

TEXTS = st.text(max_size=12) | st.sampled_from(['"', "\\", "\u2028", "\x00", "</s>", "\ud7ff", "😀"])
CALLS = st.just((CallDelta(0, "call_1", "look", '{"a"'),)) | st.just(())
DELTAS = st.builds(
    Delta,
    TEXTS,
    st.lists(st.integers(0, 9), max_size=2),
    st.sampled_from([None, None, None, FinishReason.STOP]),
    calls=CALLS,
)


HEADS = st.builds(
    AnswerHead,
    answer_id=st.just("x-1"),
    created=st.just(1),
    model=TEXTS,
    prompts=st.just([[1, 2], [3]]),
    choices_per_prompt=st.just(2),
    echoes=st.sampled_from([["", ""], ['echo "this"', ""]]),
    with_token_ids=st.booleans(),
    with_usage=st.booleans(),
    continuous_usage=st.booleans(),
)


@pytest.mark.parametrize("kind", [ChatFormat, CompletionFormat])
@given(st.lists(st.tuples(st.integers(0, 3), DELTAS), max_size=12), HEADS)
def test_chunks_are_those_of_the_general_way(
    kind: type[ChatFormat] | type[CompletionFormat], news: list[tuple[int, Delta]], head: AnswerHead
) -> None:
    short, general = kind(head), kind(head)
    for number, (index, delta) in enumerate(news):

        def usage(number: int = number) -> Usage:
            return Usage(3, number, 0)

        events = short.events(index, delta, usage)
        assert events.encode() == general.general_events(index, delta, usage).encode()
        for event in events.split("\n\n")[:-1]:
            assert json.loads(event.removeprefix("data: "))["choices"][0]["index"] == index
