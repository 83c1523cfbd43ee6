"""The `kernelflume` command."""

from __future__ import annotations

import json
import time
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kernelflume.cli import services, status
from kernelflume.cli.admin import CALL_TIMEOUT_S, scaler_admin
from kernelflume.cli.bench.command import bench
from kernelflume.cli.drain import drain
from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.keys import keys_commands
from kernelflume.cli.move import move
from kernelflume.cli.options import DEFAULT_SCALER, MODEL_HELP, Dtype, KvCacheDtype, LoadFormat, ScalerAddress
from kernelflume.cli.output import output_console
from kernelflume.cli.page_check import check_pages
from kernelflume.cli.policy import policy_commands
from kernelflume.cli.profile_command import profile
from kernelflume.cli.progress import reporter_for
from kernelflume.cli.scale import scale
from kernelflume.cli.security import (
    with_channels,
)
from kernelflume.cli.serve import serve
from kernelflume.cli.top import top
from kernelflume.rpc.channel import Channels  # noqa: TC001 - with_channels reads the annotations
from kernelflume.rpc.v1 import scaler_pb2
from kernelflume.runtime.service import EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    help="Elastic LLM decode serving: weight nodes, and attention nodes that come and go.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help: tables would cut the names of flags, and markup would swallow what stands in brackets.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# What `kernelflume --help` lists is one line a command, in this order.
app.command(short_help="Run the whole stack on this machine.")(serve)


@app.command(name="status", short_help="Show nodes, occupancy, sequences and decisions.")
@with_channels
def show_status(
    *,
    scaler: ScalerAddress = DEFAULT_SCALER,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Instead, ask every node whether each of its pages is accounted for; exit code 1 if not.",
        ),
    ] = False,
    channels: Channels,
) -> None:
    """Show nodes with state and occupancy, how the pool is scaled, recent decisions, sequences and ranges."""
    if check:
        with errors_as_exit():
            result = check_pages(scaler, channels, wait=time.sleep)
        typer.echo(json.dumps(result.to_dict(), indent=2) if as_json else "\n".join(result.lines()))
        raise typer.Exit(EXIT_FAILED if result.faults else 0)
    with errors_as_exit(), scaler_admin(scaler, channels) as admin:
        topology = admin.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=CALL_TIMEOUT_S)
    if as_json:
        typer.echo(json.dumps(status.to_dict(topology), indent=2))
    else:
        output_console().print(status.render(topology))


app.command(short_help="Watch nodes, occupancy and decisions live.")(top)
app.command(short_help="Add or drain nodes until there are so many.")(scale)
app.command(short_help="Drain the nodes that are named.")(drain)
app.command(short_help="Hand a weight node's requests over to others.")(move)
app.add_typer(policy_commands, name="policy")
app.add_typer(keys_commands, name="keys")
app.command(short_help="Measure a model for the scaling policy.")(profile)
app.command(short_help="Replay a trace against an OpenAI endpoint and measure it.")(bench)


@app.command(short_help="Print a model's head geometry, for --geometry.")
def geometry(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False, metavar="MODEL")],
    *,
    dtype: Dtype = "auto",
    kv_cache_dtype: KvCacheDtype = "auto",
    load_format: LoadFormat = "auto",
    seed: Annotated[int, typer.Option(help="Seed of random weights.")] = 0,
) -> None:
    """Print a model's head geometry as JSON: what scalers and attention nodes take as --geometry."""
    from kernelflume.cli.prepare import find_model, geometry_of  # noqa: PLC0415 - see serve

    with errors_as_exit():
        with reporter_for(Console(stderr=True)) as reporter:
            checkpoint = find_model(model, reporter, seed if load_format == "dummy" else None)
        typer.echo(json.dumps(geometry_of(checkpoint, dtype, kv_cache_dtype).to_dict()))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(installed_version("kernelflume"))


def _service_command(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        services.become(name, context.args)

    return run


for _name, _help in services.SERVICES.items():
    app.command(
        name=_name,
        help=f"{_help} All arguments go to the service; `kernelflume {_name} --help` lists them.",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_service_command(_name))


if __name__ == "__main__":
    app()
