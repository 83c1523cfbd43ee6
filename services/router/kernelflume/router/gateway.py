"""Answers a request from its arrival to its end: admit, read, run, write."""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from kernelflume.core.errors import KernelFlumeError
from kernelflume.core.retention import Retention
from kernelflume.router.body import discard_body, read_json_body
from kernelflume.router.choice import ChoiceText
from kernelflume.router.collecting import collect
from kernelflume.router.completion import Completion
from kernelflume.router.errors import ClientGoneError, api_error_of
from kernelflume.router.formats import AnswerHead
from kernelflume.router.identifiers import Identifiers
from kernelflume.router.job import ChoiceJob
from kernelflume.router.placer import Prompt
from kernelflume.router.prepared import Prepared
from kernelflume.router.ranking import best_of
from kernelflume.router.sampling import for_choice
from kernelflume.router.sessions import SESSION_HEADER, session_key
from kernelflume.router.streaming import ClientWatch, EventStreamResponse
from kernelflume.router.tenants import tenant_of
from kernelflume.router.traces import RequestTrace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from starlette.requests import Request

    from kernelflume.router.admission import Admission, Slot
    from kernelflume.router.bodyroom import BodyRoom
    from kernelflume.router.dispatch import Dispatcher
    from kernelflume.router.formats import AnswerFormat
    from kernelflume.router.intake import Intake
    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.router.order import Order
    from kernelflume.router.settings import RouterSettings
    from kernelflume.router.tenants import Tenant
    from kernelflume.router.tokenizer import Tokenizer
    from kernelflume.runtime.clock import Clock
    from kernelflume.runtime.tracing import Tracer

logger = logging.getLogger(__name__)

NODE_HEADER = "x-kernelflume-weight-node"
"""Header of an answer that names the weight node it was generated on."""


class Gateway:
    """The generating endpoints."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        intake: Intake,
        tokenizer: Tokenizer,
        dispatcher: Dispatcher,
        admission: Admission,
        bodies: BodyRoom,
        metrics: RouterMetrics,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._tokenizer = tokenizer
        self._dispatcher = dispatcher
        self._admission = admission
        self._bodies = bodies
        self._metrics = metrics
        self._clock = clock
        self._tracer = tracer
        self._identifiers = Identifiers()

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions.

        Raises:
            KernelFlumeError: the request is refused; nothing was sent yet.
        """
        trace = RequestTrace.begin(self._tracer, request, "chat")
        with trace.until_refused():
            return await self._answer(request, self._intake.read_chat, "chatcmpl", trace)

    async def complete(self, request: Request) -> Response:
        """Answer POST /v1/completions.

        Raises:
            KernelFlumeError: the request is refused; nothing was sent yet.
        """
        trace = RequestTrace.begin(self._tracer, request, "text_completion")
        with trace.until_refused():
            return await self._answer(request, self._intake.read_completion, "cmpl", trace)

    async def respond(self, request: Request) -> Response:
        """Answer POST /v1/responses.

        Raises:
            KernelFlumeError: the request is refused; nothing was sent yet.
        """
        trace = RequestTrace.begin(self._tracer, request, "chat")
        with trace.until_refused():
            return await self._answer(request, self._intake.read_responses, "resp", trace)

    async def _answer(
        self,
        request: Request,
        read: Callable[[bytes, Tenant], Awaitable[Order[Any]]],
        prefix: str,
        trace: RequestTrace,
    ) -> Response:
        arrived_at = self._clock.now()
        try:
            slot = await self._admission.enter(tenant_of(request.scope))
        except KernelFlumeError:
            await discard_body(request, timeout_s=self._settings.body_timeout)
            raise
        handed_over = False
        try:
            with self._bodies.enter(slot.tenant.tenant_id) as place:
                raw = await read_json_body(
                    request,
                    place,
                    max_bytes=self._settings.max_body_size,
                    timeout_s=self._settings.body_timeout,
                )
                order = await read(raw, slot.tenant)
                del raw
            slot.take_prompt(sum(map(len, order.prompts)))
            answer_id = f"{prefix}-{self._identifiers.new()}"
            trace.ordered(order, answer_id)
            prompts = _prompts(request, order)
            completion = self._new_completion(
                order, prompts, answer_id=answer_id, arrived_at=arrived_at, trace=trace, slot=slot
            )
            slot.work = completion
            with order.naming_faults():
                new_format = partial(self._new_format, order, answer_id)
                if not order.body.stream:
                    return await self._whole(request, order, completion, new_format, trace)
                response = await self._stream(request, completion, new_format, slot=slot, trace=trace)
                handed_over = True
                return response
        except ClientGoneError:
            self._metrics.disconnects.inc()
            raise
        finally:
            if not handed_over:
                slot.release()

    def _new_format(self, order: Order[Any], answer_id: str) -> AnswerFormat:
        body = order.body
        return order.new_format(
            AnswerHead(
                answer_id=answer_id,
                created=int(time.time()),
                model=order.model,
                prompts=order.prompts,
                choices_per_prompt=body.n,
                echoes=order.echoes,
                with_token_ids=body.return_token_ids,
                with_usage=body.include_usage,
                continuous_usage=body.continuous_usage,
                token_bytes=None if body.num_logprobs is None else self._tokenizer.token_bytes,
            )
        )

    def _new_completion(
        self,
        order: Order[Any],
        prompts: Sequence[Prompt],
        *,
        answer_id: str,
        arrived_at: float,
        trace: RequestTrace,
        slot: Slot,
    ) -> Completion:
        body = order.body
        jobs = [
            ChoiceJob(
                f"{answer_id}-{number * body.num_candidates + index}",
                prompt,
                for_choice(sampling, index),
                slot.tenant.tenant_id,
            )
            for number, (prompt, sampling) in enumerate(zip(prompts, order.samplings, strict=True))
            for index in range(body.num_candidates)
        ]
        return Completion(
            jobs,
            partial(self._new_text, order),
            num_prompt_tokens=sum(map(len, order.prompts)),
            choices_per_prompt=body.num_candidates,
            dispatcher=self._dispatcher,
            metrics=self._metrics,
            trace=trace,
            charge=slot.charge,
            clock=self._clock,
            arrived_at=arrived_at,
            stall_timeout_s=self._settings.stall_timeout,
        )

    def _new_text(self, order: Order[Any]) -> ChoiceText:
        body = order.body
        return ChoiceText(
            self._tokenizer.new_detokenizer(skip_special_tokens=body.skip_special_tokens, shown=order.shown),
            stops=body.stop,
            stop_token_ids=body.stop_token_ids,
            min_tokens=body.min_tokens,
            include_stop=body.include_stop_str_in_output,
            prompt_only=body.prompt_only,
            parser=order.new_parser(),
            called_reason=order.called_reason,
        )

    async def _whole(
        self,
        request: Request,
        order: Order[Any],
        completion: Completion,
        new_format: Callable[[], AnswerFormat],
        trace: RequestTrace,
    ) -> Response:
        answer_format = Prepared(new_format)
        watch = ClientWatch(request.receive)
        try:
            with watch:
                candidates = await collect(completion)
        finally:
            watch.close()
            completion.close()
        choices = best_of(
            candidates,
            candidates_per_prompt=order.body.num_candidates,
            choices_per_prompt=order.body.n,
        )
        answer = answer_format.get().whole(choices, completion.usage())
        trace.answered()
        return Response(
            json.dumps(answer, ensure_ascii=False).encode(),
            media_type="application/json",
            headers=_node_header(completion),
        )

    async def _stream(
        self,
        request: Request,
        completion: Completion,
        new_format: Callable[[], AnswerFormat],
        *,
        slot: Slot,
        trace: RequestTrace,
    ) -> Response:
        """Return the response once every choice has its first token: until then a failure has its status."""
        watch = ClientWatch(request.receive)
        response = Prepared(
            lambda: self._new_response(completion, new_format(), watch, slot=slot, trace=trace)
        )
        try:
            with watch:
                await completion.start()
            answer = response.get()
        except BaseException:
            watch.close()
            completion.close()
            raise
        # Known only now: another node may have taken the request over.
        answer.headers.update(_node_header(completion))
        return answer

    def _new_response(
        self,
        completion: Completion,
        answer_format: AnswerFormat,
        watch: ClientWatch,
        *,
        slot: Slot,
        trace: RequestTrace,
    ) -> EventStreamResponse:
        def close() -> None:
            completion.close()
            trace.answered()
            slot.release()

        return EventStreamResponse(
            _events(completion, answer_format),
            write_timeout_s=self._settings.write_timeout,
            slow_reader_timeout_s=self._settings.slow_reader_timeout,
            clock=self._clock,
            headers={},
            on_close=close,
            on_disconnect=self._metrics.disconnects.inc,
            watch=watch,
        )


def _prompts(request: Request, order: Order[Any]) -> list[Prompt]:
    """Return a request's prompts, with the session that they belong to as far as the client says."""
    body = order.body
    name = request.headers.get(SESSION_HEADER) or body.user or body.prompt_cache_key
    session = session_key(tenant_of(request.scope).tenant_id, name) if name else None
    is_shared = body.num_prompt_logprobs is None
    salt = tenant_of(request.scope).cache_salt(body.cache_salt)
    retention = Retention(body.prompt_cache_retention or "")
    return [
        Prompt(token_ids, session=session, salt=salt, is_shared=is_shared, retention=retention)
        for token_ids in order.prompts
    ]


def _node_header(completion: Completion) -> dict[str, str]:
    """Return the header that names the weight nodes of an answer."""
    return {NODE_HEADER: ", ".join(completion.node_ids)}


async def _events(completion: Completion, answer_format: AnswerFormat) -> AsyncGenerator[str, None]:
    text = answer_format.begin()
    try:
        async for news in completion.deltas():
            text += "".join([answer_format.events(index, delta, completion.usage) for index, delta in news])
            if text:
                yield text
                text = ""
    except KernelFlumeError as error:
        logger.warning("a stream failed: %s", error)
        yield text + answer_format.fail(api_error_of(error))
        return
    yield text + answer_format.end(completion.usage())
