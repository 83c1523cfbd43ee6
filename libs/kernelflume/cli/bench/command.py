"""`kernelflume bench`: put a load on an OpenAI endpoint and measure what it gives."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Literal

import typer

from kernelflume.cli.bench.draws import Draws
from kernelflume.cli.bench.parameters import (
    drawn,
    finite,
    header_lines,
    id_range,
    object_fields,
    request_headers,
    require_client,
)
from kernelflume.cli.exits import EXIT_INTERRUPTED, errors_as_exit
from kernelflume.cli.options import DEFAULT_SCALER, ScalerAddress, utf8
from kernelflume.cli.output import output_console
from kernelflume.cli.security import with_channels
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.request_class import HEAVY_TOKENS, WARM_TOKENS
from kernelflume.rpc.channel import Channels  # noqa: TC001 - with_channels reads the annotations
from kernelflume.runtime.service import EXIT_FAILED

_MAX_REQUESTS = 200_000
"""Of each a few hundred bytes are kept until the end."""
_NOT_SHOWN = (
    "workload", "header", "compare", "as_json", "output_dir", "ca", "base_url", "record", "profile", "scaler",
    "token_file", "tls_ca", "tls_certificate", "tls_key", "tls_server_name",
)  # fmt: skip
"""Parameters that stand elsewhere in a result, or may hold what is nobody else's business."""


@with_channels
def bench(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(help="A trace file (.gz too), or `generated`.", show_default=False, callback=utf8),
    ] = None,
    *,
    base_url: Annotated[
        str, typer.Option(callback=utf8, help="The endpoint, with /v1 or without.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(callback=utf8, help="Model to ask for. [default: the first that is served]")
    ] = None,
    api: Annotated[
        Literal["completions", "chat"],
        typer.Option(help="`completions` sends token ids, `chat` messages of common words."),
    ] = "completions",
    trace_format: Annotated[
        Literal["mooncake", "agentic", "azure"] | None,
        typer.Option("--format", help="Of the trace. [default: told by its first line]"),
    ] = None,
    num_requests: Annotated[int, typer.Option(min=1, max=_MAX_REQUESTS, help="How many are sent.")] = 200,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turns of a session at most.")] = None,
    pace: Annotated[
        Literal["arrivals", "think"] | None,
        typer.Option(
            help="Later turns of a session follow by the trace's times, or by think times after each answer. "
            "[default: arrivals where it is told when sessions begin]",
        ),
    ] = None,
    request_rate: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            help="Requests a second, a Poisson process; `inf` for all at once. [default: the trace's times]",
        ),
    ] = None,
    active_sessions: Annotated[
        int,
        typer.Option(min=1, help="Sessions at a time, where neither trace nor rate tells when they begin."),
    ] = 8,
    max_concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at a time at most.")] = None,
    time_scale: Annotated[float, typer.Option(min=1e-6, max=1e9, help="Times are divided by it.")] = 1.0,
    length_scale: Annotated[
        float,
        typer.Option(
            min=1e-3,
            max=1e9,
            help="Lengths in tokens, and the limits of classes, are divided by it.",
        ),
    ] = 1.0,
    output_scale: Annotated[
        float | None,
        typer.Option(
            min=1e-3,
            max=1e9,
            help="Lengths of answers are divided by it. [default: --length-scale]",
        ),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Longest prompt and answer together. [default: the endpoint's]")
    ] = None,
    max_think_time: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="In seconds, after --time-scale.")
    ] = None,
    turns: Annotated[
        str,
        typer.Option(
            metavar="DRAWS",
            callback=drawn,
            help="Generated: turns of a session. DRAWS: N, LOW-HIGH (uniform), or MEDIAN~SIGMA (lognormal).",
        ),
    ] = "30~0.5",
    system_tokens: Annotated[
        int,
        typer.Option(min=0, max=10**12, help="Generated: at the start of each session, the same in all."),
    ] = 4096,
    first_tokens: Annotated[
        str, typer.Option(metavar="DRAWS", callback=drawn, help="Generated: new in a first turn.")
    ] = "8182~0.5",
    turn_tokens: Annotated[
        str, typer.Option(metavar="DRAWS", callback=drawn, help="Generated: new in a later turn.")
    ] = "1350~0.7",
    output_tokens: Annotated[
        str, typer.Option(metavar="DRAWS", callback=drawn, help="Generated: of an answer.")
    ] = "450~0.6",
    think_time: Annotated[
        str, typer.Option(metavar="DRAWS", callback=drawn, help="Generated: seconds between turns.")
    ] = "5.2~1.18",
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Of tokens, arrivals and generated sessions.")
    ] = 0,
    token_ids: Annotated[
        str,
        typer.Option(metavar="LOW-HIGH", callback=id_range, help="Range of token ids, HIGH not included."),
    ] = "1000-30000",  # noqa: S107 - tokens of a text
    warmups: Annotated[
        int, typer.Option(min=0, max=1000, help="Requests before the run that are not measured.")
    ] = 1,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds for a whole answer.")
    ] = 600.0,
    ignore_eos: Annotated[bool, typer.Option(help="Have all tokens generated that are asked for.")] = True,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Of sampling.")] = 0.0,
    openai_only: Annotated[
        bool, typer.Option("--openai-only", help="Send no fields beyond OpenAI's own, such as ignore_eos.")
    ] = False,
    extra_body: Annotated[
        str, typer.Option(metavar="JSON", callback=object_fields, help="Fields added to each request.")
    ] = "{}",
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:VALUE", callback=header_lines, help="Sent with each request; may be repeated."
        ),
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(callback=utf8, help="Environment variable that holds the API key, if set.")
    ] = "OPENAI_API_KEY",
    ca: Annotated[
        Path | None, typer.Option(dir_okay=False, help="PEM file that verifies an https endpoint.")
    ] = None,
    warm_tokens: Annotated[
        float, typer.Option(min=0, callback=finite, help="WARM requests have at most so many new tokens.")
    ] = WARM_TOKENS,
    heavy_tokens: Annotated[
        float, typer.Option(min=0, callback=finite, help="HEAVY requests have more new tokens than this.")
    ] = HEAVY_TOKENS,
    classes_by: Annotated[
        Literal["usage", "trace"] | None,
        typer.Option(
            help="New tokens by the server's usage, or by the trace and a cache without an end. "
            "[default: usage, if cached tokens are told]",
        ),
    ] = None,
    label: Annotated[str, typer.Option(callback=utf8, help="Stands in the result.")] = "",
    output_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Gets result.json, requests.csv and plot.png.")
    ] = None,
    save_detailed: Annotated[
        bool,
        typer.Option(
            "--save-detailed", help="The result has each request too: lengths, times, text, token ids."
        ),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Gets a recording of the run, for `kernelflume sim validate`."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="For --record: of this machine."),
    ] = None,
    scaler: ScalerAddress = DEFAULT_SCALER,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Run nothing; show two results side by side."),
    ] = None,
    channels: Channels,
) -> None:
    """Replay a trace, or generated sessions, against any endpoint that speaks OpenAI's API.

    Exit code 0: all requests succeeded. 1: some failed, or nothing serves there. 2: a setting or the trace is
    no good. 130: interrupted; what was measured until then is shown and written.
    """
    with errors_as_exit():
        require_client()
    # Numbers, pictures and the client take a while to import, which no other command should wait for.
    from kernelflume.cli.bench.benchmark import BenchSettings  # noqa: PLC0415
    from kernelflume.cli.bench.classes import ClassSource  # noqa: PLC0415
    from kernelflume.cli.bench.comparison import compare_files  # noqa: PLC0415
    from kernelflume.cli.bench.dialogue import Api  # noqa: PLC0415
    from kernelflume.cli.bench.endpoint import parse_target  # noqa: PLC0415
    from kernelflume.cli.bench.fitting import Fitting  # noqa: PLC0415
    from kernelflume.cli.bench.formats import TraceFormat  # noqa: PLC0415
    from kernelflume.cli.bench.generated import SessionShape  # noqa: PLC0415
    from kernelflume.cli.bench.load import Asking  # noqa: PLC0415
    from kernelflume.cli.bench.pacing import Pace  # noqa: PLC0415
    from kernelflume.cli.bench.running import prepare_recorder, run_and_show  # noqa: PLC0415

    with errors_as_exit():
        if compare is not None:
            output_console().print(compare_files(*compare))
            return
        if workload is None:
            raise ConfigurationError("name a trace file, or `generated`")
        if warm_tokens > heavy_tokens:
            raise ConfigurationError("--warm-tokens is more than --heavy-tokens")
        settings = BenchSettings(
            workload=workload,
            trace_format=None if trace_format is None else TraceFormat(trace_format),
            shape=SessionShape(
                turns=Draws.parse(turns),
                system_tokens=system_tokens,
                first_tokens=Draws.parse(first_tokens),
                turn_tokens=Draws.parse(turn_tokens),
                output_tokens=Draws.parse(output_tokens),
                think_s=Draws.parse(think_time),
            ),
            target=parse_target(base_url, request_headers(header, api_key_env), ca),
            base_url=base_url,
            model=model,
            asking=Asking(
                api=Api(api),
                model=model or "",
                timeout_s=request_timeout,
                ignore_eos=ignore_eos,
                openai_only=openai_only,
                temperature=temperature,
                extra=json.loads(extra_body),
            ),
            fitting=Fitting(
                num_requests=num_requests,
                max_turns=max_turns,
                length_scale=length_scale,
                output_scale=output_scale,
                time_scale=time_scale,
                max_model_len=max_model_len,
                max_think_s=max_think_time,
            ),
            pace=None if pace is None else Pace(pace),
            request_rate=request_rate,
            active_sessions=active_sessions,
            max_concurrency=max_concurrency,
            num_warmups=warmups,
            seed=seed,
            token_ids=(int(token_ids.partition("-")[0]), int(token_ids.partition("-")[2])),
            warm_tokens=warm_tokens,
            heavy_tokens=heavy_tokens,
            classes_by=None if classes_by is None else ClassSource(classes_by),
            label=label,
            keeps_details=save_detailed,
            shown={name: value for name, value in context.params.items() if name not in _NOT_SHOWN},
        )
        recorder = prepare_recorder(record, profile, scaler, channels) if record is not None else None
        result = run_and_show(settings, output_dir, record, recorder, as_json=as_json)
    if result["kernelflume"]["interrupted"]:
        raise typer.Exit(EXIT_INTERRUPTED)
    if result["failed"]:
        raise typer.Exit(EXIT_FAILED)
