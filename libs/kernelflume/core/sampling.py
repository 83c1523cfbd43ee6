"""How the next token of a request is chosen and when the request ends: one value, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from kernelflume.core.grammar import Grammar

MAX_LOGPROBS = 20
"""Most alternatives whose likelihoods are told for a token; OpenAI's own limit."""
MAX_LOGIT_BIAS = 100.0
"""OpenAI's own limit."""
MAX_BIASED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 4096
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
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit), each token once."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only these tokens may be chosen; empty allows all."""
    logprobs: int | None = None
    """Tell each chosen token's log probability, and those of this many of the most likely tokens; None tells
    nothing. They are the model's own: before temperature, penalties, bias and grammar."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, the first aside."""
    grammar: Grammar | None = None
    """What the text must look like."""

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
        self._check_bias()
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise InvalidRequestError(
                    f"{name} must be between 0 and {MAX_LOGPROBS}, not {count}", parameter=name
                )

    def _check_bias(self) -> None:
        for name, count, limit in (
            ("logit_bias", len(self.logit_bias), MAX_BIASED_TOKENS),
            ("allowed_token_ids", len(self.allowed_token_ids), MAX_ALLOWED_TOKENS),
        ):
            if count > limit:
                raise InvalidRequestError(
                    f"{name} may have at most {limit} tokens, not {count}", parameter=name
                )
        if len(dict(self.logit_bias)) != len(self.logit_bias):
            raise InvalidRequestError("logit_bias names a token twice", parameter="logit_bias")
        for token, bias in self.logit_bias:
            if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
                raise InvalidRequestError(
                    f"logit_bias of token {token} must be between {-MAX_LOGIT_BIAS:g} and "
                    f"{MAX_LOGIT_BIAS:g}, not {bias}",
                    parameter="logit_bias",
                )
        if self.grammar is not None and self.allowed_token_ids:
            # Together they may leave no token at all.
            raise InvalidRequestError(
                "allowed_token_ids cannot be combined with a grammar", parameter="allowed_token_ids"
            )

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """True when tokens seen before change the distribution."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def has_rules(self) -> bool:
        """True when more than temperature, filters, ``min_tokens`` and the grammar bears on logits."""
        return bool(self.has_penalties or self.logit_bias or self.allowed_token_ids)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model found one token, and which tokens it found likeliest; natural logarithms."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token, log probability), the likeliest first; as many as asked for."""


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words plus ``abort``."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
