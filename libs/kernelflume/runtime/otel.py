"""Tracing by OpenTelemetry: spans are queued and sent as OTLP over gRPC by a thread of the SDK."""

from __future__ import annotations

import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kernelflume.runtime.tracing import SpanKind

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from kernelflume.runtime.tracing import Attributes, Headers, IncomingHeaders, Span

_EXPORT_TIMEOUT_S = 5.0
_MAX_QUEUED_SPANS = 4096
"""More are dropped: a collector that is away costs no memory."""
_KINDS = {
    SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
    SpanKind.CLIENT: trace.SpanKind.CLIENT,
    SpanKind.SERVER: trace.SpanKind.SERVER,
}
_PROPAGATOR = TraceContextTextMapPropagator()


class OtelSpan:
    """A span of OpenTelemetry's."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def recording(self) -> bool:
        """False when it was not sampled, or has ended."""
        return self._span.is_recording()

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes(dict(attributes))

    def event(self, name: str, attributes: Attributes | None = None, *, after_s: float | None = None) -> None:
        """Add an event."""
        at_ns = time.time_ns()
        if after_s is not None and isinstance(self._span, SdkSpan) and self._span.start_time is not None:
            at_ns = self._span.start_time + int(after_s * 1e9)
        self._span.add_event(name, dict(attributes or {}), timestamp=at_ns)

    def fail(self, reason: str) -> None:
        """Mark the operation as failed."""
        self._span.set_status(trace.StatusCode.ERROR, reason)

    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        lasted_s: float = 0.0,
    ) -> Span:
        """Start a span under this one: now, or ``lasted_s`` seconds ago."""
        context = trace.set_span_in_context(self._span)
        began_at_ns = time.time_ns() - int(lasted_s * 1e9) if lasted_s else None
        return _start(self._tracer, name, context, kind, attributes, began_at_ns=began_at_ns)

    def headers(self) -> Headers:
        """Return the W3C headers; the decision not to sample travels too."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return tuple(carrier.items())

    def end(self) -> None:
        """End the operation."""
        if self._span.is_recording():
            self._span.end()


class OtelTracer:
    """One provider with its exporter's thread; owned by a service, closed at its end."""

    def __init__(self, *, endpoint: str, service_name: str, instance: str, sample_ratio: float) -> None:
        release = version("kernelflume")
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create(
                {
                    "service.name": service_name,
                    "service.instance.id": instance,
                    "service.version": release,
                }
            ),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_MAX_QUEUED_SPANS))
        self._tracer = self._provider.get_tracer("kernelflume", release)

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        headers: IncomingHeaders = (),
        attributes: Attributes | None = None,
    ) -> Span:
        """Start a span, in the trace of ``headers`` when they bring one."""
        carrier = {key.lower(): value for key, value in headers if isinstance(value, str)}
        return _start(self._tracer, name, _PROPAGATOR.extract(carrier), kind, attributes)

    def close(self, timeout_s: float) -> None:
        """Send what is left, as far as that works in time."""
        # The SDK's own shutdown takes no bound: a collector that hangs would hold it for half a minute.
        ending = threading.Thread(target=self._provider.shutdown, name="otel-shutdown", daemon=True)
        ending.start()
        ending.join(timeout_s)


def _start(
    tracer: trace.Tracer,
    name: str,
    context: Context,
    kind: SpanKind,
    attributes: Attributes | None,
    *,
    began_at_ns: int | None = None,
) -> OtelSpan:
    span = tracer.start_span(
        name,
        context=context,
        kind=_KINDS[kind],
        attributes=dict(attributes or {}),
        start_time=began_at_ns,
    )
    return OtelSpan(tracer, span)
