"""A real receiver of OTLP over gRPC that keeps the spans it gets."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span as it came over the wire."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    started_at_ns: int
    ended_at_ns: int
    attributes: dict[str, Any]
    events: dict[str, dict[str, Any]]
    event_times_ns: dict[str, int]
    failed: bool
    message: str


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span it is sent."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.endpoint = ""

    async def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:  # noqa: N802
        for resource in request.resource_spans:
            service = _plain(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_received(service, span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReceivedSpan:
        found = self.named(name)
        assert len(found) == 1, [(span.service, span.name) for span in self.spans]
        return found[0]

    def children(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        found = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(found, key=lambda span: span.started_at_ns)


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """Run a collector on a free port."""
    server = grpc.aio.server()
    servicer = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    servicer.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield servicer
    finally:
        await server.stop(0)


def _received(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        started_at_ns=span.start_time_unix_nano,
        ended_at_ns=span.end_time_unix_nano,
        attributes=_plain(span.attributes),
        events={event.name: _plain(event.attributes) for event in span.events},
        event_times_ns={event.name: event.time_unix_nano for event in span.events},
        failed=span.status.code == 2,
        message=span.status.message,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
