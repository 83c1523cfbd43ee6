"""The shell's side of links: late answers of given-up attempts, and nodes that have dropped this one."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.inprocess import GEOMETRY

from kernelflume.core.errors import DeadlineError
from kernelflume.core.handshake import Handshake
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import anode_pb2, anode_pb2_grpc
from kernelflume.wnode import endpoints as endpoints_module
from kernelflume.wnode.endpoints import Endpoints
from kernelflume.wnode.messages import CloseLink, CompleteLink, ForgetLink, LinkOffer, LinkReady, OpenLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kernelflume.wnode.endpoints import LinkEvent
    from kernelflume.wnode.messages import Command

NODE = "a-1#x"
NAME = anode_pb2.DESCRIPTOR.services_by_name["AttentionNode"].full_name


class StubAttentionNode(anode_pb2_grpc.AttentionNodeServicer):
    """Knows the weight nodes that it is told to."""

    def __init__(self) -> None:
        self.linked: list[str] = []

    async def Connect(self, request: anode_pb2.ConnectRequest, _context: Any) -> anode_pb2.ConnectResponse:  # noqa: N802
        return anode_pb2.ConnectResponse(handshake=request.handshake)

    async def GetStatistics(self, _request: Any, _context: Any) -> anode_pb2.AttentionStatistics:  # noqa: N802
        return anode_pb2.AttentionStatistics(
            links=[anode_pb2.AttentionStatisticsLink(weight_node=name) for name in self.linked]
        )


class ReadyEngine:
    """Keeps the commands, and answers those that ask for a link at once."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.endpoints = Endpoints(self.send, timeout_s=60.0)

    def send(self, command: Command) -> None:
        self.sent.append(command)
        if isinstance(command, OpenLink):
            handshake = Handshake(node_name="w-1#x", geometry=GEOMETRY, transport="loopback")
            self._answer(LinkOffer(command.node_name, handshake, b"", 1, 16, (), ""))
        elif isinstance(command, CompleteLink):
            self._answer(LinkReady(command.node_name, 0.0))

    def _answer(self, event: LinkEvent) -> None:
        asyncio.get_running_loop().call_soon(self.endpoints.deliver, event)


@asynccontextmanager
async def attention_node() -> AsyncIterator[tuple[StubAttentionNode, str]]:
    server = Server("127.0.0.1:0", [NAME])
    stub = StubAttentionNode()
    anode_pb2_grpc.add_AttentionNodeServicer_to_server(stub, server.grpc_server)
    await server.start()
    try:
        yield stub, f"127.0.0.1:{server.port}"
    finally:
        await server.stop(0)


async def test_a_link_that_is_ready_too_late_is_closed_and_answers_no_later_attempt() -> None:
    sent: list[Command] = []
    endpoints = Endpoints(sent.append, timeout_s=0.05)
    with pytest.raises(DeadlineError):
        await endpoints.prepare(NODE, "127.0.0.1:1")
    assert sent == [OpenLink(NODE), CloseLink(NODE)]
    again = asyncio.create_task(endpoints.prepare(NODE, "127.0.0.1:1"))
    await asyncio.sleep(0)
    endpoints.deliver(LinkReady(NODE, 20.0))  # of the first attempt
    with pytest.raises(DeadlineError):
        await again
    assert not endpoints.is_prepared(NODE)


async def test_an_attempt_that_nobody_waits_for_leaves_no_link() -> None:
    sent: list[Command] = []
    endpoints = Endpoints(sent.append, timeout_s=20.0)
    attempt = asyncio.create_task(endpoints.prepare(NODE, "127.0.0.1:1"))
    await asyncio.sleep(0)
    attempt.cancel()
    await asyncio.gather(attempt, return_exceptions=True)
    assert sent == [OpenLink(NODE), CloseLink(NODE)]


async def test_nodes_that_have_dropped_this_one_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints_module, "_VERIFY_TIMEOUT_S", 60.0)
    engine = ReadyEngine()
    async with attention_node() as (knows, its_address), attention_node() as (_, other_address):
        async with attention_node() as (_, away_address):
            await engine.endpoints.prepare("a-3#x", away_address)
        await engine.endpoints.prepare("a-1#x", its_address)
        await engine.endpoints.prepare("a-2#x", other_address)
        knows.linked = ["w-1#x", "w-2#x"]
        engine.sent.clear()
        await engine.endpoints.verify()
    # Of one that does not answer nothing is known.
    [command] = engine.sent
    assert isinstance(command, ForgetLink)
    assert command.node_name == "a-2#x"
