"""What a result says of each request, where it is asked for: as ``vllm bench serve --save-detailed``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelflume.cli.bench.answer import CANCELLED

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from kernelflume.cli.bench.answer import Answer
    from kernelflume.cli.bench.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Detail:
    """A request that ended, with what it was answered."""

    outcome: Outcome
    text: str
    token_ids: array[int]
    """Those that the server told."""
    gaps_s: array[float]
    """Between two events that brought something."""

    @classmethod
    def of(cls, outcome: Outcome, answer: Answer) -> Detail:
        """Keep an answer."""
        return cls(outcome, answer.text, answer.token_ids, answer.gaps_s)


def detail_fields(details: Sequence[Detail]) -> dict[str, Any]:
    """Return vLLM's lists, an item a request in the order of sending; times in seconds."""
    told = _told(details)
    return {
        "input_lens": [detail.outcome.num_prompt for detail in told],
        "output_lens": [detail.outcome.num_output for detail in told],
        "start_times": [detail.outcome.sent_s for detail in told],
        "ttfts": [detail.outcome.ttft_s or 0.0 for detail in told],
        "itls": [detail.gaps_s.tolist() for detail in told],
        "generated_texts": [detail.text for detail in told],
        "errors": [
            "" if detail.outcome.ok else detail.outcome.detail or detail.outcome.status for detail in told
        ],
    }


def own_detail_fields(details: Sequence[Detail]) -> list[dict[str, Any]]:
    """Return what vLLM's lists have no place for, in the same order."""
    return [
        {
            "session": detail.outcome.session,
            "turn": detail.outcome.turn,
            "status": detail.outcome.status,
            "node": detail.outcome.node,
            "prompt_tokens": detail.outcome.num_prompt,
            "cached_tokens": detail.outcome.num_cached,
            "infinite_cache_tokens": detail.outcome.hit_tokens,
            "token_ids": detail.token_ids.tolist(),
        }
        for detail in _told(details)
    ]


def _told(details: Sequence[Detail]) -> list[Detail]:
    told = [detail for detail in details if detail.outcome.status != CANCELLED]
    return sorted(told, key=lambda detail: detail.outcome.sent_s)
