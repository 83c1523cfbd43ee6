"""What the bodies of all requests that generate share: sampling, stop strings, streaming, structure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from kernelflume.core.grammar import MAX_GRAMMAR_CHARS, Grammar
from kernelflume.core.sampling import MAX_BIASED_TOKENS
from kernelflume.router.schemas.base import RequestBody, Strict, at_most, refusal
from kernelflume.router.stopping import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS
from kernelflume.router.structured import ResponseFormat, StructuredOutputs, grammar_field, grammar_of

MAX_CHOICES_PER_PROMPT = 128
"""OpenAI's own limit for `n`."""
MAX_STOP_TOKEN_IDS = 128
CacheRetention = Literal["in_memory", "24h"]
"""How long what is computed of a prompt stays."""
MAX_TOKEN_IDS = 1 << 20
"""Of one text: more than any context has."""
MAX_LABELS = 128
MAX_CACHE_SALT_CHARS = 256

Labels = Annotated[dict[str, str], at_most(MAX_LABELS)]

TokenIds = Annotated[
    tuple[int, ...],
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}}),
]
_STOP_STRING = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_CHARS}
_STOP = {"anyOf": [_STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": MAX_STOP_STRINGS}]}
_LOGIT_BIAS = {
    "type": "object",
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": MAX_BIASED_TOKENS,
}


def _range(low: float, high: float | None = None) -> dict[str, Any]:
    """Describe the range of a number that is checked where all sampling parameters are."""
    return {"minimum": low} if high is None else {"minimum": low, "maximum": high}


class StreamOptions(Strict):
    """What a stream carries besides the text."""

    include_usage: bool = False
    """End with a chunk that has the usage and no choice."""
    continuous_usage_stats: bool = False
    """Each chunk has the usage so far; needs include_usage."""
    include_obfuscation: bool = False
    """Accepted, for nothing is added to chunks whatever it says."""


class GenerationBody(RequestBody):
    """What all kinds of request share."""

    serves_best_of: ClassVar[bool] = False
    """More choices may be made than are given."""

    max_tokens: int | None = Field(default=None, json_schema_extra=_range(1))
    """Most tokens a choice may have."""
    min_tokens: int = Field(default=0, json_schema_extra=_range(0))
    """Fewest tokens a choice has: before, no eos, stop token or stop string ends it."""
    temperature: float | None = Field(default=None, json_schema_extra=_range(0, 100))
    """0 takes the most likely token. Default: the model's generation_config, else 1."""
    top_p: float | None = Field(default=None, json_schema_extra={"exclusiveMinimum": 0, "maximum": 1})
    top_k: int | None = Field(default=None, json_schema_extra=_range(-1))
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float | None = Field(default=None, json_schema_extra=_range(0, 1))
    seed: int | None = Field(default=None, json_schema_extra=_range(-(2**63), 2**63 - 1))
    """With n choices, choice i uses seed + i."""
    presence_penalty: float = Field(default=0.0, json_schema_extra=_range(-2, 2))
    frequency_penalty: float = Field(default=0.0, json_schema_extra=_range(-2, 2))
    repetition_penalty: float | None = Field(
        default=None, json_schema_extra={"exclusiveMinimum": 0, "maximum": 10}
    )
    n: int = Field(default=1, ge=1, le=MAX_CHOICES_PER_PROMPT)
    best_of: int | None = Field(default=None, json_schema_extra=_range(1))
    """Choices to make, of which the n with the highest mean log probability are given. In a chat only n
    itself is served."""
    stop: Annotated[tuple[str, ...], WithJsonSchema(_STOP)] = ()
    """Strings that end a choice: at most 16, of at most 1,024 characters each."""
    stop_token_ids: TokenIds = Field(
        default=(), strict=False, json_schema_extra={"maxItems": MAX_STOP_TOKEN_IDS}
    )
    """Token ids that end a choice: at most 128."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: Annotated[tuple[tuple[int, float], ...], WithJsonSchema(_LOGIT_BIAS)] = ()
    """Token id -> what is added to its logit, -100 to 100."""
    allowed_token_ids: TokenIds = ()
    """Only these tokens may be chosen; empty allows all."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    """Older name of structured_outputs.json, as the next three of its other fields."""
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(fail_fast=True, max_length=MAX_GRAMMAR_CHARS)] | None = None
    guided_grammar: str | None = None
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    """Give the prompt's and the choices' token ids as well."""
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_CACHE_SALT_CHARS)
    """Only requests of one key with the same salt share what was computed of their prompts."""
    user: str | None = None
    """Names the session that the request belongs to, where the header x-session-id does not."""
    prompt_cache_key: str | None = None
    """Names the session where neither of them does."""
    prompt_cache_retention: CacheRetention | None = None
    """24h keeps what is computed of the prompt for a day after its last use, as far as nodes have room for
    such; in_memory ends that. Default: what earlier requests asked for holds."""
    metadata: Labels | None = None
    """Labels of the caller's own; not used."""

    @field_validator("stop", mode="before")
    @classmethod
    def _read_stop(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
            raise refusal("stop must be a string or a list of strings")
        if len(stops) > MAX_STOP_STRINGS:
            raise refusal(f"stop may have at most {MAX_STOP_STRINGS} strings, not {len(stops)}")
        if not all(0 < len(item) <= MAX_STOP_STRING_CHARS for item in stops):
            raise refusal(f"each stop string must have 1 to {MAX_STOP_STRING_CHARS} characters")
        return tuple(stops)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _read_logit_bias(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise refusal("logit_bias must be an object of numbers by token id")
        if len(value) > MAX_BIASED_TOKENS:
            raise refusal(f"logit_bias may have at most {MAX_BIASED_TOKENS} tokens, not {len(value)}")
        if not all(_is_number(bias) for bias in value.values()):
            raise refusal("logit_bias must be an object of numbers by token id")
        # As the id is written, so that no two keys name one token.
        if not all(key.isascii() and key.isdigit() and str(int(key[:10])) == key for key in value):
            raise refusal("the keys of logit_bias must be token ids")
        return tuple((int(key), float(bias)) for key, bias in value.items())

    @field_validator("allowed_token_ids", mode="before")
    @classmethod
    def _read_allowed_token_ids(cls, value: Any) -> Any:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise refusal("allowed_token_ids must be a list of integers")
        return tuple(value)

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _read_stop_token_ids(cls, value: Any) -> Any:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise refusal("stop_token_ids must be a list of integers")
        if len(value) > MAX_STOP_TOKEN_IDS:
            raise refusal(f"stop_token_ids may have at most {MAX_STOP_TOKEN_IDS} ids, not {len(value)}")
        return tuple(value)

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.best_of is None or self.best_of == self.n:
            return self
        if not self.serves_best_of:
            raise refusal(f"best_of is not supported here unless it is n, which is {self.n}", param="best_of")
        if self.best_of < self.n:
            raise refusal(f"best_of must be at least n, which is {self.n}", param="best_of")
        if self.stream:
            raise refusal(
                "best_of cannot be used with stream: which choices are best is known at their end",
                param="best_of",
            )
        return self

    def without_prompt(self) -> Self:
        """Return the same without what only makes the prompt, which may be large."""
        raise NotImplementedError

    @property
    def num_candidates(self) -> int:
        """Choices that are made of each prompt: n, or more to pick those from."""
        return self.n if self.best_of is None else self.best_of

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        options = self.stream_options
        if options is not None and not self.stream:
            raise refusal("stream_options is only allowed when stream is true", param="stream_options")
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            raise refusal(
                "continuous_usage_stats is only allowed when include_usage is true", param="stream_options"
            )
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """Most tokens a choice may have, if the request says so."""
        return self.max_tokens

    @property
    def prompt_only(self) -> bool:
        """True when nothing is to be generated: the prompt comes back, mostly for its log probabilities."""
        return False

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to tell the likelihood of beside each token's own; None: tell nothing."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for the prompt's tokens."""
        return None

    @property
    def include_usage(self) -> bool:
        """True when a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """True when each chunk of a stream has the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def grammar(self) -> Grammar | None:
        """Return what the text must look like, or None if anything will do.

        Raises:
            InvalidRequestError: fields contradict each other, or what one asks for is malformed.
        """
        return grammar_of(self)

    def own_name(self, parameter: str | None) -> str | None:
        """Return what the request calls a parameter that a weight node complains of."""
        if parameter in {"response_format", "structured_outputs"}:
            return grammar_field(self) or parameter
        return parameter


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
