"""`kernelflume drain`: take the attention nodes that are named out of service."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelflume.cli.admin import CALL_TIMEOUT_S, scaler_admin
from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.follow import follow
from kernelflume.cli.options import (
    DEFAULT_SCALER,
    OperationId,
    ScalerAddress,
    Wait,
    WaitTimeout,
    new_operation_id,
    utf8,
)
from kernelflume.cli.security import with_channels
from kernelflume.rpc.channel import Channels  # noqa: TC001 - with_channels reads the annotations
from kernelflume.rpc.v1 import scaler_pb2


@with_channels
def drain(
    nodes: Annotated[
        list[str],
        typer.Argument(help="Attention nodes to drain.", metavar="NODE", show_default=False, callback=utf8),
    ],
    *,
    channels: Channels,
    scaler: ScalerAddress = DEFAULT_SCALER,
    wait: Wait = False,
    timeout: WaitTimeout = 600.0,
    operation_id: OperationId = None,
    deadline: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds in which the nodes must be drained, else they are resumed; 0 for no limit."
        ),
    ] = 0.0,
) -> None:
    """Drain the attention nodes that are named and remove them. Running requests go on.

    Draining lasts as long as sequences refer to a node. Automatic scaling is suspended, as by `scale`.
    """
    chosen_id = operation_id or new_operation_id()
    request = scaler_pb2.DrainRequest(
        operation_id=chosen_id,
        node_ids=nodes,
        deadline_seconds=deadline,
        # A drain is all that this operation does: a deadline that did not cover it would mean nothing.
        deadline_covers_drain=deadline > 0,
    )
    with errors_as_exit():
        with scaler_admin(scaler, channels) as admin:
            operation = admin.Drain(request, timeout=CALL_TIMEOUT_S)
        follow(scaler, chosen_id, operation, channels=channels, wait=wait, timeout_s=timeout)
