from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.core.sampling import SamplingParameters
from kernelflume.router.errors import ContextLengthError
from kernelflume.router.sampling import GenerationDefaults, fit_max_tokens, for_choice, sampling_of
from kernelflume.router.schemas import CompletionRequest, parse
from kernelflume.router.weightnodes import ModelLimits

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = ModelLimits(max_model_len=100, vocab_size=50)


@pytest.mark.parametrize(
    ("wanted", "default", "num_prompt_tokens", "fitted"),
    [(10, None, 90, 10), (None, None, 90, 10), (None, 16, 10, 16), (None, 16, 90, 10), (100, 16, 0, 100)],
)
def test_tokens_are_fitted_to_the_context(
    wanted: int | None, default: int | None, num_prompt_tokens: int, fitted: int
) -> None:
    assert (
        fit_max_tokens(wanted, default=default, num_prompt_tokens=num_prompt_tokens, limits=LIMITS) == fitted
    )


@pytest.mark.parametrize(("wanted", "num_prompt_tokens"), [(11, 90), (None, 100), (None, 500), (1, 100)])
def test_what_does_not_fit_is_refused(wanted: int | None, num_prompt_tokens: int) -> None:
    with pytest.raises(ContextLengthError, match="maximum context length is 100 tokens"):
        fit_max_tokens(wanted, default=16, num_prompt_tokens=num_prompt_tokens, limits=LIMITS)


def test_the_models_defaults_fill_what_a_request_leaves_open(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_k": 20, "eos_token_id": 2, "top_p": None, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    defaults = GenerationDefaults.load(tmp_path)
    assert defaults == GenerationDefaults(temperature=0.6, top_k=20)
    silent = parse(CompletionRequest, b'{"prompt":"a"}')
    assert sampling_of(silent, defaults, max_tokens=3, vocab_size=50) == SamplingParameters(
        temperature=0.6, top_k=20, max_tokens=3
    )
    outspoken = parse(CompletionRequest, b'{"prompt":"a","temperature":0,"top_k":-1}')
    assert sampling_of(outspoken, defaults, max_tokens=3, vocab_size=50) == SamplingParameters(
        temperature=0.0, top_k=-1, max_tokens=3
    )


@pytest.mark.parametrize("content", ["{", "[]", '{"temperature": -1}', '{"top_k": "x"}'])
def test_bad_defaults_stop_the_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"generation_config\.json"):
        GenerationDefaults.load(tmp_path)


def test_without_a_file_the_defaults_have_no_effect(tmp_path: Path) -> None:
    assert GenerationDefaults.load(tmp_path) == GenerationDefaults()


def test_stop_tokens_out_of_the_vocabulary_are_refused() -> None:
    body = parse(CompletionRequest, b'{"prompt":"a","stop_token_ids":[3,50]}')
    with pytest.raises(InvalidRequestError, match="token id 50"):
        sampling_of(body, GenerationDefaults(), max_tokens=3, vocab_size=50)


def test_each_choice_has_a_seed_of_its_own_within_64_bits() -> None:
    assert for_choice(SamplingParameters(seed=None), 3).seed is None
    assert [for_choice(SamplingParameters(seed=5), index).seed for index in range(3)] == [5, 6, 7]
    assert for_choice(SamplingParameters(seed=2**63 - 1), 1).seed == -(2**63)
