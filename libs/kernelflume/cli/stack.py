"""What a local stack consists of: which programs, in which order, listening where. Nothing is done here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.cli.parts import CPU, LOCALHOST, PartSpec, Probe, service
from kernelflume.cli.weight_parts import weight_node_parts
from kernelflume.core.roles import WeightNodeRole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernelflume.cli.threads import ThreadBudget
    from kernelflume.core.geometry import KvGeometry


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What a person asked `kernelflume serve` for."""

    model: str
    """As it was given: the name that clients use, unless others are named."""
    served_model_names: tuple[str, ...]
    num_attention_nodes: int
    attention_node_memory_bytes: int
    host: str
    port: int
    scaler_port: int
    dtype: str
    max_model_len: int | None
    redis_url: str | None
    """None starts an embedded server."""
    cluster: str
    seed: int
    """Of requests that bring none, and of dummy weights."""
    transport_error_handling: str
    """``peer`` or ``none``; all nodes need the same."""
    log_level: str
    log_dir: Path
    kv_cache_dtype: str = "auto"
    """As the weight node's setting."""
    devices: tuple[str, ...] = (CPU,)
    """Where weight nodes compute, taken in turn: ``cpu``, ``cuda`` or ``cuda:N``, all of one kind."""
    weight_node_roles: tuple[WeightNodeRole, ...] = (WeightNodeRole.BOTH,)
    """Role of each weight node; as many are started."""
    placement_policy: str = ""
    """As the router's placement.policy; empty for its own."""
    attention_devices: tuple[str, ...] = (CPU,)
    """Where attention nodes keep and attend to keys and values, taken in turn."""
    load_format: str = "auto"
    """``auto`` or ``dummy``: see ``DummyWeights``."""
    enable_prefix_caching: bool = True
    """As the weight node's setting."""
    common_flags: tuple[str, ...] = ()
    """What tells each service its certificate and where traces go; attention nodes get it from the scaler."""
    admin_token_file: Path | None = None
    """File of the token that the scaler, and weight nodes for moves, ask for."""
    policy_file: Path | None = None
    """Absolute path of the scaling policy; None leaves the number of nodes to people."""
    most_attention_nodes: int = 0
    """What the scaling policy may grow to; 0 without one."""
    num_standby: int = 0
    """Nodes that the policy keeps started beside those in use."""
    attention_node_threads: int = 0
    """Threads that the policy gives each node; 0 for a share of the cores."""
    profile_file: Path | None = None
    """Absolute path of the model's performance profile."""
    provider: str = "process"
    """``process`` or ``ray``: where attention nodes run."""
    ray_address: str = "auto"
    """As the scaler's ray.address."""
    node_host: str = LOCALHOST
    """Address of this machine under which attention nodes reach the store and weight nodes."""
    weight_node_provider: str = "process"
    """``process`` or ``ray``: where weight nodes run."""
    weight_node_cpus: float = 1.0
    """CPUs that a weight node on Ray asks for; also the threads of its kernels."""
    weight_node_resources: str = "{}"
    """Custom resources that a weight node on Ray asks for, as the JSON object that Ray's settings take."""

    @property
    def num_weight_nodes(self) -> int:
        """Weight nodes that are started."""
        return len(self.weight_node_roles)

    @property
    def dummy_seed(self) -> int | None:
        """Seed of random weights, or None where the checkpoint's own are read."""
        return self.seed if self.load_format == "dummy" else None

    @property
    def uses_host_memory(self) -> bool:
        """True when keys and values lie in this machine's memory, and not in that of GPUs."""
        return self.is_local and self.attention_devices == (CPU,)

    @property
    def is_local(self) -> bool:
        """True when attention nodes share this machine with everything else."""
        return self.provider == "process" or self.ray_address == "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of the parts that nobody chooses by hand."""

    redis: int
    weight_nodes: tuple[int, ...]
    """Of each in turn."""


def plan_stack(
    options: StackOptions,
    *,
    checkpoint: Path,
    geometry: KvGeometry,
    ports: Ports,
    threads: ThreadBudget,
    embedded_redis: Sequence[str],
    redis_password: str = "",
    weight_bytes: int = 0,
) -> tuple[tuple[PartSpec, ...], ...]:
    """Return the parts by stages: a stage starts when the one before is ready, its parts all together.

    They end one by one in the opposite order.

    Args:
        options: what was asked for.
        checkpoint: folder of the model, converted if it had to be.
        geometry: what attention nodes are told of it.
        ports: where the parts listen that were given no port.
        threads: kernel threads of each process.
        embedded_redis: command of the embedded server; not used with ``options.redis_url``.
        redis_password: what that server asks for; empty if nothing.
        weight_bytes: size of the weights in memory, which a weight node on Ray asks for.
    """
    credentials = f":{redis_password}@" if redis_password else ""
    redis_url = options.redis_url or f"redis://{credentials}{options.node_host}:{ports.redis}/0"
    common = (
        *("--redis-url", redis_url, "--cluster", options.cluster, "--log-level", options.log_level),
        *options.common_flags,
    )
    transport = ("--transport-error-handling", options.transport_error_handling)
    lengths = ("--max-model-len", str(options.max_model_len)) if options.max_model_len else ()
    redis = PartSpec(
        name="redis",
        title="routing-table store",
        command=tuple(embedded_redis),
        probes=((Probe.STORE, redis_url),),
    )
    weights = ("--load-format", options.load_format) if options.load_format != "auto" else ()
    scaler = _scaler(options, geometry=geometry, threads=threads, flags=(*transport, *common))
    model = (
        *("--served-model-id", geometry.model_id),
        *("--dtype", geometry.dtype),
        *("--kv-cache-dtype", options.kv_cache_dtype),
        *("--seed", str(options.seed)),
        *weights,
        *(() if options.enable_prefix_caching else ("--no-enable-prefix-caching",)),
        *transport,
        *lengths,
    )
    weight_nodes = weight_node_parts(
        options,
        checkpoint=checkpoint,
        ports=ports.weight_nodes,
        threads=threads,
        redis_url=redis_url,
        weight_bytes=weight_bytes,
        model=model,
        common=common,
    )
    router = PartSpec(
        name="router",
        title="router",
        command=service(
            "router",
            *("--host", options.host),
            *("--port", str(options.port)),
            *("--shutdown-timeout", "3"),
            *("--model", str(checkpoint)),
            *("--served-model-name", ",".join(options.served_model_names or (options.model,))),
            *((*weights, "--seed", str(options.seed)) if weights else ()),
            *(("--placement.policy", options.placement_policy) if options.placement_policy else ()),
            *lengths,
            *common,
        ),
        probes=((Probe.HTTP, base_url(options.host, options.port)),),
    )
    # What answers clients ends first and the store last; attention nodes outlive the nodes that use them.
    services = (scaler, *weight_nodes, router)
    return (services,) if options.redis_url else ((redis,), services)


def _scaler(
    options: StackOptions, *, geometry: KvGeometry, threads: ThreadBudget, flags: Sequence[str]
) -> PartSpec:
    address = f"{LOCALHOST}:{options.scaler_port}"
    return PartSpec(
        name="scaler",
        title=f"scaler and {_count(options.num_attention_nodes, 'attention node')}",
        command=service(
            "scaler",
            *("--address", address),
            *("--provider", options.provider),
            *(("--ray.address", options.ray_address) if options.provider == "ray" else ()),
            *("--attention-nodes", str(options.num_attention_nodes)),
            *("--attention-node-memory", str(options.attention_node_memory_bytes)),
            *("--attention-node-threads", str(threads.attention_node)),
            # Where nothing was asked for, the environment may still say it.
            *(
                ("--attention-node-devices", json.dumps(options.attention_devices))
                if options.attention_devices != (CPU,)
                else ()
            ),
            *("--geometry", json.dumps(geometry.to_dict())),
            *("--log-dir", str(options.log_dir)),
            *(("--admin-token-file", str(options.admin_token_file)) if options.admin_token_file else ()),
            *(("--policy-file", str(options.policy_file)) if options.policy_file else ()),
            *(("--profile-file", str(options.profile_file)) if options.profile_file else ()),
            *flags,
        ),
        probes=((Probe.GRPC, address), (Probe.TOPOLOGY, address)),
        # It ends its attention nodes first, and where they run on Ray leaves the cluster.
        stop_grace_s=10.0 if options.provider == "process" else 20.0,
    )


def base_url(host: str, port: int) -> str:
    """Return the URL under which this machine reaches a server that listens on ``host``."""
    reachable = {"0.0.0.0": LOCALHOST, "": LOCALHOST, "::": "::1"}.get(host, host)  # noqa: S104 - not bound to
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
