"""Flags that say how the command line calls the scaler (its token, and TLS), and where traces go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from kernelflume.core.errors import ConfigurationError
from kernelflume.rpc.channel import Channels
from kernelflume.runtime.tls import TlsSettings, read_token
from kernelflume.runtime.tracing import TracingSettings

TokenFile = Annotated[
    Path | None,
    typer.Option(envvar="KERNELFLUME_TOKEN_FILE", help="File with the token of the scaler's admin API."),
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
    return Channels(tls=tls.read(), token=read_token("--token-file", token_file))


def _explain(fault: Any) -> str:
    message: str = fault["msg"].removeprefix("Value error, ").replace("tls.", "--tls-")
    return f"--tls-{'-'.join(fault['loc'])}: {message}" if fault["loc"] else message
