"""Checks before anything is started: ports, folders, the store, the model; and the plan that follows."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import psutil

from kernelflume.checkpoint.source import resolve
from kernelflume.cli.parts import LOCALHOST
from kernelflume.cli.readiness import store_fault
from kernelflume.cli.stack import Ports, StackOptions, plan_stack
from kernelflume.cli.tables import size
from kernelflume.cli.threads import all_threads, divide_threads
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import DTYPE_BYTES, kv_dtype_of
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.runtime.service import free_port
from kernelflume.store.embedded import embedded_command

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.checkpoint.source import Checkpoint
    from kernelflume.cli.parts import PartSpec
    from kernelflume.cli.progress import StartReporter
    from kernelflume.core.geometry import KvGeometry

"""What `auto` means without a GPU: half precision is slower on most CPUs."""

_ANYWHERE = "198.51.100.1"
"""Stands for any other machine: an address that is set aside for documentation, and never written to."""
_ANY_PORT = 9
_PASSWORD_BYTES = 24


def prepare(
    options: StackOptions, reporter: StartReporter
) -> tuple[StackOptions, tuple[tuple[PartSpec, ...], ...]]:
    """Check that all that was asked for can be had, and plan the stack; nothing is started.

    Returns:
        The options with each port 0 replaced by a free one, and the parts by stages.

    Raises:
        ConfigurationError: something cannot be had; the message names the flag.
    """
    options = with_node_host(with_ports(options))
    if options.uses_host_memory:
        check_memory(options, available_bytes=psutil.virtual_memory().available)
    make_log_dir(options.log_dir)
    if options.redis_url is not None and (
        fault := asyncio.run(store_fault(options.redis_url, options.cluster))
    ):
        raise ConfigurationError(f"--redis-url: {fault}")
    return options, plan(options, find_model(options.model, reporter, options.dummy_seed))


def with_ports(options: StackOptions) -> StackOptions:
    """Return the options with each port 0 replaced by a free one.

    Raises:
        ConfigurationError: a port that was asked for is taken, or the host is none of this machine's.
    """
    port = checked_port("--port", options.host, options.port)
    scaler_port = checked_port("--scaler-port", LOCALHOST, options.scaler_port)
    if port == scaler_port:
        raise ConfigurationError(f"--scaler-port: {port} is the port of --port already")
    return replace(options, port=port, scaler_port=scaler_port)


def with_node_host(options: StackOptions) -> StackOptions:
    """Return the options with the address of this machine that attention nodes reach, unless one was given.

    Raises:
        ConfigurationError: ray is not installed, no address was found, or the given one is not of this
            machine.
    """
    if options.weight_node_provider == "ray":
        check_weight_node_on_ray(options)
    if options.provider != "ray":
        return options
    if find_spec("ray") is None:
        raise ConfigurationError("--provider: ray needs `pip install 'kernelflume[ray]'`")
    host = options.node_host or own_address(towards_host(options.ray_address))
    checked_port("--node-host", host, 0)
    return replace(options, node_host=host)


def check_weight_node_on_ray(options: StackOptions) -> None:
    """Check that a weight node on Ray reaches the attention nodes, and the same cluster.

    Raises:
        ConfigurationError: it does not.
    """
    flag = "--weight-node-provider: ray"
    if options.provider != "ray":
        raise ConfigurationError(
            f"{flag} needs --provider ray: attention nodes on this machine's loopback cannot be reached"
        )
    if options.ray_address == "local":
        raise ConfigurationError(
            f"{flag} needs a cluster that is there: one of --ray-address local is the scaler's alone"
        )


def towards_host(ray_address: str) -> str:
    """Return a host in the direction of the Ray cluster's machines, as far as its address tells."""
    named = os.environ.get("RAY_ADDRESS", "") if ray_address == "auto" else ray_address
    host, separator, _ = named.rpartition(":")
    return host if separator and "/" not in host else _ANYWHERE


def own_address(towards: str) -> str:
    """Return the address that this machine would use towards a host; nothing is sent.

    Raises:
        ConfigurationError: there is no way there.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((towards, _ANY_PORT))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigurationError(
            f"--node-host: name it, this machine has no way to {towards}: {error.strerror}"
        ) from error


def checked_port(flag: str, host: str, port: int) -> int:
    """Return ``port``, or a free one for 0, after trying to listen on it.

    Raises:
        ConfigurationError: it cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            # As the servers do: connections that ended a moment ago are no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigurationError(f"{flag}: cannot listen on {host}:{port}: {error.strerror}") from error


def check_memory(options: StackOptions, *, available_bytes: int) -> None:
    """Check that the pools of the attention nodes that start fit the memory that is free.

    Raises:
        ConfigurationError: they do not.
    """
    count = options.num_attention_nodes + options.num_standby
    wanted = count * options.attention_node_memory_bytes
    if wanted > available_bytes:
        raise ConfigurationError(
            f"--attention-node-memory: {count} attention nodes of "
            f"{size(options.attention_node_memory_bytes)} need {size(wanted)}, "
            f"and {size(available_bytes)} of memory are available"
        )


def growth_warnings(options: StackOptions, *, available_bytes: int, num_cpus: int) -> tuple[str, ...]:
    """Return what is not enough here for as many attention nodes as the scaling policy may grow to.

    No reason to refuse: it may never grow so far, and memory may become free.
    """
    most, memory_bytes = options.most_attention_nodes, options.attention_node_memory_bytes
    if most <= options.num_attention_nodes or not options.uses_host_memory:
        return ()
    warnings = []
    wanted = (most + options.num_standby) * memory_bytes
    if wanted > available_bytes:
        beside = f" and {options.num_standby} that stand by" if options.num_standby else ""
        fitting = max(0, available_bytes // memory_bytes - options.num_standby)
        warnings.append(
            f"maximum_nodes: {most} attention nodes{beside} of {size(memory_bytes)} need {size(wanted)}, and "
            f"{size(available_bytes)} of memory are available: {fitting} fit"
        )
    threads = divide_threads(
        num_cpus,
        options.num_attention_nodes,
        num_weight_nodes=options.num_weight_nodes,
        node_threads=options.attention_node_threads,
    ).attention_node
    if threads > 1 and most * threads > num_cpus:
        warnings.append(
            f"provider.node_threads: {most} attention nodes (maximum_nodes) of {threads} threads share "
            f"{num_cpus} cores; {divide_threads(num_cpus, most).attention_node} would be their share"
        )
    return tuple(warnings)


def make_log_dir(log_dir: Path) -> None:
    """Make the folder of the log files.

    Raises:
        ConfigurationError: it cannot be made.
    """
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--log-dir: cannot make {log_dir}: {error.strerror}") from error


def find_model(model: str, reporter: StartReporter, dummy_seed: int | None = None) -> Checkpoint:
    """Find the model, converting it with a progress bar when it is a GGUF file seen for the first time.

    With ``dummy_seed`` its weights are drawn, and need not be there.

    Raises:
        ConfigurationError: there is no such model, or it cannot be used.
    """
    title = f"model {model}"
    clock = MonotonicClock()
    began = clock.now()
    reporter.working("model", title)
    checkpoint = resolve(
        model,
        progress=lambda done, total: reporter.fraction("model", f"converting {title}", done / total),
        dummy_seed=dummy_seed,
    )
    reporter.ready("model", title, clock.now() - began)
    return checkpoint


def geometry_of(
    checkpoint: Checkpoint, dtype: str, kv_cache_dtype: str = "auto", device: str = "cpu"
) -> KvGeometry:
    """Return what attention nodes are told of a model.

    Raises:
        ConfigurationError: keys and values cannot be kept in that format.
    """
    concrete = checkpoint.config.concrete_dtype(dtype, device)
    return checkpoint.geometry(concrete, kv_dtype_of(kv_cache_dtype, concrete))


def plan(
    options: StackOptions, checkpoint: Checkpoint, *, num_sharing: int | None = None
) -> tuple[tuple[PartSpec, ...], ...]:
    """Plan the stack for this machine.

    Args:
        options: what was asked for.
        checkpoint: the model.
        num_sharing: attention nodes that the cores are shared among, where not all of them start.

    Raises:
        ConfigurationError: there is no embedded Redis server and no other was named, or keys and values
            cannot be kept in that format.
    """
    host = options.node_host
    ports = Ports(
        redis=free_port(host), weight_nodes=tuple(free_port(host) for _ in options.weight_node_roles)
    )
    cpus = len(os.sched_getaffinity(0))
    # Whoever reaches this machine would reach an embedded server too.
    password = "" if host == LOCALHOST else secrets.token_urlsafe(_PASSWORD_BYTES)
    return plan_stack(
        options,
        checkpoint=checkpoint.path,
        geometry=geometry_of(checkpoint, options.dtype, options.kv_cache_dtype, options.devices[0]),
        ports=ports,
        threads=divide_threads(
            cpus,
            num_sharing or options.num_attention_nodes,
            num_weight_nodes=options.num_weight_nodes,
            node_threads=options.attention_node_threads,
        )
        if options.is_local
        else all_threads(cpus, num_weight_nodes=options.num_weight_nodes),
        embedded_redis=()
        if options.redis_url
        else embedded_command(ports.redis, options.log_dir, host=host, password=password),
        redis_password=password,
        weight_bytes=checkpoint.weights.num_elements
        * DTYPE_BYTES[checkpoint.config.concrete_dtype(options.dtype, options.devices[0])],
    )
