"""What routers are told of a step: columns where a token is all there is, events where there is more."""

from __future__ import annotations

from kernelflume.wnode.messages import TokenOutput
from kernelflume.wnode.replies import event_of, replies_of


def test_cached_tokens_come_with_the_first_token_and_order_is_kept() -> None:
    (reply,) = replies_of(
        [
            (1, TokenOutput("a", (10,), num_cached_tokens=64)),
            (2, TokenOutput("b", (20,))),
            (1, TokenOutput("a", (11,))),
            (2, TokenOutput("b", (21,))),
        ]
    )
    assert (list(reply.numbers), list(reply.token_ids)) == ([2, 2], [20, 21])
    told = [
        (event.number, list(event.event.token_ids), event.event.num_cached_tokens) for event in reply.events
    ]
    assert told == [(1, [10], 64), (1, [11], 0)]


def test_outputs_that_came_together_keep_the_first_ones_cached_tokens() -> None:
    event = event_of([TokenOutput("a", (1,), num_cached_tokens=16), TokenOutput("a", (2,), "length")])
    assert (list(event.token_ids), event.num_cached_tokens, event.finish_reason) == ([1, 2], 16, "length")
