"""Flags that say how the command line calls the scaler (its token, and TLS), and where traces go."""

from __future__ import annotations

import functools
import inspect
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from kernelflume.cli.exits import errors_as_exit
from kernelflume.core.errors import ConfigurationError
from kernelflume.rpc.channel import Channels
from kernelflume.runtime.tls import TlsSettings, read_token
from kernelflume.runtime.tracing import TracingSettings

if TYPE_CHECKING:
    from collections.abc import Callable

TokenFile = Annotated[
    Path | None,
    typer.Option(envvar="KERNELFLUME_TOKEN_FILE", help="File with the token of the admin API."),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(envvar="KERNELFLUME_TLS_CA", help="PEM file with the CA of servers' certificates."),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(envvar="KERNELFLUME_TLS_CERTIFICATE", help="PEM file with a certificate to show."),
]
TlsKey = Annotated[
    Path | None, typer.Option(envvar="KERNELFLUME_TLS_KEY", help="PEM file with that certificate's key.")
]
TlsServerName = Annotated[
    str,
    typer.Option(envvar="KERNELFLUME_TLS_SERVER_NAME", help="Name in servers' certificates."),
]
TlsRequireClientCertificate = Annotated[
    bool,
    typer.Option("--tls-require-client-certificate", help="Refuse callers without a certificate of the CA."),
]


def with_channels(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these flags; it gets ``channels``, how the scaler is called, in their place."""

    @functools.wraps(command)
    def secured(*, token_file: Path | None, tls_server_name: str, **arguments: Any) -> None:
        files = {name: arguments.pop(f"tls_{name}") for name in ("ca", "certificate", "key")}
        with errors_as_exit():
            channels = admin_channels(tls_settings(**files, server_name=tls_server_name), token_file)
        command(**arguments, channels=channels)

    signature = inspect.signature(command)
    hints = typing.get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in signature.parameters.values()
        if parameter.name != "channels"
    ]
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in (
            ("token_file", TokenFile, None),
            ("tls_ca", TlsCa, None),
            ("tls_certificate", TlsCertificate, None),
            ("tls_key", TlsKey, None),
            ("tls_server_name", TlsServerName, ""),
        )
    ]
    # typer reads a command's flags from its signature; the wrapped function's must not shine through.
    del secured.__wrapped__
    parameters = [*own, *flags]
    secured.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    secured.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return secured


def tls_settings(**fields: Any) -> TlsSettings:
    """Return checked TLS settings of the given fields, each a flag without its ``--tls-``.

    Raises:
        ConfigurationError: they cannot be used; the message names the flag.
    """
    try:
        return TlsSettings(**fields)
    except ValidationError as error:
        raise ConfigurationError("; ".join(map(_explain, error.errors()))) from error


def tracing_settings(otlp_endpoint: str | None) -> TracingSettings:
    """Return where `kernelflume serve` lets its services send traces.

    Raises:
        ConfigurationError: that is no URL of http or https.
    """
    try:
        return TracingSettings(otlp_endpoint=otlp_endpoint)
    except ValidationError as error:
        raise ConfigurationError(f"--otlp-endpoint: {otlp_endpoint} is no http:// or https:// URL") from error


def admin_channels(tls: TlsSettings, token_file: Path | None) -> Channels:
    """Return how the scaler is called.

    Raises:
        ConfigurationError: a file cannot be read, or holds something else.
    """
    return Channels(tls=tls.open(), token=read_token("--token-file", token_file))


def _explain(fault: Any) -> str:
    message: str = fault["msg"].removeprefix("Value error, ").replace("tls.", "--tls-")
    return f"--tls-{'-'.join(fault['loc'])}: {message}" if fault["loc"] else message
