"""The choices of an answer that does not stream, as wholes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.router.formats import FinishedChoice
from kernelflume.router.tools.calls import ToolCall

if TYPE_CHECKING:
    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.router.choice import Delta
    from kernelflume.router.completion import Completion
    from kernelflume.router.tools.calls import CallDelta


async def collect(completion: Completion) -> list[FinishedChoice]:
    """Run all choices to their end.

    Raises:
        KernelFlumeError: one of them failed.
    """
    await completion.start()
    choices = [_Whole() for _ in range(completion.num_choices)]
    async for news in completion.deltas():
        for index, delta in news:
            choices[index].add(delta)
    return [choice.finished() for choice in choices]


@dataclass(slots=True)
class _Whole:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    calls: list[list[CallDelta]] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        for call in delta.calls:
            if call.name is not None:
                self.calls.append([])
            self.calls[-1].append(call)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    def finished(self) -> FinishedChoice:
        return FinishedChoice(
            "".join(self.texts),
            self.token_ids,
            self.finish_reason,
            self.stop_reason,
            self.logprobs,
            self.prompt_logprobs,
            [_call_of(deltas) for deltas in self.calls],
        )


def _call_of(deltas: list[CallDelta]) -> ToolCall:
    arguments = "".join(delta.arguments for delta in deltas)
    return ToolCall(deltas[0].call_id or "", deltas[0].name or "", arguments)
