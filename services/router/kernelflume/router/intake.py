"""From a request's body to what weight nodes are asked: checked, tokenized, fitted to the context."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kernelflume.core.errors import InvalidRequestError, UnavailableError
from kernelflume.core.sampling import FinishReason
from kernelflume.router.bodyroom import SMALL_BODY_BYTES
from kernelflume.router.choice import TOOL_CALLS
from kernelflume.router.errors import ModelNotFoundError
from kernelflume.router.formats import ChatFormat, CompletionFormat, ResponsesFormat
from kernelflume.router.order import Order
from kernelflume.router.sampling import check_token_ids, fit_max_tokens, sampling_of
from kernelflume.router.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationBody,
    RequestBody,
    ResponsesRequest,
    parse,
)
from kernelflume.router.schemas.responses import own_name
from kernelflume.router.tools.prompt import without_tools
from kernelflume.router.tools.registry import knows_tools
from kernelflume.router.tools.use import ToolMode
from kernelflume.router.weightnodes import ModelLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.router.formats import AnswerFormat, AnswerHead
    from kernelflume.router.sampling import GenerationDefaults
    from kernelflume.router.schemas import Prompt
    from kernelflume.router.schemas.messages import ChatMessage
    from kernelflume.router.tenants import Tenant
    from kernelflume.router.tokenizer import Tokenizer
    from kernelflume.router.tools.calls import Tool, ToolFormat
    from kernelflume.router.weightnodes import WeightNodes
    from kernelflume.router.workers import Workers

COMPLETION_MAX_TOKENS = 16
"""What OpenAI's completions give a request that does not say how many tokens it wants."""

R = TypeVar("R", bound=RequestBody)


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
        tool_format: ToolFormat,
        workers: Workers,
    ) -> None:
        """Make an intake.

        Args:
            tokenizer: of the model.
            defaults: sampling where a request is silent.
            nodes: say the model's limits.
            model_names: names the model is served under.
            max_model_len: a bound of the context besides the nodes' own.
            max_choices: most choices of one request.
            tool_format: how the model writes tool calls.
            workers: parse large bodies.
        """
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._nodes = nodes
        self._model_names = tuple(model_names)
        self._max_model_len = max_model_len
        self._max_choices = max_choices
        self._tool_format = tool_format
        self._template_knows_tools = knows_tools(tokenizer.tool_template)
        self._workers = workers

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

    async def read_chat(self, raw: bytes, tenant: Tenant) -> Order[ChatCompletionRequest]:
        """Read the body of a chat completion.

        Raises:
            KernelFlumeError: the request cannot be served; the error says why.
        """
        body = await self.read(ChatCompletionRequest, raw)
        return await self._order_chat(body, ChatFormat, tenant)

    async def read_responses(self, raw: bytes, tenant: Tenant) -> Order[ChatCompletionRequest]:
        """Read the body of a response, as the chat completion that it is.

        Raises:
            KernelFlumeError: the request cannot be served; the error says why.
        """
        request = await self.read(ResponsesRequest, raw)
        try:
            shown = request.without_input()
            order = await self._order_chat(request.to_chat(), partial(ResponsesFormat, shown), tenant)
        except InvalidRequestError as error:
            error.parameter = own_name(error.parameter)
            raise
        return replace(order, own_name=own_name)

    async def _order_chat(
        self,
        body: ChatCompletionRequest,
        new_format: Callable[[AnswerHead], AnswerFormat],
        tenant: Tenant,
    ) -> Order[ChatCompletionRequest]:
        self._check_choices(body, num_prompts=1)
        limits = self.limits()
        use = body.tool_use()
        prompt = await self.encode_chat(
            body.messages,
            use.shown,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=body.chat_template_kwargs,
            add_special_tokens=body.add_special_tokens,
            limits=limits,
            owner=tenant.cache_salt(body.cache_salt),
        )
        sampling = self._sampling(body, prompt, None, limits)
        return Order(
            body.without_prompt(),
            self.model_name(body),
            [prompt],
            [sampling],
            [""],
            new_format,
            partial(use.new_parser, self._tool_format, guided=sampling.grammar is not None),
            self._tool_format.tags if use.active else frozenset(),
            # OpenAI tells of a call by the reason only where the model chose to make one.
            FinishReason.STOP if use.mode is ToolMode.NAMED else TOOL_CALLS,
        )

    async def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool],
        *,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        template_kwargs: dict[str, Any],
        add_special_tokens: bool,
        limits: ModelLimits,
        owner: str | None = None,
    ) -> list[int]:
        """Return a conversation as token ids; ``owner`` as in ``Tokenizer.encode``.

        Raises:
            InvalidRequestError: the chat template refuses it.
        """
        knows = self._template_knows_tools
        plain = [message.for_template(as_objects=knows) for message in messages]
        if not knows:
            plain = without_tools(plain, tools, self._tool_format)
        begins = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        text = await self._tokenizer.render_chat(
            plain,
            add_generation_prompt=begins,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
            tools=[tool.to_template() for tool in tools] if knows and tools else None,
            with_tools=knows and (bool(tools) or any(message.about_tools for message in messages)),
        )
        return await self.encode(text, add_special_tokens, limits, parameter="messages", owner=owner)

    async def read_completion(self, raw: bytes, tenant: Tenant) -> Order[CompletionRequest]:
        """Read the body of a completion.

        Raises:
            KernelFlumeError: the request cannot be served; the error says why.
        """
        body = await self.read(CompletionRequest, raw)
        self._check_choices(body, num_prompts=len(body.prompt))
        limits = self.limits()
        owner = tenant.cache_salt(body.cache_salt)
        prompts: list[Sequence[int]] = []
        for prompt in body.prompt:
            if isinstance(prompt, str):
                special = body.add_special_tokens
                prompts.append(await self.encode(prompt, special, limits, parameter="prompt", owner=owner))
            else:
                check_token_ids(prompt, vocab_size=limits.vocab_size, parameter="prompt")
                prompts.append(prompt)
        samplings = [self._sampling(body, prompt, COMPLETION_MAX_TOKENS, limits) for prompt in prompts]
        echoes = [self._echo(prompt) if body.echo else "" for prompt in body.prompt]
        return Order(
            body.without_prompt(), self.model_name(body), prompts, samplings, echoes, CompletionFormat
        )

    async def read(self, kind: type[R], raw: bytes) -> R:
        """Read a body and check that the model it names is served.

        Raises:
            InvalidRequestError: the body is bad.
            OverloadedError: it is large, and nobody came to read it in time.
            ModelNotFoundError: the model is another one.
        """
        if len(raw) <= SMALL_BODY_BYTES:
            body = parse(kind, raw)
        else:
            body = await self._workers.run(partial(parse, kind, raw))
        self.model_name(body)
        return body

    def model_name(self, body: RequestBody) -> str:
        """Return the name that the answer gives the model.

        Raises:
            ModelNotFoundError: the request names another model.
        """
        name = self._model_names[0] if body.model is None else body.model
        if name not in self._model_names:
            raise ModelNotFoundError(f"The model `{name}` does not exist.")
        return name

    def _check_choices(self, body: GenerationBody, *, num_prompts: int) -> None:
        num_choices = body.num_candidates * num_prompts
        if num_choices > self._max_choices:
            name = "n" if body.num_candidates == body.n else "best_of"
            raise InvalidRequestError(
                f"{name} times the number of prompts may be at most {self._max_choices}, not {num_choices}",
                parameter=name,
            )

    async def encode(
        self,
        text: str,
        add_special_tokens: bool,
        limits: ModelLimits,
        *,
        parameter: str,
        owner: str | None = None,
    ) -> list[int]:
        """Return a prompt as token ids, one at least.

        Raises:
            InvalidRequestError: it is far too long, or empty and the model has no bos token.
        """
        prompt = await self._tokenizer.encode(
            text, add_special_tokens=add_special_tokens, max_tokens=limits.max_model_len, owner=owner
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
