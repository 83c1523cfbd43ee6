"""Whether a part of the stack can do its work. Each probe asks once and answers None, or what is missing."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelflume.cli.parts import Probe
from kernelflume.core.errors import UnavailableError
from kernelflume.core.leases import NodeKind
from kernelflume.core.routing import NodeState
from kernelflume.rpc.channel import PLAINTEXT, Channels
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc, wnode_pb2, wnode_pb2_grpc
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PROBE_TIMEOUT_S = 2.0
"""Bound of one probe."""
_BODY_BYTES = 4096


class Readiness:
    """All probes of one stack. It holds gRPC channels: close it at the end."""

    def __init__(self, *, cluster: str, num_attention_nodes: int, channels: Channels = PLAINTEXT) -> None:
        self._opener = channels
        self._cluster = cluster
        self._num_attention_nodes = num_attention_nodes
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._probes: dict[Probe, Callable[[str], Awaitable[str | None]]] = {
            Probe.STORE: self._store,
            Probe.GRPC: self._grpc,
            Probe.TOPOLOGY: self._topology,
            Probe.CONNECTED: self._connected,
            Probe.MEMBER: self._member,
            Probe.HTTP: self._http,
        }

    async def missing(self, probe: Probe, address: str) -> str | None:
        """Ask once; None when the part is ready, else what is missing.

        Raises:
            UnavailableError: it never will be, as the scaler says.
        """
        return await self._probes[probe](address)

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._opener.open(address)
        return self._channels[address]

    async def _store(self, url: str) -> str | None:
        return await store_fault(url, self._cluster)

    async def _grpc(self, address: str) -> str | None:
        stub = health_pb2_grpc.HealthStub(self._channel(address))
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"no answer at {address}: {error_of(error)}"
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return None
        return f"not serving yet at {address}"

    async def _topology(self, address: str) -> str | None:
        stub = scaler_pb2_grpc.ScalerAdminStub(self._channel(address))
        try:
            topology = await stub.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"no topology from {address}: {error_of(error)}"
        return attention_fault(topology, self._num_attention_nodes)

    async def _connected(self, address: str) -> str | None:
        stub = wnode_pb2_grpc.WeightNodeStub(self._channel(address))
        try:
            load = await stub.GetLoad(wnode_pb2.GetLoadRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"no load from {address}: {error_of(error)}"
        num_prepared = len(load.prepared_nodes)
        if num_prepared >= self._num_attention_nodes:
            return None
        return f"connected to {num_prepared} of {self._num_attention_nodes} attention nodes"

    async def _member(self, address: str) -> str | None:
        node_id, _, url = address.partition("@")
        store = RedisStore(url, cluster=self._cluster, timeout_s=PROBE_TIMEOUT_S)
        try:
            living = await store.living(NodeKind.WEIGHT)
        except UnavailableError as error:
            return str(error)
        finally:
            await store.close()
        for record in living:
            if record.node_id == node_id:
                return await self._grpc(record.address) or await self._connected(record.address)
        return "it has not told its address yet"

    async def _http(self, url: str) -> str | None:
        return await asyncio.to_thread(http_fault, url)


async def store_fault(url: str, cluster: str) -> str | None:
    """Read the routing table at ``url``; None if that works, else why not.

    Raises:
        ConfigurationError: the URL cannot be understood.
    """
    store = RedisStore(url, cluster=cluster, timeout_s=PROBE_TIMEOUT_S)
    try:
        await store.read()
    except UnavailableError as error:
        return str(error)
    finally:
        await store.close()
    return None


def attention_fault(topology: scaler_pb2.Topology, num_wanted: int) -> str | None:
    """Compare a topology with the wanted number of active attention nodes.

    Raises:
        UnavailableError: the scaler gave up getting there.
    """
    operation = topology.operation
    if operation.result == "failed":
        raise UnavailableError(f"attention nodes could not be started: {operation.reason}")
    num_active = sum(node.state == NodeState.ACTIVE for node in topology.attention_nodes)
    # More when a policy that was set while the stack ran before has another minimum.
    if num_active >= num_wanted:
        return None
    phase = f", {operation.phase}" if operation.phase else ""
    return f"{num_active} of {num_wanted} attention nodes active{phase}"


def http_fault(url: str) -> str | None:
    """GET ``url``/ready; None if it answers 200, else what it says."""
    target = urlsplit(url)
    # Not urllib: its proxy settings must not come between two programs of one machine.
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        body = answer.read(_BODY_BYTES).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return f"no answer at {url}: {error}"
    finally:
        connection.close()
    return None if answer.status == http.HTTPStatus.OK else _spoken(body) or f"/ready answers {answer.status}"


def _spoken(body: str) -> str:
    """Return the message of an OpenAI error object, or the body as it is."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body
