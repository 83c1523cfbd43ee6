"""`kernelflume scale`: ask for an absolute number of attention nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelflume.cli.admin import CALL_TIMEOUT_S, scaler_admin
from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.follow import follow
from kernelflume.cli.options import (
    DEFAULT_SCALER,
    MAX_COUNT,
    OperationId,
    ScalerAddress,
    Wait,
    WaitTimeout,
    new_operation_id,
)
from kernelflume.cli.security import with_channels
from kernelflume.rpc.channel import Channels  # noqa: TC001 - with_channels reads the annotations
from kernelflume.rpc.v1 import scaler_pb2


@with_channels
def scale(
    *,
    attention_nodes: Annotated[
        int, typer.Option(min=0, max=MAX_COUNT, help="How many there should be.", show_default=False)
    ],
    scaler: ScalerAddress = DEFAULT_SCALER,
    wait: Wait = False,
    timeout: WaitTimeout = 600.0,
    operation_id: OperationId = None,
    deadline: Annotated[
        float,
        typer.Option(min=0, help="Seconds in which new nodes must be ready; 0 for the scaler's default."),
    ] = 0.0,
    channels: Channels,
) -> None:
    """Add or drain attention nodes until there are as many as asked for. Running requests go on.

    Automatic scaling is suspended until `kernelflume policy resume`.
    """
    chosen_id = operation_id or new_operation_id()
    request = scaler_pb2.SetTargetRequest(
        operation_id=chosen_id, attention_nodes=attention_nodes, deadline_seconds=deadline
    )
    with errors_as_exit():
        with scaler_admin(scaler, channels) as admin:
            operation = admin.SetTarget(request, timeout=CALL_TIMEOUT_S)
        follow(scaler, chosen_id, operation, channels=channels, wait=wait, timeout_s=timeout)
