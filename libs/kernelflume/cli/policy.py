"""`kernelflume policy`: the settings of automatic scaling, and whether it is paused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelflume.cli.admin import CALL_TIMEOUT_S, scaler_admin
from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.options import DEFAULT_SCALER, ScalerAddress
from kernelflume.cli.security import with_channels
from kernelflume.core.errors import ConfigurationError
from kernelflume.rpc.channel import Channels  # noqa: TC001 - with_channels reads the annotations
from kernelflume.rpc.v1 import scaler_pb2
from kernelflume.runtime.smallfile import MAX_BYTES

_STANDARD_INPUT = Path("-")

policy_commands = typer.Typer(
    help="Show, replace, pause or resume the policy of automatic scaling.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@policy_commands.command()
@with_channels
def show(*, channels: Channels, scaler: ScalerAddress = DEFAULT_SCALER) -> None:
    """Print the policy in force as YAML, with where it is from and who chooses the number of nodes."""
    with errors_as_exit(), scaler_admin(scaler, channels) as admin:
        policy = admin.GetPolicy(scaler_pb2.GetPolicyRequest(), timeout=CALL_TIMEOUT_S)
        typer.echo(as_yaml(policy), nl=False)


@policy_commands.command(name="set")
@with_channels
def replace(
    file: Annotated[
        Path,
        typer.Argument(
            help="YAML file with the settings; - reads standard input.", metavar="FILE", show_default=False
        ),
    ],
    *,
    channels: Channels,
    scaler: ScalerAddress = DEFAULT_SCALER,
) -> None:
    """Replace the whole policy; a setting that FILE does not name gets its default.

    A bad one is refused with every bad setting named, and the present one stays. It holds until the policy
    file of the scaler is edited, and outlives the scaler.
    """
    with errors_as_exit():
        request = scaler_pb2.SetPolicyRequest(yaml=read_text(file))
        with scaler_admin(scaler, channels) as admin:
            typer.echo(as_yaml(admin.SetPolicy(request, timeout=CALL_TIMEOUT_S)), nl=False)


@policy_commands.command()
@with_channels
def pause(*, channels: Channels, scaler: ScalerAddress = DEFAULT_SCALER) -> None:
    """Leave the number of nodes as it is. Lost nodes are still replaced."""
    request = scaler_pb2.PauseAutomaticScalingRequest()
    with errors_as_exit(), scaler_admin(scaler, channels) as admin:
        typer.echo(as_yaml(admin.PauseAutomaticScaling(request, timeout=CALL_TIMEOUT_S)), nl=False)


@policy_commands.command()
@with_channels
def resume(*, channels: Channels, scaler: ScalerAddress = DEFAULT_SCALER) -> None:
    """Let the policy choose the number of nodes again, after `pause`, `scale` or `drain`."""
    request = scaler_pb2.ResumeAutomaticScalingRequest()
    with errors_as_exit(), scaler_admin(scaler, channels) as admin:
        typer.echo(as_yaml(admin.ResumeAutomaticScaling(request, timeout=CALL_TIMEOUT_S)), nl=False)


def as_yaml(policy: scaler_pb2.Policy) -> str:
    """Return a policy as text that `kernelflume policy set` takes: what is no setting is a comment."""
    return f"# scaling is {policy.mode}; policy from: {policy.origin}\n{policy.yaml}"


def read_text(file: Path) -> str:
    """Read a file, or standard input for ``-``; a pipe will do as well.

    Raises:
        ConfigurationError: it cannot be read, is no text, or longer than any policy.
    """
    name = "standard input" if file == _STANDARD_INPUT else str(file)
    try:
        if file == _STANDARD_INPUT:
            if sys.stdin is None:
                raise ConfigurationError("cannot read standard input: it is closed")
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with file.open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from error
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"{name} is longer than {MAX_BYTES // 1024} KiB: that is no policy")
    return text
