"""From a request's fields and the model's own defaults to sampling parameters. Pure but for the loading."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.core.sampling import SamplingParameters
from kernelflume.router.errors import ContextLengthError

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.router.schemas import GenerationBody
    from kernelflume.router.weightnodes import ModelLimits

_SEED_RANGE = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """What the model's authors want where a request is silent; the values of no effect otherwise."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read generation_config.json of a model's folder, if there is one.

        Raises:
            ConfigurationError: it cannot be read, or a value in it is out of range.
        """
        path = folder / "generation_config.json"
        if not path.is_file():
            return cls()
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            names = [field.name for field in fields(cls)]
            found = {name: config[name] for name in names if config.get(name) is not None}
            SamplingParameters(**found)
        except (ValueError, TypeError, AttributeError, InvalidRequestError) as error:
            raise ConfigurationError(f"model: bad {path}: {error}") from error
        return cls(**found)


def fit_max_tokens(
    wanted: int | None, *, default: int | None, num_prompt_tokens: int, limits: ModelLimits
) -> int:
    """Return how many tokens a choice may have.

    Args:
        wanted: what the request says.
        default: what a silent request gets, as far as the context allows; None: all that the context allows.
        num_prompt_tokens: tokens of the prompt.
        limits: of the model.

    Raises:
        ContextLengthError: prompt and wanted tokens do not fit the context.
    """
    remaining = limits.max_model_len - num_prompt_tokens
    if wanted is not None and wanted > remaining:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + wanted} tokens ({num_prompt_tokens} in the prompt, {wanted} in the "
            "completion). Please reduce the length of the prompt or of the completion.",
            parameter="max_tokens",
        )
    if remaining < 1:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_model_len} tokens, and the prompt alone has "
            f"{num_prompt_tokens}. Please reduce the length of the prompt."
        )
    if wanted is not None:
        return wanted
    return remaining if default is None else min(default, remaining)


def check_token_ids(token_ids: tuple[int, ...] | list[int], *, vocab_size: int, parameter: str) -> None:
    """Refuse ids that the model does not have.

    Raises:
        InvalidRequestError: an id is out of the vocabulary.
    """
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        bad = next(number for number in token_ids if not 0 <= number < vocab_size)
        raise InvalidRequestError(
            f"token id {bad} is out of the vocabulary, which has ids 0 to {vocab_size - 1}",
            parameter=parameter,
        )


def sampling_of(
    body: GenerationBody, defaults: GenerationDefaults, *, max_tokens: int, vocab_size: int
) -> SamplingParameters:
    """Return the sampling parameters of a request's first choice.

    Raises:
        InvalidRequestError: a value is out of range.
    """
    for name, token_ids in (
        ("stop_token_ids", body.stop_token_ids),
        ("allowed_token_ids", body.allowed_token_ids),
        ("logit_bias", tuple(token_id for token_id, _ in body.logit_bias)),
    ):
        check_token_ids(token_ids, vocab_size=vocab_size, parameter=name)
    top_k = defaults.top_k if body.top_k is None else body.top_k
    return SamplingParameters(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        # As many as there are, or more, keeps all.
        top_k=0 if top_k >= vocab_size else top_k,
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=(
            defaults.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty
        ),
        # A weight node generates at least one token; where only the prompt is wanted, it is dropped.
        max_tokens=1 if body.prompt_only else max_tokens,
        min_tokens=body.min_tokens,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        logit_bias=body.logit_bias,
        allowed_token_ids=body.allowed_token_ids,
        # Whether they are told or not, the best of several choices are found by them.
        logprobs=0 if body.num_logprobs is None and body.num_candidates > body.n else body.num_logprobs,
        prompt_logprobs=body.num_prompt_logprobs,
        grammar=body.grammar(),
    )


def for_choice(sampling: SamplingParameters, index: int) -> SamplingParameters:
    """Return the parameters of choice ``index`` of a prompt: with a seed each has one of its own."""
    if sampling.seed is None or index == 0:
        return sampling
    # Wraps around within 64 bits, signed.
    seed = (sampling.seed + index + _SEED_RANGE // 2) % _SEED_RANGE - _SEED_RANGE // 2
    return replace(sampling, seed=seed)
