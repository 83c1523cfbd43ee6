"""A whole stack with mutual TLS, an admin token and traces, all of it real."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import grpc
import pytest
from tests.certificates import Authority
from tests.collector import collector
from tests.stack import WAIT_S, serve

from kernelflume.rpc.channel import Channels
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.tls import TlsSettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

TOKEN = "not-to-be-seen-in-any-log"  # noqa: S105 - made up for this test


def use(folder: Path, endpoint: str) -> list[int]:
    """Serve, generate, scale by the command line, and return the tokens."""
    authority = Authority(folder)
    node = authority.issue("node")
    token_file = folder / "token"
    token_file.write_text(TOKEN)
    secured = [
        *("--tls-ca", str(authority.ca), "--tls-certificate", str(node.certificate)),
        *("--tls-key", str(node.key), "--token-file", str(token_file)),
    ]
    flags = ("--attention-nodes", "1", "--tls-require-client-certificate", "--otlp-endpoint", endpoint)
    with serve(folder, *flags, *secured, KERNELFLUME_SCALER_OPERATION_DEADLINE_S=str(WAIT_S)) as stack:
        token_ids = asyncio.run(stack.generate("Once upon a time", 8))
        assert stack.command("move", "w-1", *secured) == "0 requests of w-1 are to move\n"
        [weight_node] = json.loads(stack.command("status", "--json", *secured))["weight_nodes"]
        tls = TlsSettings(ca=authority.ca, certificate=node.certificate, key=node.key)
        # A certificate makes a member of the cluster, the token a person who may move its requests.
        with Channels(tls=tls.open()).open_blocking(weight_node["address"]) as channel:
            stub = wnode_pb2_grpc.WeightNodeStub(channel)
            with pytest.raises(grpc.RpcError, match="a valid token is required"):
                stub.MoveRequests(wnode_pb2.MoveRequestsRequest(), timeout=WAIT_S)
        assert "succeeded: 1 -> 2" in stack.command("scale", "--attention-nodes", "2", "--wait", *secured)
    return token_ids


async def test_a_secured_and_traced_stack_serves_and_scales(tmp_path: Path) -> None:
    async with collector() as receiver:
        token_ids = await asyncio.to_thread(use, tmp_path, receiver.endpoint)
    assert len(token_ids) == 8
    request = receiver.one("POST /v1/completions")
    [generate] = receiver.children(request)
    assert (generate.service, generate.name, generate.failed) == ("kernelflume-wnode", "Generate", False)
    assert list(generate.events) == ["scheduled", "first_token", "end"]
    # One trace: the router, the weight node, its steps, and their waits for an attention node.
    steps = [child for child in receiver.children(generate) if child.name == "step"]
    waits = [wait for step in steps for wait in receiver.children(step)]
    assert len(steps) == 8
    assert {wait.attributes["kernelflume.attention_node"] for wait in waits} == {"a-1"}
    assert {span.trace_id for span in (*steps, *waits)} == {request.trace_id}
    assert (
        0
        < generate.attributes["kernelflume.wait_seconds.a-1"]
        < generate.attributes["kernelflume.steps_seconds"]
    )
    scale = max(receiver.named("scale"), key=lambda span: span.started_at_ns)
    prewarming = receiver.children(scale)[1]
    [prepare] = receiver.children(prewarming)
    [served] = receiver.children(prepare)
    [connect] = receiver.children(served)
    [connected] = receiver.children(connect)
    assert [span.service for span in (prepare, served, connect, connected)] == [
        "kernelflume-scaler",
        "kernelflume-wnode",
        "kernelflume-wnode",
        "kernelflume-anode",
    ]
    for log_file in await asyncio.to_thread(lambda: list(tmp_path.glob("*.log"))):
        assert TOKEN not in log_file.read_text()
