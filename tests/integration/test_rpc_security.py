"""gRPC with real certificates and a token: who gets in, who does not, and what is said."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.certificates import Authority, Identity, stamped
from tests.router_parts import ScriptedWeightNode, router, saying, write_model

from kernelflume.rpc.channel import PLAINTEXT, Channels
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.runtime.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOKEN = "correct-horse-battery"  # noqa: S105 - made up for these tests
WAIT_S = 60.0
SERVICE = scaler_pb2.DESCRIPTOR.services_by_name["ScalerAdmin"].full_name


class Admin(scaler_pb2_grpc.ScalerAdminServicer):
    async def GetTopology(self, request: Any, context: Any) -> scaler_pb2.Topology:  # noqa: N802 - gRPC's
        return scaler_pb2.Topology(epoch=7)

    async def WatchOperation(self, request: Any, context: Any) -> AsyncIterator[scaler_pb2.Operation]:  # noqa: N802
        yield scaler_pb2.Operation(result="succeeded")


@asynccontextmanager
async def serving(tls: TlsSettings | None = None, token: str | None = None) -> AsyncIterator[str]:
    server = Server("127.0.0.1:0", [SERVICE], tls=(tls or TlsSettings()).open(), token=token)
    scaler_pb2_grpc.add_ScalerAdminServicer_to_server(Admin(), server.grpc_server)
    await server.start()
    await server.set_serving(serving=True)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(0)


async def call(address: str, channels: Channels) -> int:
    async with channels.open(address) as channel:
        stub = scaler_pb2_grpc.ScalerAdminStub(channel)
        topology = await stub.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=WAIT_S)
        return int(topology.epoch)


async def refused(address: str, channels: Channels) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(address, channels)
    return caught.value


def over_tls(**fields: Any) -> Channels:
    return Channels(tls=TlsSettings(**fields).open())


async def test_a_server_with_a_certificate_speaks_tls_only(authority: Authority, node: Identity) -> None:
    async with serving(TlsSettings(certificate=node.certificate, key=node.key)) as address:
        assert await call(address, over_tls(ca=authority.ca)) == 7
        assert (await refused(address, PLAINTEXT)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_another_ca_is_not_trusted(
    folder: Path, authority: Authority, node: Identity
) -> None:
    stranger = Authority(folder, "stranger")
    async with serving(TlsSettings(certificate=node.certificate, key=node.key)) as address:
        failure = await refused(address, over_tls(ca=stranger.ca))
        assert failure.code() is grpc.StatusCode.UNAVAILABLE
        assert "CERTIFICATE_VERIFY_FAILED" in (failure.details() or "")


async def test_renewed_certificates_are_in_force_without_a_restart(
    folder: Path, tmp_path: Path, authority: Authority, node: Identity
) -> None:
    certificate = stamped(node.certificate, tmp_path / "node.pem")
    key = stamped(node.key, tmp_path / "node-key.pem")
    ca = stamped(authority.ca, tmp_path / "ca.pem")
    tls = TlsSettings(certificate=certificate, key=key, ca=ca, require_client_certificate=True)
    client = Channels(tls=tls.open())
    async with serving(tls) as address, client.open(address) as old:
        stub = scaler_pb2_grpc.ScalerAdminStub(old)
        assert (await stub.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=WAIT_S)).epoch == 7
        following = Authority(folder, "following")
        renewed = following.issue("renewed")
        for source, target in ((renewed.certificate, certificate), (renewed.key, key), (following.ca, ca)):
            stamped(source, target)
        # Server and client agree on the new CA: either side would refuse the old one's.
        assert await call(address, client) == 7
        left_behind = over_tls(
            ca=authority.ca, certificate=node.certificate, key=node.key, server_name="localhost"
        )
        assert (await refused(address, left_behind)).code() is grpc.StatusCode.UNAVAILABLE
        # A connection that stands goes on.
        assert (await stub.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=WAIT_S)).epoch == 7


async def test_a_server_name_stands_for_an_address_that_no_certificate_names(authority: Authority) -> None:
    named = authority.issue("named", "subjectAltName=DNS:node.cluster")
    async with serving(TlsSettings(certificate=named.certificate, key=named.key)) as address:
        assert (await refused(address, over_tls(ca=authority.ca))).code() is grpc.StatusCode.UNAVAILABLE
        assert await call(address, over_tls(ca=authority.ca, server_name="node.cluster")) == 7


async def test_mutual_tls_wants_a_certificate_of_the_ca(
    folder: Path, authority: Authority, node: Identity
) -> None:
    demanding = TlsSettings(
        certificate=node.certificate, key=node.key, ca=authority.ca, require_client_certificate=True
    )
    client = authority.issue("client")
    false_client = Authority(folder, "false").issue("false-client")
    async with serving(demanding) as address:
        assert (
            await call(address, over_tls(ca=authority.ca, certificate=client.certificate, key=client.key))
            == 7
        )
        without = await refused(address, over_tls(ca=authority.ca))
        assert without.code() is grpc.StatusCode.UNAVAILABLE
        foreign = over_tls(ca=authority.ca, certificate=false_client.certificate, key=false_client.key)
        assert (await refused(address, foreign)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_token_opens_and_none_or_a_wrong_one_does_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(token=TOKEN) as address:
        assert await call(address, Channels(token=TOKEN)) == 7
        async with Channels(token=TOKEN).open(address) as channel:
            stub = scaler_pb2_grpc.ScalerAdminStub(channel)
            watching = stub.WatchOperation(scaler_pb2.GetOperationRequest(), timeout=WAIT_S)
            assert [operation.result async for operation in watching] == ["succeeded"]
        for channels in (PLAINTEXT, Channels(token="wrong"), Channels(token=TOKEN + "x")):  # noqa: S106
            failure = await refused(address, channels)
            assert failure.code() is grpc.StatusCode.UNAUTHENTICATED
            assert failure.details() == "a valid token is required"
    assert TOKEN not in caplog.text


async def test_streams_and_unknown_methods_need_the_token_too() -> None:
    async with serving(token=TOKEN) as address:
        request = scaler_pb2.GetOperationRequest(operation_id="x")
        async with PLAINTEXT.open(address) as channel:
            stub = scaler_pb2_grpc.ScalerAdminStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.WatchOperation(request, timeout=WAIT_S).read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=WAIT_S
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await reflect.read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{SERVICE}/Nothing", request_serializer=bytes)(
                    b"", timeout=WAIT_S
                )
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_is_open_without_a_token() -> None:
    async with serving(token=TOKEN) as address, PLAINTEXT.open(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=WAIT_S
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_router_calls_weight_nodes_over_tls(
    tmp_path: Path, authority: Authority, node: Identity
) -> None:
    tls = TlsSettings(certificate=node.certificate, key=node.key)
    weight_node = ScriptedWeightNode(write_model(tmp_path), saying(50, 51), tls=tls.open())
    await weight_node.start()
    try:
        async with (
            router(tmp_path, [weight_node], tls=TlsSettings(ca=authority.ca)) as url,
            httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client,
        ):
            answer = await client.post("/v1/completions", json={"prompt": "Hello"})
            assert answer.status_code == 200, answer.text
    finally:
        await weight_node.server.stop(0)


@pytest.mark.parametrize(("host", "num_warnings"), [("0.0.0.0", 1), ("127.0.0.1", 0)])
async def test_plaintext_for_other_machines_is_warned_of_once(
    host: str, num_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(f"{host}:0", [])
    await server.start()
    await server.stop(0)
    warnings = [record for record in caplog.records if "plaintext" in record.getMessage()]
    assert len(warnings) == num_warnings


async def test_tls_for_other_machines_is_not_warned_of(
    node: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsSettings(certificate=node.certificate, key=node.key).open()
    server = Server("0.0.0.0:0", [], tls=tls)
    await server.start()
    await server.stop(0)
    assert "plaintext" not in caplog.text
