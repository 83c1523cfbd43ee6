"""`kernelflume move`: whom it asks, and who may (gRPC servers and the command line are real)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from typer.testing import CliRunner

from kernelflume.cli.main import app
from kernelflume.rpc.channel import PLAINTEXT
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc, wnode_pb2, wnode_pb2_grpc
from kernelflume.wnode.__main__ import ADMIN_METHODS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOKEN = "tell-nobody-of-this"  # noqa: S105 - made up for these tests
WAIT_S = 20.0
NODE_SERVICE = wnode_pb2.DESCRIPTOR.services_by_name["WeightNode"].full_name
ADMIN_SERVICE = scaler_pb2.DESCRIPTOR.services_by_name["ScalerAdmin"].full_name


class Node(wnode_pb2_grpc.WeightNodeServicer):
    """Takes note of the moves that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[wnode_pb2.MoveRequestsRequest] = []

    async def MoveRequests(self, request: Any, context: Any) -> wnode_pb2.MoveRequestsResponse:  # noqa: N802 - gRPC's
        self.asked.append(request)
        return wnode_pb2.MoveRequestsResponse(num_asked=3)

    async def GetLoad(self, request: Any, context: Any) -> wnode_pb2.WeightNodeLoad:  # noqa: N802 - gRPC's
        return wnode_pb2.WeightNodeLoad(num_steps=7)


class Scaler(scaler_pb2_grpc.ScalerAdminServicer):
    """Knows one weight node."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def GetTopology(self, request: Any, context: Any) -> scaler_pb2.Topology:  # noqa: N802 - gRPC's
        node = scaler_pb2.WeightNodeStatus(node_id="w-1", address=self._address)
        return scaler_pb2.Topology(weight_nodes=[node])


@asynccontextmanager
async def cluster(node: Node, *, token: str | None) -> AsyncIterator[tuple[str, str]]:
    """Serve a weight node as ``kernelflume wnode`` does, and a scaler; give their addresses."""
    server = Server("127.0.0.1:0", [NODE_SERVICE], token=token, token_methods=ADMIN_METHODS)
    wnode_pb2_grpc.add_WeightNodeServicer_to_server(node, server.grpc_server)
    await server.start()
    admin = Server("127.0.0.1:0", [ADMIN_SERVICE])
    scaler_pb2_grpc.add_ScalerAdminServicer_to_server(Scaler(f"127.0.0.1:{server.port}"), admin.grpc_server)
    await admin.start()
    try:
        yield f"127.0.0.1:{server.port}", f"127.0.0.1:{admin.port}"
    finally:
        await admin.stop(0)
        await server.stop(0)


async def move(scaler: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    command = ["move", "w-1", "--scaler", scaler, *arguments]
    result = await asyncio.to_thread(CliRunner().invoke, app, command, env=environment)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


async def test_the_weight_node_is_asked_for_what_was_said() -> None:
    node = Node()
    async with cluster(node, token=None) as (_, scaler):
        assert await move(scaler, "--requests", "2") == (0, "3 requests of w-1 are to move\n", "")
        assert await move(scaler, "--resume") == (0, "w-1 takes requests\n", "")
    assert node.asked == [
        wnode_pb2.MoveRequestsRequest(max_requests=2),
        wnode_pb2.MoveRequestsRequest(draining=False),
    ]


def test_no_number_is_asked_for_that_a_message_cannot_carry() -> None:
    found = CliRunner().invoke(app, ["move", "w-1", "--requests", str(2**32)])
    assert found.exit_code == 2
    assert "--requests" in found.output


async def test_a_weight_node_that_wants_the_token_is_moved_by_nobody_else(
    token_file: Path, tmp_path: Path
) -> None:
    node, wrong = Node(), tmp_path / "wrong"
    wrong.write_text("guessed-token")
    async with cluster(node, token=TOKEN) as (address, scaler):
        for arguments in ((), ("--token-file", str(wrong))):
            assert await move(scaler, "--drain", *arguments) == (
                1,
                "",
                f"kernelflume: the weight node w-1 at {address}: a valid token is required (--token-file)\n",
            )
        assert not node.asked
        said = (0, "3 requests of w-1 are to move\n", "")
        assert await move(scaler, "--token-file", str(token_file)) == said
        assert await move(scaler, KERNELFLUME_TOKEN_FILE=str(token_file)) == said
    assert len(node.asked) == 2


async def test_what_routers_and_scalers_ask_needs_no_token() -> None:
    node = Node()
    async with cluster(node, token=TOKEN) as (address, _), PLAINTEXT.open(address) as channel:
        stub = wnode_pb2_grpc.WeightNodeStub(channel)
        assert (await stub.GetLoad(wnode_pb2.GetLoadRequest(), timeout=WAIT_S)).num_steps == 7
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.MoveRequests(wnode_pb2.MoveRequestsRequest(), timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
