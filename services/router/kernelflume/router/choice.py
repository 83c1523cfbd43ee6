"""The text of one choice: what tokens add to it, and where a stop string ends it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelflume.core.sampling import FinishReason
from kernelflume.router.stopping import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.router.detokenizer import Detokenizer
    from kernelflume.router.generation import Batch
    from kernelflume.router.tools.calls import CallDelta, ToolParser

TOOL_CALLS = "tool_calls"
"""Why a choice ended that calls tools, in OpenAI's words."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What is added to a choice."""

    text: str
    token_ids: Sequence[int]
    """The tokens taken in, also those whose text is still held back or never shown."""
    finish_reason: str | None = None
    """A ``FinishReason``, or ``TOOL_CALLS``."""
    stop_reason: str | int | None = None
    """The request's stop string or stop token that ended the choice; None for the model's own eos."""
    logprobs: Sequence[TokenLogprobs] = ()
    """Where asked for: of each of ``token_ids``, but for an eos or stop token at their end."""
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    """Where asked for: of the prompt's tokens but the first, with the first delta."""
    calls: Sequence[CallDelta] = ()
    """What is added to tool calls, at most once for each."""


class ChoiceText:
    """Turns a choice's tokens into text. Owned by one request."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stops: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
        prompt_only: bool = False,
        parser: ToolParser | None = None,
        called_reason: str = TOOL_CALLS,
    ) -> None:
        """Begin a choice.

        Args:
            detokenizer: a fresh one.
            stops: strings that end the choice.
            stop_token_ids: tokens that the request wants to end the choice, besides the model's own eos.
            min_tokens: a stop string within these first tokens does not count.
            include_stop: show the stop string or stop token that ended the choice.
            prompt_only: drop what is generated, for nothing was asked for.
            parser: finds tool calls in the text; None: there are none.
            called_reason: why a choice ended that was stopped after a call.
        """
        self._detokenizer = detokenizer
        self._has_stops = bool(stops)
        self._matcher = StopMatcher(stops, include_match=include_stop)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._prompt_only = prompt_only
        self._parser = parser
        self._called_reason = called_reason
        self.num_tokens = 0
        """Tokens sampled for this choice so far, with the one that ended it."""

    def add(self, batch: Batch) -> Delta:
        """Take in the next tokens. After a delta with a finish reason nothing more may be added."""
        if self._prompt_only:
            return Delta("", (), FinishReason.LENGTH, prompt_logprobs=batch.prompt_logprobs)
        delta = self._add(batch)
        if self._parser is not None:
            delta = self._parse(delta, self._parser)
        if not batch.logprobs and not batch.prompt_logprobs:
            return delta
        return replace(
            delta,
            logprobs=batch.logprobs[: len(delta.token_ids)],
            prompt_logprobs=batch.prompt_logprobs,
        )

    def _parse(self, delta: Delta, parser: ToolParser) -> Delta:
        parsed = parser.feed(delta.text)
        text, calls, reason = parsed.text, list(parsed.calls), delta.finish_reason
        if reason is not None:
            rest = parser.flush()
            text += rest.text
            calls += rest.calls
        elif parser.complete:
            reason = FinishReason.STOP
        if reason == FinishReason.STOP and parser.num_calls:
            reason = self._called_reason
        return replace(delta, text=text, calls=_join(calls), finish_reason=reason)

    def _add(self, batch: Batch) -> Delta:
        if not self._has_stops:
            self.num_tokens += len(batch.token_ids)
            text = self._detokenizer.feed(batch.token_ids)
        else:
            pieces: list[str] = []
            # One by one, because the choice ends with the very token that completes a stop string.
            for index, token_id in enumerate(batch.token_ids):
                self.num_tokens += 1
                armed = self.num_tokens > self._min_tokens
                scan = self._matcher.feed(self._detokenizer.feed((token_id,)), armed=armed)
                pieces.append(scan.text)
                if scan.matched is not None:
                    taken = batch.token_ids[: index + 1]
                    return Delta("".join(pieces), taken, FinishReason.STOP, scan.matched)
            text = "".join(pieces)
        if batch.finish_reason is None:
            return Delta(text, batch.token_ids)
        return self._finish(text, batch, batch.finish_reason)

    def _finish(self, text: str, batch: Batch, reason: FinishReason) -> Delta:
        token_ids = batch.token_ids
        if batch.stop_token_id is not None:
            self.num_tokens += 1
            token_ids = [*token_ids, batch.stop_token_id]
        scan = self._matcher.feed(self._detokenizer.flush())
        if scan.matched is not None:
            return Delta(text + scan.text, token_ids, FinishReason.STOP, scan.matched)
        text += scan.text + self._matcher.flush()
        if batch.stop_token_id is not None and self._include_stop:
            text += self._detokenizer.feed((batch.stop_token_id,)) + self._detokenizer.flush()
        wanted = batch.stop_token_id if batch.stop_token_id in self._stop_token_ids else None
        return Delta(text, token_ids, reason, wanted)


def _join(calls: Sequence[CallDelta]) -> Sequence[CallDelta]:
    """Return the same with one delta for each call: some clients keep only one of a chunk."""
    if len(calls) <= 1:
        return calls
    joined: dict[int, CallDelta] = {}
    for call in calls:
        before = joined.get(call.index)
        if before is not None:
            call = replace(before, arguments=before.arguments + call.arguments)  # noqa: PLW2901 - the joined one
        joined[call.index] = call
    return list(joined.values())
