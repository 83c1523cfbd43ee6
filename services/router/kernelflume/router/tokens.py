"""Answers /tokenize and /detokenize, in vLLM's words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from kernelflume.router.body import read_json_body
from kernelflume.router.sampling import check_token_ids
from kernelflume.router.schemas import DetokenizeRequest, TokenizeRequest
from kernelflume.router.tenants import tenant_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from kernelflume.router.bodyroom import BodyPlace, BodyRoom
    from kernelflume.router.intake import Intake
    from kernelflume.router.settings import RouterSettings
    from kernelflume.router.tokenizer import Tokenizer


class TokenEndpoints:
    """The endpoints that show what tokens a text has. They use no weight node."""

    def __init__(
        self, settings: RouterSettings, *, intake: Intake, tokenizer: Tokenizer, bodies: BodyRoom
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._tokenizer = tokenizer
        self._bodies = bodies

    async def tokenize(self, request: Request) -> Response:
        """Answer POST /tokenize.

        Raises:
            KernelFlumeError: the request is refused.
        """
        with self._bodies.enter(tenant_of(request.scope).tenant_id) as place:
            return await self._tokenize(request, place)

    async def _tokenize(self, request: Request, place: BodyPlace) -> Response:
        body = await self._intake.read(TokenizeRequest, await self._read(request, place))
        limits = self._intake.limits()
        if body.messages is not None:
            token_ids = await self._intake.encode_chat(
                body.messages,
                [tool.function.to_tool() for tool in body.tools],
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                template_kwargs=body.chat_template_kwargs,
                add_special_tokens=bool(body.add_special_tokens),
                limits=limits,
            )
        else:
            token_ids = await self._tokenizer.encode(
                body.prompt or "",
                add_special_tokens=body.add_special_tokens is not False,
                max_tokens=limits.max_model_len,
            )
        return _answer(
            {
                "count": len(token_ids),
                "max_model_len": limits.max_model_len,
                "tokens": token_ids,
                "token_strs": list(map(self._tokenizer.token, token_ids)) if body.return_token_strs else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """Answer POST /detokenize.

        Raises:
            KernelFlumeError: the request is refused.
        """
        with self._bodies.enter(tenant_of(request.scope).tenant_id) as place:
            body = await self._intake.read(DetokenizeRequest, await self._read(request, place))
            check_token_ids(body.tokens, vocab_size=self._intake.limits().vocab_size, parameter="tokens")
            return _answer({"prompt": await self._tokenizer.decode_later(body.tokens)})

    async def _read(self, request: Request, place: BodyPlace) -> bytes:
        return await read_json_body(
            request, place, max_bytes=self._settings.max_body_size, timeout_s=self._settings.body_timeout
        )


def _answer(content: dict[str, Any]) -> Response:
    return Response(json.dumps(content, ensure_ascii=False).encode(), media_type="application/json")
