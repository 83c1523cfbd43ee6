from __future__ import annotations

from kernelflume.core.sampling import TokenLogprobs
from kernelflume.router.formats import FinishedChoice
from kernelflume.router.ranking import best_of


def choice(text: str, *logprobs: float) -> FinishedChoice:
    told = [TokenLogprobs(logprob) for logprob in logprobs]
    return FinishedChoice(text, range(len(told)), "stop", None, told)


def test_the_best_by_the_mean_come_first_prompt_by_prompt() -> None:
    candidates = [
        choice("long", -1.0, -1.0, -1.0),
        choice("short", -2.0),
        choice("empty"),
        choice("other empty"),
        choice("unlikely", -9.0),
        choice("likely", -0.5, -0.1),
    ]
    found = best_of(candidates, candidates_per_prompt=3, choices_per_prompt=2)
    assert [one.text for one in found] == ["long", "short", "likely", "unlikely"]
    assert best_of(candidates, candidates_per_prompt=3, choices_per_prompt=3) == candidates
