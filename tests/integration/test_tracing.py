"""Traces of requests and of scale operations, received over OTLP by a real collector."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from tests.collector import Collector, collector
from tests.router_parts import END_ID, ScriptedWeightNode, router, write_model
from tests.scaler_rig import Rig, eventually, scaler_rig

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.routing import NodeState
from kernelflume.core.sampling import SamplingParameters
from kernelflume.rpc.channel import Channels
from kernelflume.rpc.codec import sampling_to_proto
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.tracing import CURRENT_SPAN, NO_TRACER, Tracer, TracingSettings, open_tracer
from kernelflume.scaler.operation import Result
from kernelflume.wnode.messages import Cancel, StepOutput, StepTrace, Submit, TokenOutput
from kernelflume.wnode.requests import RequestTable
from kernelflume.wnode.servicer import WeightNodeServicer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

WAIT_S = 60.0
SERVER_KIND, CLIENT_KIND = 2, 3
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@asynccontextmanager
async def tracing(receiver: Collector, service: str, **settings: Any) -> AsyncIterator[Tracer]:
    """Give a tracer, all of whose spans are at the receiver in the end."""
    tracer = open_tracer(
        TracingSettings(otlp_endpoint=receiver.endpoint, **settings), service=service, instance="x-1"
    )
    try:
        yield tracer
    finally:
        await asyncio.to_thread(tracer.close, WAIT_S)


@asynccontextmanager
async def traced_rig(url: str, tracer: Tracer) -> AsyncIterator[Rig]:
    """A scaler that has one attention node."""
    async with scaler_rig(url, initial_target=1, tracer=tracer) as rig:
        await rig.settles_at(a_1=NodeState.ACTIVE)
        yield rig


async def _no_grammar(grammar: Any, tenant: str) -> bytes:
    raise NotImplementedError


class TracedWeightNode(ScriptedWeightNode):
    """The weight node's own service and request table over an engine that says three tokens."""

    def __init__(self, folder: Path, tracer: Tracer) -> None:
        super().__init__(folder, None)
        self._loop = asyncio.get_running_loop()
        self.answers = True
        self.says_more = False
        self.is_unsampled = False
        self.table = RequestTable(
            self._engine, max_in_flight=4, max_model_len=256, vocab_size=1000, compile_grammar=_no_grammar
        )
        shell: Any = SimpleNamespace(requests=self.table, report=SimpleNamespace(num_microbatches=2))
        self._service = WeightNodeServicer(shell, tracer)

    def _engine(self, command: Any) -> None:
        if isinstance(command, Cancel):
            return
        assert isinstance(command, Submit)
        steps = (
            StepTrace(0.2, 30, 32, ()),
            StepTrace(0.1, 5, 6, (("a-1", 0.06), ("a-2", 0.04))),
            StepTrace(0.05, 1, 8, (("a-1", 0.01),)),
        )
        assert command.traced or self.is_unsampled
        if not self.answers:
            outputs = [TokenOutput(command.request_id, (), "abort", error="no room")]
        else:
            outputs = [
                TokenOutput(command.request_id, (50,), queue_s=0.25, steps=steps[:2]),
                TokenOutput(command.request_id, (51,), steps=steps[2:]),
                TokenOutput(command.request_id, (), "stop", END_ID),
            ]
        if self.says_more:
            outputs = outputs[:1]
        for output in outputs:
            self._loop.call_soon(self.table.deliver, StepOutput((output,)))

    async def Generate(  # noqa: N802 - gRPC's name
        self, request: Any, context: Any
    ) -> AsyncGenerator[wnode_pb2.GenerateEvent, None]:
        async for event in self._service.Generate(request, context):
            yield event

    async def Attach(self, messages: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        await self._service.Attach(messages, context)


@asynccontextmanager
async def traced_stack(
    folder: Path, receiver: Collector, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, TracedWeightNode]]:
    """A router and a weight node that trace; all spans are received in the end."""
    async with tracing(receiver, "wnode") as tracer:
        node = TracedWeightNode(write_model(folder), tracer)
        await node.start()
        try:
            options = TracingSettings(otlp_endpoint=receiver.endpoint, **settings)
            async with (
                router(folder, [node], tracing=options) as url,
                httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client,
            ):
                yield client, node
        finally:
            await node.server.stop(0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_one_trace_over_router_and_weight_node(tmp_path: Path, stream: bool) -> None:
    async with collector() as receiver:
        async with traced_stack(tmp_path, receiver) as (client, _):
            body = {"prompt": "Hello", "max_tokens": 9, "temperature": 0.5, "stream": stream}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200
        span, generate = receiver.one("POST /v1/completions"), receiver.one("Generate")
        assert (span.service, span.kind) == ("kernelflume-router", SERVER_KIND)
        assert (generate.service, generate.kind) == ("kernelflume-wnode", SERVER_KIND)
        assert generate.trace_id == span.trace_id
        assert (span.parent_id, generate.parent_id) == ("", span.span_id)
        num_prompt_tokens = generate.attributes["gen_ai.usage.input_tokens"]
        assert num_prompt_tokens > 0
        expected = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": "tiny",
            "gen_ai.request.max_tokens": 9,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.stream": stream,
            "gen_ai.usage.input_tokens": num_prompt_tokens,
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.response.finish_reasons": ["stop"],
            "http.response.status_code": 200,
            "http.route": "/v1/completions",
        }
        assert span.attributes | expected == span.attributes
        assert span.events["gen_ai.first_token"]["kernelflume.time_to_first_token"] > 0
        assert list(generate.events) == ["scheduled", "first_token", "end"]
        assert generate.events["scheduled"] == {"kernelflume.queue_seconds": 0.25}
        assert generate.event_times_ns["scheduled"] - generate.started_at_ns == 250_000_000
        assert generate.attributes["gen_ai.response.finish_reasons"] == ["stop"]
        assert generate.attributes["kernelflume.microbatches"] == 2
        assert not span.failed
        assert not generate.failed
        sums = {
            "kernelflume.num_steps": 3,
            "kernelflume.attention_nodes": ["a-1", "a-2"],
            "kernelflume.wait_seconds.a-1": pytest.approx(0.07),
            "kernelflume.wait_seconds.a-2": pytest.approx(0.04),
        }
        assert {name: generate.attributes[name] for name in sums} == sums
        assert {item.trace_id for item in receiver.spans} == {span.trace_id}
        steps = [child for child in receiver.children(generate) if child.name == "step"]
        assert sorted(step.attributes["kernelflume.step.rows"] for step in steps) == [1, 5, 30]
        [prompt] = [step for step in steps if step.attributes["kernelflume.step.rows"] == 5]
        assert prompt.ended_at_ns - prompt.started_at_ns >= 100_000_000
        waits = receiver.children(prompt)
        assert {wait.name for wait in waits} == {"wait for attention"}
        assert sorted(wait.attributes["kernelflume.attention_node"] for wait in waits) == ["a-1", "a-2"]
        assert all(wait.ended_at_ns - wait.started_at_ns >= 40_000_000 for wait in waits)
        assert len(receiver.spans) == 8


async def test_a_client_s_own_trace_is_continued_and_chat_is_named(tmp_path: Path) -> None:
    async with collector() as receiver:
        async with traced_stack(tmp_path, receiver) as (client, _):
            body = {"messages": [{"role": "user", "content": "Hello"}]}
            await client.post("/v1/chat/completions", json=body, headers={"traceparent": TRACEPARENT})
        assert {span.trace_id for span in receiver.spans} == {TRACE_ID}
        span = receiver.one("POST /v1/chat/completions")
        assert span.parent_id == "b7ad6b7169203331"
        assert span.attributes["gen_ai.operation.name"] == "chat"


async def test_refusals_and_failures_are_told_apart(tmp_path: Path) -> None:
    async with collector() as receiver:
        async with traced_stack(tmp_path, receiver) as (client, node):
            assert (await client.post("/v1/completions", json={"model": "other"})).status_code >= 400
            node.answers = False
            assert (await client.post("/v1/completions", json={"prompt": "Hello"})).status_code == 429
        wrong, overloaded = receiver.named("POST /v1/completions")
        assert (wrong.attributes["http.response.status_code"] // 100, wrong.failed) == (4, False)
        assert overloaded.attributes["http.response.status_code"] == 429
        assert overloaded.attributes["error.type"] == "OverloadedError"
        refused = receiver.one("Generate")
        assert (refused.failed, refused.message) == (True, "no room")
        assert refused.trace_id == overloaded.trace_id


async def test_a_cancelled_request_is_no_failure(tmp_path: Path) -> None:
    async with collector() as receiver:
        async with tracing(receiver, "wnode") as tracer:
            node = TracedWeightNode(write_model(tmp_path), tracer)
            node.says_more = True
            await node.start()
            async with Channels().open(node.address) as channel:
                sampling = sampling_to_proto(SamplingParameters(max_tokens=9))
                request = wnode_pb2.GenerateRequest(request_id="r", prompt_token_ids=[50], sampling=sampling)
                call = wnode_pb2_grpc.WeightNodeStub(channel).Generate(request, timeout=WAIT_S)
                assert (await call.read()).token_ids == [50]
                call.cancel()

                async def ended() -> bool:
                    return not len(node.table)

                await eventually(ended)
            await node.server.stop(0)
        span = receiver.one("Generate")
        assert list(span.events) == ["scheduled", "first_token", "cancelled"]
        assert not span.failed


async def test_what_is_not_sampled_is_not_sent_by_anyone(tmp_path: Path) -> None:
    async with collector() as receiver:
        async with traced_stack(tmp_path, receiver, sample_ratio=0.0) as (client, node):
            node.is_unsampled = True
            assert (await client.post("/v1/completions", json={"prompt": "Hello"})).status_code == 200
        assert receiver.spans == []


async def test_a_collector_that_is_away_holds_nothing_up(tmp_path: Path) -> None:
    away = Collector()
    away.endpoint = "http://127.0.0.1:1"
    tracer = open_tracer(TracingSettings(otlp_endpoint=away.endpoint), service="router", instance="r")
    tracer.start("one").end()
    closing = asyncio.create_task(asyncio.to_thread(tracer.close, 0.2))
    async with asyncio.timeout(WAIT_S):
        await closing


@pytest.mark.redis
async def test_a_scale_operation_has_its_phases_and_their_calls(valkey_url: str) -> None:
    async with collector() as receiver:
        async with tracing(receiver, "scaler") as tracer, traced_rig(valkey_url, tracer) as rig:
            weight = await rig.add_weight()
            await rig.scale("up", 2)
            await rig.scale("down", 1)
        spans = {span.attributes["kernelflume.operation.id"]: span for span in receiver.named("scale")}
        up, down = spans["up"], spans["down"]
        assert up.attributes == {
            "kernelflume.operation.id": "up",
            "kernelflume.operation.initial": 1,
            "kernelflume.operation.target": 2,
            "kernelflume.operation.result": "succeeded",
            "kernelflume.operation.reason": "",
            "kernelflume.operation.node_ids": ["a-2"],
        }
        phases = receiver.children(up)
        assert [phase.name for phase in phases] == ["launching", "prewarming", "ready", "publishing"]
        assert {phase.trace_id for phase in phases} == {up.trace_id}
        [prepare] = [call for call in receiver.children(phases[1]) if call.name == "PrepareEndpoint"]
        assert prepare.kind == CLIENT_KIND
        assert prepare.attributes["server.address"] == weight.address
        assert [phase.name for phase in receiver.children(down)] == ["draining", "retiring", "releasing"]
        [release] = receiver.children(receiver.children(down)[2])
        assert (release.name, release.trace_id) == ("ReleaseEndpoint", down.trace_id)
        assert up.trace_id != down.trace_id


@pytest.mark.redis
async def test_a_rolled_back_operation_says_why(valkey_url: str) -> None:
    async with collector() as receiver:
        async with tracing(receiver, "scaler") as tracer, traced_rig(valkey_url, tracer) as rig:
            weight = await rig.add_weight()
            weight.prepare_failure = (grpc.StatusCode.FAILED_PRECONDITION, "other layout")
            assert (await rig.scale("up", 2)).result is Result.FAILED
        [up] = [
            span for span in receiver.named("scale") if span.attributes["kernelflume.operation.id"] == "up"
        ]
        assert up.failed
        assert "other layout" in up.message
        launching, prewarming, rolling_back = receiver.children(up)
        assert (launching.name, rolling_back.name) == ("launching", "rolling_back")
        [prepare] = [call for call in receiver.children(prewarming) if call.name == "PrepareEndpoint"]
        assert prepare.failed
        assert prepare.attributes["rpc.grpc.status"] == "FAILED_PRECONDITION"
        assert "ReleaseEndpoint" in {call.name for call in receiver.children(rolling_back)}


class Prober(wnode_pb2_grpc.WeightNodeServicer):
    async def GetLoad(self, request: Any, context: Any) -> wnode_pb2.WeightNodeLoad:  # noqa: N802
        return wnode_pb2.WeightNodeLoad(num_steps=1)


async def test_a_unary_call_has_a_span_on_both_sides_and_none_without_a_parent() -> None:
    async with collector() as receiver:
        async with tracing(receiver, "caller") as caller, tracing(receiver, "callee") as callee:
            server = Server("127.0.0.1:0", [], tracer=callee)
            wnode_pb2_grpc.add_WeightNodeServicer_to_server(Prober(), server.grpc_server)
            await server.start()
            async with Channels(traced=True).open(f"127.0.0.1:{server.port}") as channel:
                stub = wnode_pb2_grpc.WeightNodeStub(channel)
                await stub.GetLoad(wnode_pb2.GetLoadRequest(), timeout=WAIT_S)
                root = caller.start("root")
                CURRENT_SPAN.set(lambda: root)
                await stub.GetLoad(wnode_pb2.GetLoadRequest(), timeout=WAIT_S)
                root.end()
                await stub.GetLoad(wnode_pb2.GetLoadRequest(), timeout=WAIT_S)
            await server.stop(0)
        call, served = sorted(receiver.named("GetLoad"), key=lambda span: span.started_at_ns)
        assert (call.service, call.parent_id) == ("kernelflume-caller", receiver.one("root").span_id)
        assert (served.service, served.parent_id) == ("kernelflume-callee", call.span_id)


def test_without_an_endpoint_nothing_is_imported() -> None:
    assert open_tracer(TracingSettings(), service="router", instance="r") is NO_TRACER
    code = (
        "import sys, kernelflume.scaler.__main__, kernelflume.wnode.servicer, kernelflume.rpc.channel\n"
        "sys.exit('kernelflume.runtime.otel' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kernelflume.runtime.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"tracing\.otlp-endpoint needs the otel extra"):
        open_tracer(TracingSettings(otlp_endpoint="http://127.0.0.1:1"), service="r", instance="r")
