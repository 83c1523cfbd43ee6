"""How the next token of a request is chosen and when the request ends: one value, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kernelflume.core.errors import InvalidRequestError

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: dividing by them is past what float32 holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """Sampling fields with vLLM's meanings; a temperature of 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    seed: int | None = None
    """Same seed, same prompt, same tokens, whatever else is in the batch."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        bounds: tuple[tuple[str, float, float, float], ...] = (
            ("temperature", self.temperature, 0.0, 100.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("top_k", self.top_k, -1, float("inf")),
            ("max_tokens", self.max_tokens, 1, float("inf")),
            ("min_tokens", self.min_tokens, 0, float("inf")),
        )
        for name, value, low, high in bounds:
            if not low <= value <= high:
                limit = f"between {low:g} and {high:g}" if high != float("inf") else f"at least {low:g}"
                raise InvalidRequestError(f"{name} must be {limit}, not {value}", parameter=name)
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(f"top_p must be in (0, 1], not {self.top_p}", parameter="top_p")
        if not 0.0 < self.repetition_penalty <= 10.0:
            raise InvalidRequestError(
                f"repetition_penalty must be in (0, 10], not {self.repetition_penalty}",
                parameter="repetition_penalty",
            )
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise InvalidRequestError("seed must fit 64 bits", parameter="seed")
        if self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}", parameter="min_tokens"
            )

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """True when tokens seen before change the distribution."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words plus ``abort``."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
