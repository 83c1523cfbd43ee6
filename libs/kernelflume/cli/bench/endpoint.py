"""An endpoint that speaks OpenAI's API: its models, and answers streamed from it."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kernelflume.cli.bench.answer import CANCELLED, CONNECTION, INCOMPLETE, TIMEOUT, Answer
from kernelflume.cli.bench.connection import HttpConnection
from kernelflume.cli.bench.events import EventParser, apply_event, error_text
from kernelflume.core.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NODE_HEADER = "x-kernelflume-weight-node"
"""Header of an answer that names the weight node that served it."""
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """Where an endpoint is and how it is spoken to."""

    host: str
    port: int
    path: str
    """What the API's paths begin with, as `/v1`."""
    tls: ssl.SSLContext | None
    headers: tuple[tuple[str, str], ...]

    def head(self, method: str, path: str, body: bytes, extra: Mapping[str, str]) -> bytes:
        """Return the head of a request, with its empty line."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        fields = {
            "host": f"{host}:{self.port}",
            "content-type": "application/json",
            "content-length": str(len(body)),
            "accept": "*/*",
            **{name.lower(): value for name, value in self.headers},
            **extra,
        }
        lines = [f"{method} {self.path}{path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def parse_target(url: str, headers: tuple[tuple[str, str], ...], ca: Path | None) -> Target:
    """Return the target of a URL such as http://127.0.0.1:8000, with /v1 or without.

    Raises:
        ConfigurationError: the URL, a header or the CA file is no good.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"--base-url {url}: {error}") from error
    if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment or parts.username:
        raise ConfigurationError(f"--base-url {url}: not of the form http[s]://host[:port][/path]")
    for name, value in headers:
        if not name or not (name + value).isprintable() or not (name + value).isascii() or ":" in name:
            raise ConfigurationError(f"the header {name!r}, or the API key, holds what no header can")
    path = parts.path.rstrip("/")
    tls = None
    if parts.scheme == "https":
        try:
            tls = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except OSError as error:
            raise ConfigurationError(f"--ca {ca}: {error.strerror or error}") from error
    path = path if path.endswith("/v1") else f"{path}/v1"
    return Target(host, port or (80 if tls is None else 443), path, tls, headers)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that an endpoint offers."""

    name: str
    max_model_len: int | None
    """Longest prompt and answer together; None where the endpoint does not tell."""


class Endpoint:
    """Client of one endpoint. Connections are kept and used again; one task uses each at a time."""

    def __init__(self, target: Target, *, connect_timeout_s: float = 10.0) -> None:
        self._target = target
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[HttpConnection] = []

    def close(self) -> None:
        """Close the connections that are kept."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def models(self, *, timeout_s: float) -> list[ServedModel]:
        """Return the models that are served.

        Raises:
            UnavailableError: there is no such endpoint, or its answer is none.
        """
        where = f"{self._target.host}:{self._target.port}"
        try:
            async with asyncio.timeout(timeout_s):
                connection, status = await self._exchange("GET", "/models", b"", {})
                body = await _whole(connection, _MAX_ANSWER_BYTES)
                self._give_back(connection)
        except TimeoutError as error:
            raise UnavailableError(f"{where} did not answer within {timeout_s:g} s") from error
        except OSError as error:
            raise UnavailableError(f"nothing serves at {where}: {error.strerror or error}") from error
        if status != 200:
            raise UnavailableError(
                f"{where} answered {self._target.path}/models with {status}: {_said(body)}"
            )
        try:
            return [
                ServedModel(str(model["id"]), _positive(model.get("max_model_len")))
                for model in json.loads(body)["data"]
            ]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise UnavailableError(
                f"{where} answered {self._target.path}/models with no list of models"
            ) from error

    async def stream(
        self, path: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float, keep_text: bool
    ) -> Answer:
        """Send a request and return its answer once it has ended, whatever way it ended.

        Raises:
            asyncio.CancelledError: only after the answer's status was set; see ``Answer.status``.
        """
        answer, loop = Answer(), asyncio.get_running_loop()
        answer.sent_s = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream(answer, path, body, headers, keep_text=keep_text)
        except TimeoutError:
            answer.status, answer.detail = TIMEOUT, f"not within {timeout_s:g} s"
        except (OSError, UnavailableError) as error:
            began = answer.first_s is not None
            answer.status, answer.detail = INCOMPLETE if began else CONNECTION, str(error)
        except asyncio.CancelledError:
            # The run was interrupted: what came so far is part of its result.
            answer.status = CANCELLED
        answer.ended_s = loop.time()
        return answer

    async def _stream(
        self, answer: Answer, path: str, body: bytes, headers: Mapping[str, str], *, keep_text: bool
    ) -> None:
        connection, status = await self._exchange("POST", path, body, headers)
        try:
            answer.node = connection.headers.get(NODE_HEADER, "")
            if status != 200:
                answer.status = str(status)
                answer.detail = _said(await _whole(connection, _MAX_ERROR_BYTES))
            else:
                loop, parser = asyncio.get_running_loop(), EventParser()
                async for chunk in connection.chunks():
                    now_s = loop.time()
                    for data in parser.feed(chunk):
                        apply_event(answer, data, now_s, keep_text=keep_text)
                if answer.status == INCOMPLETE:
                    answer.detail = "the stream ended without [DONE]"
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    async def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[HttpConnection, int]:
        head = self._target.head(method, path, body, headers)
        while True:
            is_fresh = not self._idle
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                return connection, await connection.send(head, body)
            except (OSError, UnavailableError):
                connection.close()
                # A server may close an idle connection at any time: that is no failure of this request.
                if is_fresh or connection.answer_began:
                    raise
            except BaseException:
                connection.close()
                raise

    async def _connect(self) -> HttpConnection:
        target = self._target
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await HttpConnection.open(target.host, target.port, target.tls)
        except TimeoutError as error:
            raise UnavailableError(f"no connection within {self._connect_timeout_s:g} s") from error

    def _give_back(self, connection: HttpConnection) -> None:
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()


async def _whole(connection: HttpConnection, max_bytes: int) -> bytes:
    """Return a body, of which no more than ``max_bytes`` are read."""
    body = b""
    async for chunk in connection.chunks():
        body += chunk
        if len(body) > max_bytes:
            break
    return body[:max_bytes]


def _said(body: bytes) -> str:
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        fields = body.decode(errors="replace")
    return error_text(fields.get("error", fields) if isinstance(fields, dict) else fields)


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
