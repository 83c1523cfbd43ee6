"""Following an operation on the command line: its phases, its outcome, the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kernelflume.cli.scale import SUCCEEDED, outcome, wait_operation
from kernelflume.runtime.service import EXIT_FAILED

if TYPE_CHECKING:
    from kernelflume.rpc.channel import Channels
    from kernelflume.rpc.v1 import scaler_pb2


def follow(
    address: str,
    operation_id: str,
    operation: scaler_pb2.Operation,
    *,
    channels: Channels,
    wait: bool,
    timeout_s: float,
) -> None:
    """Print how an operation stands or, when told to wait, its phases and how it ended.

    Raises:
        DeadlineError: it has no result within ``timeout_s``.
        UnavailableError: the scaler went away.
        typer.Exit: it ended, and did not succeed.
    """
    if wait and not operation.result:
        operation = wait_operation(
            address,
            operation_id,
            timeout_s=timeout_s,
            channels=channels,
            on_change=lambda state: typer.echo(state.phase, err=True),
        )
    if not operation.result:
        typer.echo(f"{operation_id}: {operation.phase}")
        return
    typer.echo(outcome(operation))
    if operation.result != SUCCEEDED:
        raise typer.Exit(EXIT_FAILED)
