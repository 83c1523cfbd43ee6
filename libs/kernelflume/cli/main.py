"""The `kernelflume` command."""

from __future__ import annotations

import asyncio
import json
import os
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from kernelflume.cli import services, status
from kernelflume.cli.admin import CALL_TIMEOUT_S, scaler_admin
from kernelflume.cli.drain import drain
from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.options import DEFAULT_SCALER, ScalerAddress, utf8
from kernelflume.cli.output import output_console
from kernelflume.cli.policy import policy_commands
from kernelflume.cli.progress import reporter_for
from kernelflume.cli.run import run_stages
from kernelflume.cli.scale import scale
from kernelflume.cli.scaling_files import (
    DEFAULT_ATTENTION_NODES,
    POLICY_FLAG,
    PROFILE_FLAG,
    first_number,
    readable,
)
from kernelflume.cli.security import (
    TlsCa,
    TlsCertificate,
    TlsKey,
    TlsRequireClientCertificate,
    TokenFile,
    admin_channels,
    tls_settings,
    tracing_settings,
    with_channels,
)
from kernelflume.cli.stack import LOCALHOST, StackOptions
from kernelflume.cli.top import top
from kernelflume.rpc.channel import Channels  # noqa: TC001 - with_channels reads the annotations
from kernelflume.rpc.v1 import scaler_pb2
from kernelflume.runtime.settings import parse_size

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

MODEL_HELP = "A Hugging Face folder, a .gguf file, or `smollm2`."
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(help="Format of weights and of keys and values; auto is float32 on a CPU."),
]


def parse_rows(text: str) -> tuple[int, ...]:
    """Read numbers of rows such as 1,8,32; nothing stands for the usual ones."""
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,8,32") from None


def _state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "kernelflume"


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False, metavar="MODEL")],
    *,
    attention_nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Attention nodes to begin with. [default: {DEFAULT_ATTENTION_NODES}, or the minimum of "
            "the scaling policy]",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address that clients reach.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port that clients reach; 0 takes a free one.")
    ] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            callback=utf8, help="Name that clients use for the model; may be repeated. [default: MODEL]"
        ),
    ] = None,
    dtype: Dtype = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(min=2, help="Longest prompt and answer together, in tokens. [default: the model's]"),
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="Routing-table store. [default: an embedded one]")
    ] = None,
    attention_node_memory: Annotated[
        Any,
        typer.Option(parser=parse_size, metavar="SIZE", help="Keys and values a node can hold, like 512MiB."),
    ] = "512MiB",
    scaling_policy: Annotated[
        Path | None,
        typer.Option(
            POLICY_FLAG,
            help="YAML file with the policy of automatic scaling, read again whenever it is edited. "
            "[default: people choose the number of nodes]",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(PROFILE_FLAG, help="Performance profile of the model; an SLO in the policy needs it."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of requests that bring none.")] = 0,
    provider: Annotated[
        Literal["process", "ray"],
        typer.Option(help="Where attention nodes run: on this machine, or on the machines of a Ray cluster."),
    ] = "process",
    ray_address: Annotated[
        str,
        typer.Option(
            help="Ray cluster: `auto` is the one that this machine is part of, HEAD:PORT names one, `local` "
            "starts one here."
        ),
    ] = "auto",
    node_host: Annotated[
        str,
        typer.Option(
            help="Address of this machine that the machines of the Ray cluster reach. "
            "[default: the one towards them]",
            show_default=False,
        ),
    ] = "",
    transport_error_handling: Annotated[
        Literal["peer", "none"] | None,
        typer.Option(
            help="`none` is fastest within one machine, where a closed doorbell tells of a dead process. "
            "With `peer` the transport itself watches its peers. [default: none; peer with --provider ray]"
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the log files, one a service. [default: ~/.local/state/kernelflume/PORT]"
        ),
    ] = None,
    cluster: Annotated[str, typer.Option(help="Prefix of every key in the store.")] = "kernelflume",
    scaler_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the scaler's admin API; 0 takes a free one.")
    ] = 8100,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Least severe level that is logged.")
    ] = "info",
    start_timeout: Annotated[float, typer.Option(min=1, help="Seconds until all must be ready.")] = 300.0,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_require_client_certificate: TlsRequireClientCertificate = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(help="Collector of traces, OTLP over gRPC, like http://127.0.0.1:4317. [default: none]"),
    ] = None,
) -> None:
    """Run the whole stack on this machine: store, scaler, attention nodes, weight node and router.

    With `--provider ray` attention nodes run on the machines of a Ray cluster instead. Store and weight node
    then listen where those reach them: keep that network to yourself.

    A setting of a service that has no flag here is given by its environment variable, such as
    KERNELFLUME_WNODE_MAX_NUM_SEQS; `kernelflume wnode --help` lists them.
    """
    with errors_as_exit():
        tls = tls_settings(
            ca=tls_ca,
            certificate=tls_certificate,
            key=tls_key,
            require_client_certificate=tls_require_client_certificate,
        )
        channels = admin_channels(tls, token_file)
        tracing = tracing_settings(otlp_endpoint)
        policy_file = readable(POLICY_FLAG, scaling_policy)
        profile_file = readable(PROFILE_FLAG, profile)
        num_attention_nodes = first_number(attention_nodes, policy_file)
    options = StackOptions(
        model=model,
        served_model_names=tuple(served_model_name or ()),
        num_attention_nodes=num_attention_nodes,
        policy_file=policy_file,
        profile_file=profile_file,
        attention_node_memory_bytes=attention_node_memory,
        host=host,
        port=port,
        scaler_port=scaler_port,
        dtype=dtype,
        max_model_len=max_model_len,
        redis_url=redis_url,
        cluster=cluster,
        seed=seed,
        transport_error_handling=transport_error_handling or ("none" if provider == "process" else "peer"),
        log_level=log_level,
        log_dir=(log_dir or _state_dir() / str(port)).absolute(),
        common_flags=(*tls.flags(), *tracing.flags()),
        admin_token_file=token_file,
        provider=provider,
        ray_address=ray_address,
        node_host=node_host if provider == "ray" else LOCALHOST,
    )
    # Reading checkpoints needs libraries that no other command does.
    from kernelflume.cli.prepare import prepare  # noqa: PLC0415

    err = Console(stderr=True)
    with errors_as_exit():
        with reporter_for(err) as reporter:
            options, stages = prepare(options, reporter)
        asyncio.run(
            run_stages(
                options,
                stages,
                start_timeout_s=start_timeout,
                channels=channels,
                out=Console(),
                err=err,
            )
        )


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False, metavar="MODEL")],
    *,
    output: Annotated[
        Path,
        typer.Option(help="File that gets the profile, for the scaler's --profile-file.", dir_okay=False),
    ] = Path("profile.json"),
    rows: Annotated[
        Any,
        typer.Option(
            parser=parse_rows,
            metavar="N,N,...",
            help="Rows of the steps. [default: 1,2,4,8,16,32; quick 1,4,16]",
        ),
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Measure as little as says anything.")] = False,
    attention_nodes: Annotated[
        int, typer.Option(min=1, help="Attention nodes that will share the cores, as with serve.")
    ] = 2,
    dtype: Dtype = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(min=2, help="Longest prompt and answer together, in tokens. [default: the model's]"),
    ] = None,
    attention_node_memory: Annotated[
        Any,
        typer.Option(parser=parse_size, metavar="SIZE", help="Keys and values a node can hold, like 512MiB."),
    ] = "512MiB",
    transport_error_handling: Annotated[
        Literal["peer", "none"], typer.Option(help="As with serve.")
    ] = "none",
    start_timeout: Annotated[float, typer.Option(min=1, help="Seconds until all must be ready.")] = 300.0,
) -> None:
    """Measure on this machine what the scaling policy needs to know of a model, and write it to a file.

    A stack of one attention node is started, measured under load for a minute or two, and ended.
    """
    from kernelflume.cli.profile import (  # noqa: PLC0415 - see serve
        ProfileOptions,
        check_writable,
        measure_profile,
        write_profile,
    )
    from kernelflume.cli.profile_plan import summary  # noqa: PLC0415

    options = ProfileOptions(
        stack=StackOptions(
            model=model,
            served_model_names=(),
            num_attention_nodes=attention_nodes,
            attention_node_memory_bytes=attention_node_memory,
            host=LOCALHOST,
            port=0,
            scaler_port=0,
            dtype=dtype,
            max_model_len=max_model_len,
            redis_url=None,
            cluster="kernelflume",
            seed=0,
            transport_error_handling=transport_error_handling,
            log_level="info",
            log_dir=(_state_dir() / "profile").absolute(),
        ),
        rows=rows,
        is_quick=quick,
        start_timeout_s=start_timeout,
    )
    with errors_as_exit():
        check_writable(output)
        with reporter_for(Console(stderr=True)) as reporter:
            measured, steps = measure_profile(options, reporter)
        write_profile(measured, output)
    typer.echo(summary(measured, steps))
    typer.echo(f"written to {output}")


@app.command(name="status")
@with_channels
def show_status(
    *,
    scaler: ScalerAddress = DEFAULT_SCALER,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    channels: Channels,
) -> None:
    """Show nodes with state and occupancy, how the pool is scaled, recent decisions, sequences and ranges."""
    with errors_as_exit(), scaler_admin(scaler, channels) as admin:
        topology = admin.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=CALL_TIMEOUT_S)
    if as_json:
        typer.echo(json.dumps(status.to_dict(topology), indent=2))
    else:
        output_console().print(status.render(topology))


app.command()(scale)
app.command()(drain)
app.command()(top)
app.add_typer(policy_commands, name="policy")


@app.command()
def geometry(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False, metavar="MODEL")],
    *,
    dtype: Dtype = "auto",
) -> None:
    """Print a model's head geometry as JSON: what scalers and attention nodes take as --geometry."""
    from kernelflume.cli.prepare import find_model, geometry_of  # noqa: PLC0415 - see serve

    with errors_as_exit():
        with reporter_for(Console(stderr=True)) as reporter:
            checkpoint = find_model(model, reporter)
        typer.echo(json.dumps(geometry_of(checkpoint, dtype).to_dict()))


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
