"""Options that several commands take."""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.figures import is_number
from kernelflume.core.roles import WeightNodeRole

DEFAULT_SCALER = "127.0.0.1:8100"

MAX_COUNT = 2**32 - 1
"""The largest number that a request can carry; how many nodes there may be is the scaler's to say."""

_PORTS_END = 65536
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_MAX_WAIT_S = 7 * 24 * 3600.0


def utf8(value: Any) -> Any:
    """Let an option's texts through that can be sent to a service: bytes of a shell may be none."""
    for text in [value] if isinstance(value, str) else value or ():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise typer.BadParameter(f"{text!r} is not UTF-8") from error
    return value


def device_name(text: str) -> str:
    """Let a device through that torch would know."""
    if not _DEVICE.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is none of cpu, cuda and cuda:N")
    return text


def device_names(text: str) -> str:
    """Let devices through that are separated by commas; none at all too."""
    for name in text.split(",") if text else ():
        device_name(name)
    return text


def weight_devices(text: str) -> str:
    """Let devices of weight nodes through: all of one kind, for they share attention nodes."""
    names = text.split(",")
    for name in names:
        device_name(name)
    if len({name.partition(":")[0] for name in names}) > 1:
        raise typer.BadParameter("weight nodes on CPUs and GPUs cannot share attention nodes")
    return text


def weight_roles(text: str) -> str:
    """Let roles of weight nodes through that are separated by commas; none at all too."""
    known = [str(role) for role in WeightNodeRole]
    for name in text.split(",") if text else ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return text


def chosen_roles(num_nodes: int | None, roles: str) -> tuple[WeightNodeRole, ...]:
    """Return the role of each weight node.

    Raises:
        ConfigurationError: the number and the roles disagree, or nobody takes one part of requests.
    """
    if not roles:
        return (WeightNodeRole.BOTH,) * (num_nodes or 1)
    chosen = tuple(map(WeightNodeRole, roles.split(",")))
    if num_nodes is not None and num_nodes != len(chosen):
        raise ConfigurationError(
            f"--weight-node-roles: {len(chosen)} roles for {num_nodes} weight nodes (--weight-nodes)"
        )
    if not any(role.takes_prompts for role in chosen):
        raise ConfigurationError("--weight-node-roles: none of the weight nodes takes prompts")
    if not any(role.takes_decoding for role in chosen):
        raise ConfigurationError("--weight-node-roles: none of the weight nodes takes what follows prompts")
    return chosen


def amounts(text: str) -> str:
    """Let an option's text through that is a JSON object of names and amounts above 0."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}") from error
    if not isinstance(found, dict) or not all(is_number(amount) and amount > 0 for amount in found.values()):
        raise typer.BadParameter(f'{text!r} is no JSON object like {{"name": 1}}')
    return text


def host_and_port(value: str) -> str:
    """Let an address through that has both."""
    host, _, port = utf8(value).rpartition(":")
    if not host or "//" in host or not port.isdecimal() or not 0 < int(port) < _PORTS_END:
        raise typer.BadParameter(f"{value!r} is not of the form host:port")
    return value


ScalerAddress = Annotated[
    str,
    typer.Option(
        "--scaler",
        envvar="KERNELFLUME_SCALER",
        callback=host_and_port,
        help="host:port of the scaler's admin API.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the result; exit code 1 unless it succeeded.")]
WaitTimeout = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.1, max=_MAX_WAIT_S, help="Longest wait in seconds; the operation goes on."
    ),
]
OperationId = Annotated[
    str | None,
    typer.Option(callback=utf8, help="Name of the operation, to repeat it safely. [default: a new one]"),
]
MODEL_HELP = "A Hugging Face folder, a .gguf file, or `smollm2`."

Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(
        help="Format of weights and activations; auto is float32 on a CPU, the model's own on a GPU."
    ),
]
KvCacheDtype = Annotated[
    Literal["auto", "fp8", "fp8_e4m3", "float32", "bfloat16", "float16"],
    typer.Option(
        help="Format that keys and values are kept in; auto is as --dtype, fp8 (fp8_e4m3) a byte a number."
    ),
]


LoadFormat = Annotated[
    Literal["auto", "dummy"],
    typer.Option(
        help="`dummy` draws random weights from --seed and reads none: the model's folder needs only "
        "config.json and a tokenizer. For benchmarks; what such a model answers is meaningless."
    ),
]


PlacementPolicy = Literal["least_loaded", "lmetric", "sticky", "unified", "ps_always", "cache_gate"]
"""As the router's setting, which says what they mean."""


def new_operation_id() -> str:
    """Return a name that no other operation has."""
    return f"cli-{uuid.uuid4().hex[:12]}"


def state_dir() -> Path:
    """Return the folder of log files where none is named."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "kernelflume"
