"""`kernelflume serve`: the whole stack on this machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Any, Literal

import psutil
import typer
from rich.console import Console

from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.options import (
    MODEL_HELP,
    Dtype,
    KvCacheDtype,
    LoadFormat,
    PlacementPolicy,
    amounts,
    chosen_roles,
    device_names,
    state_dir,
    utf8,
    weight_devices,
    weight_roles,
)
from kernelflume.cli.parts import LOCALHOST
from kernelflume.cli.progress import reporter_for
from kernelflume.cli.run import run_stages
from kernelflume.cli.scaling_files import (
    DEFAULT_ATTENTION_NODES,
    POLICY_FLAG,
    PROFILE_FLAG,
    chosen_provider,
    read_facts,
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
)
from kernelflume.cli.stack import StackOptions
from kernelflume.runtime.settings import parse_size


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
    kv_cache_dtype: KvCacheDtype = "auto",
    load_format: LoadFormat = "auto",
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Keep what was computed, while there is room, for requests that begin alike.",
        ),
    ] = True,
    device: Annotated[
        str,
        typer.Option(
            callback=weight_devices,
            metavar="DEVICE,...",
            help="Where the model computes: cpu, cuda or cuda:N; weight nodes take several in turn.",
        ),
    ] = "cpu",
    weight_nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Weight nodes, each with all weights. [default: 1, or as many as roles]"),
    ] = None,
    weight_node_roles: Annotated[
        str,
        typer.Option(
            callback=weight_roles,
            metavar="ROLE,...",
            help="What each weight node takes: `both`, `prefill` (prompts) or `decode` (what follows). "
            "[default: both]",
            show_default=False,
        ),
    ] = "",
    placement_policy: Annotated[
        PlacementPolicy | None,
        typer.Option(help="How the router chooses among weight nodes. [default: least_loaded]"),
    ] = None,
    attention_devices: Annotated[
        str,
        typer.Option(
            callback=device_names,
            metavar="DEVICE,...",
            help="Where attention nodes keep keys and values, taken in turn by their numbers. "
            "[default: as --device]",
            show_default=False,
        ),
    ] = "",
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
    seed: Annotated[int, typer.Option(help="Seed of requests that bring none, and of random weights.")] = 0,
    provider_asked: Annotated[
        Literal["process", "ray"] | None,
        typer.Option(
            "--provider",
            help="Where attention nodes run: on this machine, or on the machines of a Ray cluster. "
            "[default: process, or as the scaling policy says]",
        ),
    ] = None,
    ray_address: Annotated[
        str,
        typer.Option(
            help="Ray cluster: `auto` is the one that this machine is part of, HEAD:PORT names one, `local` "
            "starts one here."
        ),
    ] = "auto",
    weight_node_provider: Annotated[
        Literal["process", "ray"],
        typer.Option(
            help="Where weight nodes run: on this machine, or with --provider ray as actors too. The "
            "model's folder must then be readable under the same path on their Ray nodes."
        ),
    ] = "process",
    weight_node_cpus: Annotated[
        float,
        typer.Option(
            min=0, help="CPUs that a weight node on Ray asks for; also the threads of its kernels, 0 for all."
        ),
    ] = 1.0,
    weight_node_resources: Annotated[
        str,
        typer.Option(
            callback=amounts,
            metavar="JSON",
            help='Custom resources that a weight node on Ray asks for, like {"weights": 1}: they say which '
            "machines may run it.",
        ),
    ] = "{}",
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
    """Run the whole stack on this machine: store, scaler, attention nodes, weight nodes and router.

    With `--provider ray` attention nodes run on the machines of a Ray cluster instead, and with
    `--weight-node-provider ray` so do weight nodes. Everything but the router then listens where those
    machines reach it: keep that network to yourself.

    A setting of a service that has no flag here is given by its environment variable, such as
    KERNELFLUME_WNODE_MAX_NUM_SEQS; `kernelflume wnode --help` lists them. KERNELFLUME_WNODE_DEVICE=cuda:0 and
    KERNELFLUME_ANODE_DEVICE=cuda:1 put the nodes on GPUs; name the --dtype then.
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
        facts = read_facts(policy_file)
        provider = chosen_provider(provider_asked, facts)
        roles = chosen_roles(weight_nodes, weight_node_roles)
    options = StackOptions(
        model=model,
        served_model_names=tuple(served_model_name or ()),
        num_attention_nodes=facts.minimum_nodes if attention_nodes is None else attention_nodes,
        policy_file=policy_file,
        profile_file=profile_file,
        most_attention_nodes=facts.most_nodes,
        num_standby=facts.num_standby,
        attention_node_threads=facts.node_threads,
        attention_node_memory_bytes=facts.node_memory_bytes or attention_node_memory,
        host=host,
        port=port,
        scaler_port=scaler_port,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        devices=tuple(device.split(",")),
        weight_node_roles=roles,
        placement_policy=placement_policy or "",
        attention_devices=tuple((attention_devices or device).split(",")),
        max_model_len=max_model_len,
        redis_url=redis_url,
        cluster=cluster,
        seed=seed,
        load_format=load_format,
        enable_prefix_caching=enable_prefix_caching,
        transport_error_handling=transport_error_handling or ("none" if provider == "process" else "peer"),
        log_level=log_level,
        log_dir=(log_dir or state_dir() / str(port)).absolute(),
        common_flags=(*tls.flags(), *tracing.flags()),
        admin_token_file=token_file,
        provider=provider,
        ray_address=facts.ray_address or ray_address,
        node_host=node_host if provider == "ray" else LOCALHOST,
        weight_node_provider=weight_node_provider,
        weight_node_cpus=weight_node_cpus,
        weight_node_resources=weight_node_resources,
    )
    # Reading checkpoints needs libraries that no other command does.
    from kernelflume.cli.prepare import growth_warnings, prepare  # noqa: PLC0415

    err = Console(stderr=True)
    for warning in growth_warnings(
        options,
        available_bytes=psutil.virtual_memory().available,
        num_cpus=len(os.sched_getaffinity(0)),
    ):
        typer.echo(f"kernelflume: warning: {POLICY_FLAG}: {policy_file}: {warning}", err=True)
    if load_format == "dummy":
        typer.echo("kernelflume: warning: --load-format dummy: all answers are meaningless", err=True)
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
