"""From a request's body to what weight nodes are asked: checked, tokenized, fitted to the context."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from kernelflume.core.errors import InvalidRequestError, UnavailableError
from kernelflume.router.errors import ModelNotFoundError
from kernelflume.router.sampling import check_token_ids, fit_max_tokens, sampling_of
from kernelflume.router.schemas import ChatCompletionRequest, CompletionRequest, GenerationBody, parse
from kernelflume.router.weightnodes import ModelLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.router.sampling import GenerationDefaults
    from kernelflume.router.schemas import Prompt
    from kernelflume.router.tokenizer import Tokenizer
    from kernelflume.router.weightnodes import WeightNodes

COMPLETION_MAX_TOKENS = 16
"""What OpenAI's completions give a request that does not say how many tokens it wants."""
_LARGE_BODY_BYTES = 64 * 1024

B = TypeVar("B", bound=GenerationBody)


@dataclass(frozen=True, slots=True)
class Order(Generic[B]):
    """One request, ready to run."""

    body: B
    model: str
    """Name the answer gives the model."""
    prompts: Sequence[Sequence[int]]
    """Token ids of each prompt."""
    samplings: Sequence[SamplingParameters]
    """Of each prompt's first choice."""
    echoes: Sequence[str]
    """What each prompt's choices begin with."""


class Intake:
    """Reads requests. Holds nothing that changes but the view of the weight nodes."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        defaults: GenerationDefaults,
        nodes: WeightNodes,
        model_names: Sequence[str],
        max_model_len: int | None,
        max_choices: int,
        executor: Executor,
    ) -> None:
        """Make an intake.

        Args:
            tokenizer: of the model.
            defaults: sampling where a request is silent.
            nodes: say the model's limits.
            model_names: names the model is served under.
            max_model_len: a bound of the context besides the nodes' own.
            max_choices: most choices of one request.
            executor: where large bodies are parsed.
        """
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._nodes = nodes
        self._model_names = tuple(model_names)
        self._max_model_len = max_model_len
        self._max_choices = max_choices
        self._executor = executor

    def limits(self) -> ModelLimits:
        """Return the model's limits.

        Raises:
            UnavailableError: no weight node can serve, so nobody can say.
        """
        limits = self._nodes.limits()
        if limits is None:
            raise UnavailableError("no weight node can serve now")
        if self._max_model_len is None or self._max_model_len >= limits.max_model_len:
            return limits
        return ModelLimits(max_model_len=self._max_model_len, vocab_size=limits.vocab_size)

    async def read_chat(self, raw: bytes) -> Order[ChatCompletionRequest]:
        """Read the body of a chat completion.

        Raises:
            KernelFlumeError: the request cannot be served; the error says why.
        """
        body, model = await self._parse(ChatCompletionRequest, raw, num_prompts=lambda _: 1)
        limits = self.limits()
        begins = body.add_generation_prompt
        if begins is None:
            begins = not body.continue_final_message
        text = await self._tokenizer.render_chat(
            [message.for_template() for message in body.messages],
            add_generation_prompt=begins,
            continue_final_message=body.continue_final_message,
            template_kwargs=body.chat_template_kwargs,
        )
        prompt = await self._tokenize(text, body.add_special_tokens, limits, parameter="messages")
        sampling = self._sampling(body, prompt, None, limits)
        return Order(body, model, [prompt], [sampling], [""])

    async def read_completion(self, raw: bytes) -> Order[CompletionRequest]:
        """Read the body of a completion.

        Raises:
            KernelFlumeError: the request cannot be served; the error says why.
        """
        body, model = await self._parse(CompletionRequest, raw, num_prompts=lambda body: len(body.prompt))
        limits = self.limits()
        prompts: list[Sequence[int]] = []
        for prompt in body.prompt:
            if isinstance(prompt, str):
                prompts.append(
                    await self._tokenize(prompt, body.add_special_tokens, limits, parameter="prompt")
                )
            else:
                check_token_ids(prompt, vocab_size=limits.vocab_size, parameter="prompt")
                prompts.append(prompt)
        samplings = [self._sampling(body, prompt, COMPLETION_MAX_TOKENS, limits) for prompt in prompts]
        echoes = [self._echo(prompt) if body.echo else "" for prompt in body.prompt]
        return Order(body, model, prompts, samplings, echoes)

    async def _parse(self, kind: type[B], raw: bytes, *, num_prompts: Callable[[B], int]) -> tuple[B, str]:
        if len(raw) < _LARGE_BODY_BYTES:
            body = parse(kind, raw)
        else:
            body = await asyncio.get_running_loop().run_in_executor(self._executor, parse, kind, raw)
        model = self._model_names[0] if body.model is None else body.model
        if model not in self._model_names:
            raise ModelNotFoundError(f"The model `{model}` does not exist.")
        num_choices = body.n * num_prompts(body)
        if num_choices > self._max_choices:
            raise InvalidRequestError(
                f"n times the number of prompts may be at most {self._max_choices}, not {num_choices}",
                parameter="n",
            )
        return body, model

    async def _tokenize(
        self, text: str, add_special_tokens: bool, limits: ModelLimits, *, parameter: str
    ) -> list[int]:
        prompt = await self._tokenizer.encode(
            text, add_special_tokens=add_special_tokens, max_tokens=limits.max_model_len
        )
        if not prompt:
            if self._tokenizer.bos_token_id is None:
                raise InvalidRequestError(
                    "the prompt is empty, and the model has no bos token", parameter=parameter
                )
            prompt = [self._tokenizer.bos_token_id]
        check_token_ids(prompt, vocab_size=limits.vocab_size, parameter=parameter)
        return prompt

    def _sampling(
        self, body: GenerationBody, prompt: Sequence[int], default: int | None, limits: ModelLimits
    ) -> SamplingParameters:
        max_tokens = fit_max_tokens(
            body.wanted_tokens, default=default, num_prompt_tokens=len(prompt), limits=limits
        )
        return sampling_of(body, self._defaults, max_tokens=max_tokens, vocab_size=limits.vocab_size)

    def _echo(self, prompt: Prompt) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
