"""Requests before a run, so that it does not pay for what a server does once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelflume.cli.bench.dialogue import Dialogue
from kernelflume.cli.bench.workload import ExtendingPrompt, HashedPrompt, Turn
from kernelflume.core.errors import UnavailableError

if TYPE_CHECKING:
    from kernelflume.cli.bench.endpoint import Endpoint
    from kernelflume.cli.bench.load import Asking
    from kernelflume.cli.bench.tokens import TokenSource
    from kernelflume.cli.bench.workload import Session

_MOST_OUTPUT = 16
_MOST_AT_A_TIME = 8


async def warm_up(
    endpoint: Endpoint, asking: Asking, source: TokenSource, sessions: tuple[Session, ...], number: int
) -> None:
    """Send prompts as long as the run's first ones, but of other tokens, so that none of the run's is cached.

    Raises:
        UnavailableError: one of them failed: the run would not fare better.
    """
    places = asyncio.Semaphore(_MOST_AT_A_TIME)

    async def ask(index: int) -> None:
        turn = _like(sessions[index % len(sessions)].turns[0])
        async with places:
            prompt = Dialogue(f"warm-up-{index}", source, asking.api).prompt(turn)
            body = json.dumps(asking.fields(turn) | prompt.fields, separators=(",", ":")).encode()
            answer = await endpoint.stream(
                asking.api.path, body, {}, timeout_s=asking.timeout_s, keep_text=False
            )
        if not answer.ok:
            raise UnavailableError(f"a request before the run failed with {answer.status}: {answer.detail}")

    results = await asyncio.gather(*(ask(index) for index in range(number)), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _like(turn: Turn) -> Turn:
    prompt = turn.prompt
    num_tokens = prompt.num_tokens if isinstance(prompt, HashedPrompt) else prompt.num_shared + prompt.num_new
    return replace(
        turn,
        conversation="",
        prompt=ExtendingPrompt(num_tokens),
        num_output=min(turn.num_output, _MOST_OUTPUT),
    )
