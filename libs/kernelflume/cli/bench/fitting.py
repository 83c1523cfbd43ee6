"""Making a workload fit a machine: fewer requests, shorter texts, shorter times, and a longest context."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelflume.cli.bench.workload import ExtendingPrompt, HashedPrompt, Session, Turn
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Fitting:
    """How it is done."""

    num_requests: int
    max_turns: int | None = None
    """Of a session; the rest is left out."""
    length_scale: float = 1.0
    """Numbers of tokens are divided by this."""
    output_scale: float | None = None
    """Answers' numbers of tokens are; None for as ``length_scale``."""
    time_scale: float = 1.0
    """Times are divided by this."""
    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens after the division."""
    max_think_s: float | None = None
    """Longest think time, after the division."""


@dataclass(frozen=True, slots=True)
class FittedWorkload:
    """What is left, and what was done to it."""

    sessions: tuple[Session, ...]
    num_cut: int
    """Requests without a session that were cut to the longest context."""
    num_dropped: int
    """Turns that were left out because their conversation had grown past the longest context."""


def fit(sessions: Iterable[Session], fitting: Fitting) -> FittedWorkload:
    """Take sessions until there are enough requests, and no more of a source without end.

    A conversation ends with the last turn that fits into the longest context: cut turns would all be the same
    prompt. A request without a conversation is cut instead.

    Raises:
        ConfigurationError: the source has no request, or a whole context of sessions does not fit.
    """
    kept: list[Session] = []
    left, num_cut, num_dropped, empty = fitting.num_requests, 0, 0, 0
    for session in sessions:
        turns: list[Turn] = []
        lengths: dict[str, int] = {}
        ended: set[str] = set()
        for turn in session.turns[: fitting.max_turns]:
            scaled = _scaled(turn, fitting)
            grown = _context(scaled, lengths.get(turn.conversation, 0))
            if fitting.max_model_len is not None and grown > fitting.max_model_len:
                if turn.conversation:
                    ended.add(turn.conversation)
                else:
                    scaled, num_cut = _cut(scaled, fitting.max_model_len), num_cut + 1
            if turn.conversation and turn.conversation in ended:
                num_dropped += 1
                continue
            lengths[turn.conversation] = grown
            turns.append(scaled)
        empty = 0 if turns else empty + 1
        if empty > fitting.num_requests:
            break
        if turns:
            arrival_s = None if session.arrival_s is None else session.arrival_s / fitting.time_scale
            kept.append(Session(session.name, tuple(turns[:left]), arrival_s))
            left -= len(kept[-1].turns)
        if left <= 0:
            break
    if not kept:
        limit = fitting.max_model_len
        reason = (
            f"no turn fits into {limit} tokens: raise --length-scale" if num_dropped else "no request in it"
        )
        raise ConfigurationError(f"the workload is empty: {reason}")
    return FittedWorkload(tuple(kept), num_cut, num_dropped)


def _scaled(turn: Turn, fitting: Fitting) -> Turn:
    scale = fitting.length_scale
    prompt = turn.prompt
    if isinstance(prompt, HashedPrompt):
        fitted: HashedPrompt | ExtendingPrompt = replace(
            prompt,
            block_tokens=prompt.block_tokens / scale,
            num_tokens=max(1, round(prompt.num_tokens / scale)),
        )
    else:
        fitted = ExtendingPrompt(max(1, round(prompt.num_new / scale)), int(prompt.num_shared / scale))
    think_s = turn.think_s / fitting.time_scale
    return replace(
        turn,
        prompt=fitted,
        num_output=max(1, round(turn.num_output / (fitting.output_scale or scale))),
        offset_s=turn.offset_s / fitting.time_scale,
        think_s=think_s if fitting.max_think_s is None else min(think_s, fitting.max_think_s),
        hit_tokens=_hit(fitted, int(turn.hit_tokens / scale)),
    )


def _hit(prompt: HashedPrompt | ExtendingPrompt, tokens: int) -> int:
    # The last token of a prompt is always computed: its logits are what the answer begins with.
    return min(tokens, prompt.num_tokens - 1) if isinstance(prompt, HashedPrompt) else tokens


def _context(turn: Turn, before: int) -> int:
    """Return prompt and answer together, in tokens."""
    prompt = turn.prompt
    if isinstance(prompt, HashedPrompt):
        return prompt.num_tokens + turn.num_output
    return before + prompt.num_shared + prompt.num_new + turn.num_output


def _cut(turn: Turn, max_model_len: int) -> Turn:
    num_output = min(turn.num_output, max(1, max_model_len // 2))
    most = max(1, max_model_len - num_output)
    prompt = turn.prompt
    if isinstance(prompt, HashedPrompt):
        prompt = replace(prompt, num_tokens=min(prompt.num_tokens, most))
    else:
        prompt = ExtendingPrompt(min(prompt.num_new, most))
    return replace(turn, prompt=prompt, num_output=num_output, hit_tokens=_hit(prompt, turn.hit_tokens))
