"""Parameters of the command as a person writes them, checked before anything is done."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec

import typer

from kernelflume.cli.bench.draws import Draws
from kernelflume.cli.options import utf8
from kernelflume.core.errors import ConfigurationError


def id_range(text: str) -> str:
    """Let a range of token ids through."""
    found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise typer.BadParameter(f"{text!r} is not of the form LOW-HIGH")
    return text


def drawn(text: str) -> str:
    """Let a distribution through that can be read."""
    try:
        Draws.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def object_fields(text: str) -> str:
    """Let a JSON object through."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}") from error
    except RecursionError as error:
        raise typer.BadParameter("it is nested too deeply") from error
    if not isinstance(fields, dict):
        raise typer.BadParameter(f"{text!r} is no JSON object")
    return text


def header_lines(texts: list[str] | None) -> list[str] | None:
    """Let headers through that have a name and a value."""
    for text in utf8(texts) or ():
        if not text.partition(":")[2]:
            raise typer.BadParameter(f"{text!r} is not of the form NAME:VALUE")
    return texts


def finite(value: float | None) -> float | None:
    """Let a number through that is finite."""
    if value is not None and not abs(value) < float("inf"):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


def request_headers(header: list[str] | None, api_key_env: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of every request, the API key's among them if the environment has one."""
    headers = []
    if key := os.environ.get(api_key_env):
        headers.append(("authorization", f"Bearer {key}"))
    for text in header or ():
        name, _, value = text.partition(":")
        headers.append((name.strip(), value.strip()))
    return tuple(headers)


def require_client() -> None:
    """Refuse to go on without what the client is made of.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    if find_spec("httptools") is None:
        raise ConfigurationError("this needs more packages: pip install 'kernelflume[bench]'")
