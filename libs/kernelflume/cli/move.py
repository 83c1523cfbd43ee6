"""`kernelflume move`: hand running requests of a weight node over to the others."""

from __future__ import annotations

from typing import Annotated

import grpc
import typer

from kernelflume.cli.admin import CALL_TIMEOUT_S, scaler_admin
from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.options import DEFAULT_SCALER, MAX_COUNT, ScalerAddress, utf8
from kernelflume.cli.security import with_channels
from kernelflume.core.errors import KernelFlumeError, NotFoundError, UnauthenticatedError
from kernelflume.rpc.channel import Channels  # noqa: TC001 - with_channels reads the annotations
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import scaler_pb2, wnode_pb2, wnode_pb2_grpc


@with_channels
def move(
    node: Annotated[
        str, typer.Argument(help="Weight node whose requests are to move.", show_default=False, callback=utf8)
    ],
    *,
    channels: Channels,
    scaler: ScalerAddress = DEFAULT_SCALER,
    requests: Annotated[int, typer.Option(min=0, max=MAX_COUNT, help="Move at most so many; 0 for all.")] = 0,
    drain: Annotated[
        bool | None,
        typer.Option("--drain/--resume", help="Place no request there from now on, or do so again."),
    ] = None,
) -> None:
    """Hand running requests of a weight node over to the others, between two of their tokens.

    Their keys and values stay where they are, and nothing is computed again. Where no other weight node
    serves, requests stay.
    """
    with errors_as_exit():
        with scaler_admin(scaler, channels) as admin:
            topology = admin.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=CALL_TIMEOUT_S)
        address = next((known.address for known in topology.weight_nodes if known.node_id == node), None)
        if address is None:
            raise NotFoundError(f"there is no weight node {node}")
        request = wnode_pb2.MoveRequestsRequest(max_requests=requests, draining=drain)
        with channels.open_blocking(address) as channel:
            try:
                stub = wnode_pb2_grpc.WeightNodeStub(channel)
                answer = stub.MoveRequests(request, timeout=CALL_TIMEOUT_S)
            except grpc.RpcError as failure:
                raise _explained(error_of(failure), node, address) from failure
    if drain is False:
        typer.echo(f"{node} takes requests")
    else:
        typer.echo(f"{answer.num_asked} requests of {node} are to move")


def _explained(error: KernelFlumeError, node: str, address: str) -> KernelFlumeError:
    if isinstance(error, UnauthenticatedError):
        return UnauthenticatedError(f"the weight node {node} at {address}: {error} (--token-file)")
    return error
