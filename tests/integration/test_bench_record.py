"""`kernelflume bench --record` against a stub endpoint and a scaler that tells what it is told to."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tests.integration.test_bench_command import run
from tests.recordings import flat_profile
from tests.stub_openai import stub_endpoint

from kernelflume.rpc.v1 import (
    anode_pb2,
    anode_pb2_grpc,
    scaler_pb2,
    scaler_pb2_grpc,
    wnode_pb2,
    wnode_pb2_grpc,
)
from kernelflume.scaler.sim.recordings import read_recording

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class StubScaler(scaler_pb2_grpc.ScalerAdminServicer):
    """Shows one node, and a second one that is being launched."""

    def __init__(self) -> None:
        self.mode = "automatic"
        self.node_address = ""
        self.num_looks = 0
        self.goes_away = False

    def _topology(self) -> scaler_pb2.Topology:
        node = scaler_pb2.AttentionNodeStatus(
            node_id="a-1", capacity_tokens=640, kv_bytes_per_token=8, address=self.node_address
        )
        weight_node = scaler_pb2.WeightNodeStatus(node_id="w-1", address=self.node_address)
        return scaler_pb2.Topology(
            scaling_mode=self.mode,
            attention_nodes=[node],
            weight_nodes=[weight_node],
            operation=self._operation(),
        )

    def _operation(self) -> scaler_pb2.Operation:
        return scaler_pb2.Operation(
            operation_id="one",
            initial_attention_nodes=1,
            target_attention_nodes=2,
            node_ids=["a-2"],
            cause="horizon",
            history=[scaler_pb2.OperationPhase(phase="launching", seconds=0.01)],
        )

    async def GetTopology(self, request: Any, context: Any) -> scaler_pb2.Topology:  # noqa: N802 - gRPC's name
        return self._topology()

    async def GetPolicy(self, request: Any, context: Any) -> scaler_pb2.Policy:  # noqa: N802 - gRPC's name
        return scaler_pb2.Policy(yaml="maximum_nodes: 3\n", mode=self.mode)

    async def GetOperation(self, request: Any, context: Any) -> scaler_pb2.Operation:  # noqa: N802 - gRPC's name
        if self.goes_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return self._operation()

    async def WatchTopology(  # noqa: N802 - gRPC's name
        self, request: Any, context: Any
    ) -> AsyncIterator[scaler_pb2.Topology]:
        while not (self.goes_away and self.num_looks):
            self.num_looks += 1
            yield self._topology()
            await asyncio.sleep(0.01)


class StubNode(anode_pb2_grpc.AttentionNodeServicer):
    """Tells its pages."""

    async def GetStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return anode_pb2.AttentionStatistics(page_tokens=16)


class StubWeightNode(wnode_pb2_grpc.WeightNodeServicer):
    """Tells whether it finds blocks again."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    async def GetLoad(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return wnode_pb2.WeightNodeLoad(block_tokens=self._block_tokens)


@asynccontextmanager
async def scaler(*, block_tokens: int = 0) -> AsyncIterator[tuple[StubScaler, str]]:
    stub, server = StubScaler(), grpc.aio.server()
    wnode_pb2_grpc.add_WeightNodeServicer_to_server(StubWeightNode(block_tokens), server)
    scaler_pb2_grpc.add_ScalerAdminServicer_to_server(stub, server)
    anode_pb2_grpc.add_AttentionNodeServicer_to_server(StubNode(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    stub.node_address = address
    await server.start()
    try:
        yield stub, address
    finally:
        await server.stop(None)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(flat_profile().to_dict()))
    return path


def arguments(url: str, address: str, profile: Path, folder: Path) -> tuple[str, ...]:
    shape = ("--num-requests", "3", "--turns", "1", "--system-tokens", "0", "--first-tokens", "20")
    ways = ("--base-url", url, "--scaler", address, "--profile", str(profile), "--record", str(folder))
    return ("generated", *shape, "--output-tokens", "5", *ways)


@pytest.mark.parametrize("block_tokens", [0, 16])
async def test_a_run_is_recorded_with_what_the_scaler_did(
    profile: Path, tmp_path: Path, block_tokens: int
) -> None:
    async with stub_endpoint() as endpoint, scaler(block_tokens=block_tokens) as (_, address):
        code, _, errors = await run(*arguments(endpoint.url, address, profile, tmp_path / "run"))
    assert code == 0, errors
    assert f"recorded in {tmp_path / 'run'}" in errors.replace("\n", " ")
    recording = read_recording(tmp_path / "run")
    assert len(recording.requests) == 3
    assert recording.duration_s == max(request.ended_s for request in recording.requests)
    assert (recording.page_tokens, recording.node_capacity_tokens, recording.token_bytes) == (16, 640, 8)
    assert recording.has_prefix_cache is bool(block_tokens)
    assert recording.policy == "maximum_nodes: 3\n"
    assert recording.initial_nodes == ("a-1",)
    assert recording.profile == flat_profile()
    assert [operation.node_ids for operation in recording.operations] == [("a-2",)]


async def test_a_pool_that_a_person_sizes_is_refused_before_the_run(profile: Path, tmp_path: Path) -> None:
    async with stub_endpoint() as endpoint, scaler() as (stub, address):
        stub.mode = "manual"
        code, _, errors = await run(*arguments(endpoint.url, address, profile, tmp_path / "run"))
    assert code == 2
    assert "not the policy's to choose" in errors
    assert not (tmp_path / "run" / "recording.json").exists()


async def test_a_scaler_that_goes_away_leaves_no_recording(profile: Path, tmp_path: Path) -> None:
    async with stub_endpoint() as endpoint, scaler() as (stub, address):
        stub.goes_away = True
        code, _, errors = await run(*arguments(endpoint.url, address, profile, tmp_path / "run"))
    assert code == 1
    assert "ended the stream" in errors or "gone" in errors  # whichever is noticed first
    assert "Traceback" not in errors
    assert not (tmp_path / "run" / "recording.json").exists()


@pytest.mark.parametrize(
    ("text", "complaint"), [("", "--profile"), ("{}", "schema None"), ("[1]", "not a JSON object")]
)
async def test_a_profile_that_is_none_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    code, _, errors = await run(*arguments("http://127.0.0.1:1", "127.0.0.1:1", path, tmp_path / "run"))
    assert code == 2
    assert complaint in errors


async def test_a_recording_needs_a_profile(tmp_path: Path) -> None:
    code, _, errors = await run("generated", "--record", str(tmp_path / "run"))
    assert code == 2
    assert "--record needs --profile" in errors
