"""`kernelflume profile`: measure a model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.options import MODEL_HELP, Dtype, KvCacheDtype, state_dir
from kernelflume.cli.parts import LOCALHOST
from kernelflume.cli.progress import reporter_for
from kernelflume.cli.stack import StackOptions
from kernelflume.runtime.settings import parse_size


def _parse_rows(text: str) -> tuple[int, ...]:
    """Read numbers of rows such as 1,8,32; nothing stands for the usual ones."""
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,8,32") from None


def profile(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False, metavar="MODEL")],
    *,
    output: Annotated[
        Path,
        typer.Option(
            help="File that gets the profile, for `serve --profile` and the scaler's --profile-file.",
            dir_okay=False,
        ),
    ] = Path("profile.json"),
    rows: Annotated[
        Any,
        typer.Option(
            parser=_parse_rows,
            metavar="N,N,...",
            help="Rows of the steps. [default: 1,2,4,8,16,32; quick 1,4,16]",
        ),
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer points: faster, less exact.")] = False,
    attention_nodes: Annotated[
        int, typer.Option(min=1, help="Attention nodes that will share the cores, as with serve.")
    ] = 2,
    dtype: Dtype = "auto",
    kv_cache_dtype: KvCacheDtype = "auto",
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

    A stack of one attention node is started, measured under load for a minute or two, and ended. Requests go
    through its router; for a while there is a second attention node.
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
            kv_cache_dtype=kv_cache_dtype,
            max_model_len=max_model_len,
            redis_url=None,
            cluster="kernelflume",
            seed=0,
            transport_error_handling=transport_error_handling,
            log_level="info",
            log_dir=(state_dir() / "profile").absolute(),
            enable_prefix_caching=False,
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
