"""Tracing as the services see it: spans, their context in gRPC metadata, and a tracer that does nothing.

OpenTelemetry is behind it (``runtime.otel``) and is imported only where an endpoint is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from enum import StrEnum
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from kernelflume.core.errors import ConfigurationError

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]
Headers = tuple[tuple[str, str], ...]
"""W3C trace context as gRPC metadata or HTTP headers; empty without tracing."""
_NUM_TRACEPARENT_PARTS = 4
IncomingHeaders = Iterable[tuple[str, str | bytes]]


def ids_of(headers: Headers) -> Mapping[str, str]:
    """Return the ids of trace and span that headers carry, as log lines name them; none without tracing."""
    for name, value in headers:
        if name == "traceparent" and len(parts := value.split("-")) >= _NUM_TRACEPARENT_PARTS:
            return {"trace_id": parts[1], "span_id": parts[2]}
    return {}


class TracingSettings(BaseModel):
    """Where traces go; nowhere by default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    otlp_endpoint: str | None = Field(default=None, pattern="^https?://.+")
    """OTLP over gRPC, like http://127.0.0.1:4317; https verifies the collector. Needs the `otel` extra. The
    exporter's other settings are OpenTelemetry's own, such as OTEL_EXPORTER_OTLP_HEADERS."""
    service_name: str = ""
    """Name of this service in traces; kernelflume-router and so on by default."""
    sample_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of traces that are recorded when the caller brings no decision of its own."""

    def flags(self) -> list[str]:
        """Return the command-line flags that make another service send its traces to the same place."""
        if self.otlp_endpoint is None:
            return []
        return [
            f"--tracing.otlp-endpoint={self.otlp_endpoint}",
            f"--tracing.sample-ratio={self.sample_ratio}",
        ]


TRACES_GRACE_S = 3.0
"""How long a service that ends waits for its last spans to be sent."""


class SpanKind(StrEnum):
    """Which side of a call a span is."""

    INTERNAL = "internal"
    CLIENT = "client"
    SERVER = "server"


class Span(Protocol):
    """One operation in a trace. Used in one event loop; never blocks. Calls after ``end`` do nothing."""

    @property
    def recording(self) -> bool:
        """False where nothing would be kept: not sampled, ended, or no tracing."""
        ...

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        ...

    def event(self, name: str, attributes: Attributes | None = None, *, after_s: float | None = None) -> None:
        """Add an event: now, or ``after_s`` seconds after the span's start."""
        ...

    def fail(self, reason: str) -> None:
        """Mark the operation as failed."""
        ...

    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        lasted_s: float = 0.0,
    ) -> Span:
        """Start a span under this one: now, or ``lasted_s`` seconds ago."""
        ...

    def headers(self) -> Headers:
        """Return what carries the trace to another service."""
        ...

    def end(self) -> None:
        """End the operation."""
        ...


class Tracer(Protocol):
    """Starts the first span of a service in a trace."""

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        headers: IncomingHeaders = (),
        attributes: Attributes | None = None,
    ) -> Span:
        """Start a span, in the trace of ``headers`` when they bring one."""
        ...

    def close(self, timeout_s: float) -> None:
        """Send what is left, as far as that works in time. Blocks."""
        ...


class _NoSpan:
    recording = False

    def set(self, attributes: Attributes) -> None:
        pass

    def event(self, name: str, attributes: Attributes | None = None, *, after_s: float | None = None) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def child(
        self,
        name: str,  # noqa: ARG002 - the protocol's names
        *,
        kind: SpanKind = SpanKind.INTERNAL,  # noqa: ARG002
        attributes: Attributes | None = None,  # noqa: ARG002
        lasted_s: float = 0.0,  # noqa: ARG002
    ) -> Span:
        return self

    def headers(self) -> Headers:
        return ()

    def end(self) -> None:
        pass


class NoTracer:
    """Records nothing; what services have without an endpoint."""

    def start(
        self,
        name: str,  # noqa: ARG002 - the protocol's names
        *,
        kind: SpanKind = SpanKind.INTERNAL,  # noqa: ARG002
        headers: IncomingHeaders = (),  # noqa: ARG002
        attributes: Attributes | None = None,  # noqa: ARG002
    ) -> Span:
        """Return a span that records nothing."""
        return NO_SPAN

    def close(self, timeout_s: float) -> None:
        """Do nothing."""


NO_SPAN: Span = _NoSpan()
NO_TRACER: Tracer = NoTracer()


def _no_span() -> Span:
    return NO_SPAN


CURRENT_SPAN: ContextVar[Callable[[], Span]] = ContextVar("kernelflume_current_span", default=_no_span)
"""Gives the span that calls made in this context, such as a task's, belong to."""


def open_tracer(settings: TracingSettings, *, service: str, instance: str) -> Tracer:
    """Return the tracer that the settings ask for.

    Args:
        settings: where traces go.
        service: ``router``, ``wnode`` and so on.
        instance: tells processes of one service apart.

    Raises:
        ConfigurationError: the `otel` extra is not installed.
    """
    if settings.otlp_endpoint is None:
        return NO_TRACER
    try:
        from kernelflume.runtime.otel import OtelTracer  # noqa: PLC0415 - costs nothing where it is not used
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"tracing.otlp-endpoint needs the otel extra (pip install 'kernelflume[otel]'): {error}"
        ) from error
    return OtelTracer(
        endpoint=settings.otlp_endpoint,
        service_name=settings.service_name or f"kernelflume-{service}",
        instance=instance,
        sample_ratio=settings.sample_ratio,
    )
