"""Outputs of the engine as messages: events of one request, replies for all of a router's. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.rpc.codec import logprobs_to_proto, route_to_proto
from kernelflume.rpc.status import failure_to_proto
from kernelflume.rpc.v1 import wnode_pb2


@dataclass(frozen=True, slots=True)
class AskedAway:
    """A request should be handed over."""


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.wnode.messages import TokenOutput

    News = tuple[int, TokenOutput | AskedAway | Exception]

_PROMPT_TOKENS_IN_EVENT = 1024
"""With 20 alternatives each, some 200 KB."""
_MAX_NEWS_IN_REPLY = 4096
"""With log probabilities and 20 alternatives each, about 1 MB."""


def event_of(outputs: Sequence[TokenOutput]) -> wnode_pb2.GenerateEvent:
    """Return one event for consecutive outputs of a request, without the prompt's log probabilities."""
    last = outputs[-1]
    return wnode_pb2.GenerateEvent(
        token_ids=[token for output in outputs for token in output.token_ids],
        finish_reason=last.finish_reason,
        num_cached_tokens=outputs[0].num_cached_tokens,
        stop_token_id=last.stop_token_id,
        logprobs=[logprobs_to_proto(found) for output in outputs for found in output.logprobs],
        random_key=outputs[0].random_key,
        held=None if last.held is None else wnode_pb2.Held(ranges=route_to_proto(last.held)),
    )


def has_more(output: TokenOutput) -> bool:
    """Tell whether an output says more than its tokens."""
    return bool(output.finish_reason or output.logprobs or output.num_cached_tokens) or (
        output.random_key is not None or output.held is not None
    )


def prompt_events(logprobs: Sequence[TokenLogprobs]) -> Iterator[wnode_pb2.GenerateEvent]:
    """Give a prompt's log probabilities in pieces that fit a message."""
    for first in range(0, len(logprobs), _PROMPT_TOKENS_IN_EVENT):
        part = logprobs[first : first + _PROMPT_TOKENS_IN_EVENT]
        yield wnode_pb2.GenerateEvent(prompt_logprobs=map(logprobs_to_proto, part))


def replies_of(news: Sequence[News]) -> list[wnode_pb2.AttachReply]:
    """Return what a router is told: outputs and failures with the numbers of their requests, in order."""
    replies: list[wnode_pb2.AttachReply] = []
    for first in range(0, len(news), _MAX_NEWS_IN_REPLY):
        replies += _replies_of(news[first : first + _MAX_NEWS_IN_REPLY])
    return replies


def _replies_of(news: Sequence[News]) -> list[wnode_pb2.AttachReply]:
    replies: list[wnode_pb2.AttachReply] = []
    numbers: list[int] = []
    token_ids: list[int] = []
    events: list[wnode_pb2.RequestEvent] = []
    with_event: set[int] = set()
    for number, output in news:
        if isinstance(output, Exception):
            events.append(wnode_pb2.RequestEvent(number=number, failure=failure_to_proto(output)))
            continue
        if isinstance(output, AskedAway):
            events.append(wnode_pb2.RequestEvent(number=number, asked_away=True))
            continue
        if output.prompt_logprobs:
            # Large, so each piece is a reply of its own, after all that came before.
            replies.append(wnode_pb2.AttachReply(numbers=numbers, token_ids=token_ids, events=events))
            numbers, token_ids, events, with_event = [], [], [], set()
            replies += [
                wnode_pb2.AttachReply(events=[wnode_pb2.RequestEvent(number=number, event=event)])
                for event in prompt_events(output.prompt_logprobs)
            ]
        if has_more(output) or number in with_event:
            # A reply's events come after its columns: what follows one of a request must be one, too.
            with_event.add(number)
            events.append(wnode_pb2.RequestEvent(number=number, event=event_of((output,))))
        else:
            for token_id in output.token_ids:
                numbers.append(number)
                token_ids.append(token_id)
    replies.append(wnode_pb2.AttachReply(numbers=numbers, token_ids=token_ids, events=events))
    return replies
