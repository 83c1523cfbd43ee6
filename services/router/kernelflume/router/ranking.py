"""The best of more choices than were asked for. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.formats import FinishedChoice


def best_of(
    candidates: Sequence[FinishedChoice], *, candidates_per_prompt: int, choices_per_prompt: int
) -> list[FinishedChoice]:
    """Return each prompt's best choices, the best first.

    Args:
        candidates: of all prompts, those of one side by side, with the log probabilities of their tokens.
        candidates_per_prompt: how many there are of each.
        choices_per_prompt: how many are wanted of each.
    """
    if candidates_per_prompt == choices_per_prompt:
        return list(candidates)
    return [
        choice
        for first in range(0, len(candidates), candidates_per_prompt)
        for choice in sorted(
            candidates[first : first + candidates_per_prompt], key=_likelihood, reverse=True
        )[:choices_per_prompt]
    ]


def _likelihood(choice: FinishedChoice) -> float:
    """Return the mean log probability of a choice's tokens; one without tokens is the least likely."""
    if not choice.logprobs:
        return -math.inf
    return sum(one.logprob for one in choice.logprobs) / len(choice.logprobs)
