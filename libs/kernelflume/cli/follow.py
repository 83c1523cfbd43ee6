"""Following an operation on the command line: its phases, its outcome, the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import typer

from kernelflume.cli.admin import scaler_admin
from kernelflume.core.errors import DeadlineError, UnavailableError
from kernelflume.rpc.v1 import scaler_pb2
from kernelflume.runtime.service import EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.rpc.channel import Channels

_SUCCEEDED = "succeeded"


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
        typer.echo(
            f"operation {operation_id} is {operation.phase}; `kernelflume status` shows how it goes on"
        )
        return
    typer.echo(outcome(operation))
    if operation.result != _SUCCEEDED:
        raise typer.Exit(EXIT_FAILED)


def wait_operation(
    address: str,
    operation_id: str,
    *,
    timeout_s: float,
    on_change: Callable[[scaler_pb2.Operation], object],
    channels: Channels,
) -> scaler_pb2.Operation:
    """Watch an operation until it has a result and return it.

    Args:
        address: of the scaler.
        operation_id: as it was given with the request.
        timeout_s: bound of the wait; the operation itself goes on after it.
        on_change: called with each state that the scaler sends.
        channels: how the scaler is called.

    Raises:
        DeadlineError: it has no result within ``timeout_s``.
        UnavailableError: the scaler went away.
    """
    request = scaler_pb2.GetOperationRequest(operation_id=operation_id)
    operation = scaler_pb2.Operation()
    with scaler_admin(address, channels) as scaler:
        try:
            for operation in scaler.WatchOperation(request, timeout=timeout_s):
                on_change(operation)
        except grpc.RpcError as failure:
            if failure.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            raise DeadlineError(
                f"still {operation.phase or 'under way'} after {timeout_s:g} s; it goes on: "
                f"watch it with `kernelflume status`, or repeat with --operation-id {operation_id} --wait"
            ) from failure
    if not operation.result:
        raise UnavailableError(f"the scaler ended the watch of {operation_id} in phase {operation.phase!r}")
    return operation


def outcome(operation: scaler_pb2.Operation) -> str:
    """Return one line that says how an operation ended and how long its phases took."""
    phases = ", ".join(
        f"{phase.phase} {phase.seconds:.2f} s"
        for phase in operation.history
        if phase.phase != operation.phase
    )
    line = f"{operation.result}: {operation.initial_attention_nodes} -> {operation.target_attention_nodes}"
    details = "; ".join(text for text in (operation.reason, phases) if text)
    return f"{line} attention nodes ({details})" if details else f"{line} attention nodes"
