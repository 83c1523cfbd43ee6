"""A stand-in for a service: speaks gRPC health, topology and HTTP /ready, and misbehaves on demand.

Run as a program: ``python stub_service.py grpc|http|scaler PORT [behaviour ...]``. Behaviours:

- ``no-nodes``: as the scaler, report that no attention node could be started.
- ``fail``: log an error and exit with code 3 at once.
- ``fail-on=FILE``: the same, once FILE exists.
- ``stubborn``: ignore SIGTERM.
- ``child=FILE``: start a child in a session of its own and write its process id to FILE.
- ``never-ready``: listen, but never become ready.
- ``mark=FILE``: append the kind to FILE when ending in order.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelflume.core.errors import UnavailableError
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc, wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.service import run
from kernelflume.runtime.settings import ServiceSettings


class StubScaler(scaler_pb2_grpc.ScalerAdminServicer):
    """Reports two active nodes, or a failed operation."""

    def __init__(self, *, failed: bool) -> None:
        self._failed = failed

    async def GetTopology(self, request: Any, context: Any) -> scaler_pb2.Topology:  # noqa: N802 - gRPC's name
        if self._failed:
            operation = scaler_pb2.Operation(
                operation_id="initial", result="failed", reason="a-1 ran out of memory"
            )
            return scaler_pb2.Topology(operation=operation)
        nodes = [scaler_pb2.AttentionNodeStatus(node_id=f"a-{i}", state="active", alive=True) for i in (1, 2)]
        return scaler_pb2.Topology(epoch=3, target_attention_nodes=2, attention_nodes=nodes)


class StubWeightNode(wnode_pb2_grpc.WeightNodeServicer):
    """Reports two prepared attention nodes."""

    async def GetLoad(self, request: Any, context: Any) -> wnode_pb2.WeightNodeLoad:  # noqa: N802 - gRPC's name
        return wnode_pb2.WeightNodeLoad(prepared_nodes=["a-1#x", "a-2#y"])


async def serve_http(port: int, *, ready: bool) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status, body = ("200 OK", b"ok") if ready else ("503 Service Unavailable", b"no weight node")
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port)


async def serve(kind: str, port: int, behaviours: dict[str, str], stop: asyncio.Event) -> None:
    ready = "never-ready" not in behaviours
    if "fail" in behaviours:
        raise UnavailableError("the stub cannot work")
    if "child" in behaviours:
        start_child(Path(behaviours["child"]))
    if kind == "http":
        await serve_http(port, ready=ready)
    else:
        server = Server(f"127.0.0.1:{port}", [])
        if kind == "scaler":
            scaler_pb2_grpc.add_ScalerAdminServicer_to_server(
                StubScaler(failed="no-nodes" in behaviours), server.grpc_server
            )
        else:
            wnode_pb2_grpc.add_WeightNodeServicer_to_server(StubWeightNode(), server.grpc_server)
        await server.start()
        await server.set_serving(serving=ready)
    if "stubborn" in behaviours:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, logging.warning, "not me")
    fail_file = Path(behaviours["fail-on"]) if "fail-on" in behaviours else None
    while not stop.is_set():
        if fail_file is not None and fail_file.exists():
            raise UnavailableError("the stub broke")
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.05)
    if "mark" in behaviours:
        append(Path(behaviours["mark"]), kind)


def start_child(path: Path) -> None:
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    path.write_text(str(child.pid))


def append(path: Path, line: str) -> None:
    with path.open("a") as marks:
        marks.write(f"{line}\n")


def main() -> None:
    kind, port, *rest = sys.argv[1:]
    behaviours = dict(item.partition("=")[::2] for item in rest)
    run(kind, ServiceSettings(log_level="warning"), lambda stop: serve(kind, int(port), behaviours, stop))


if __name__ == "__main__":
    main()
