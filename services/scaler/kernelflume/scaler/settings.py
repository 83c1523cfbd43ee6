"""Settings of the scaler."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from kernelflume.core.geometry import KvGeometry
from kernelflume.runtime.settings import ByteSize, GeometryJson, ServiceSettings
from kernelflume.scaler.providers.settings import (
    MAX_STANDBY_NODES,
    KubernetesSettings,
    ProviderKind,
    RaySettings,
)


class ScalerSettings(ServiceSettings):
    """The scaler: adds and drains attention nodes, and keeps the routing table."""

    model_config = SettingsConfigDict(env_prefix="KERNELFLUME_SCALER_")

    node_id: str = Field(default="s-1", pattern="^[A-Za-z0-9_.-]+$")
    """Name of this scaler, unique in the cluster."""
    address: str = "127.0.0.1:8100"
    """host:port of the gRPC admin service; port 0 picks a free one."""
    admin_token_file: Path | None = None
    """File with one token that callers of the admin service must bring as `authorization: Bearer TOKEN`;
    health checks need none. Without it whoever reaches the address may scale."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of the Prometheus endpoint, on the host of the address; 0 for none."""

    attention_nodes: int = Field(default=0, ge=0)
    """Active attention nodes wanted at the start; 0 has as many as the routing table says, or with the static
    provider as many as join."""
    policy_file: Path | None = None
    """YAML file of the scaling policy (bounds, objective, patience, provider), read again when it changes.
    What its provider section gives wins over the settings here. Without one the number of nodes is a person's
    to choose, from 1 to 16."""
    profile_file: Path | None = None
    """Performance profile of the model, as `kernelflume profile` writes it; an SLO in the policy needs it."""
    operation_deadline_s: float = Field(default=60.0, gt=0)
    """Longest that launching and prewarming together may take before they are rolled back, unless a request
    brings its own; also the longest wait for weight nodes to let go of a retired node."""
    store_timeout_s: float = Field(default=10.0, gt=0)
    """How long the store may take to be there at the start; it may be starting at the same time."""
    leader_ttl_s: float = Field(default=6.0, gt=0)
    """A standby takes over this long after the leader's last sign of life; renewed three times as often."""
    lost_grace_s: float = Field(default=3.0, ge=0)
    """A node whose lease has run out is taken out of the table after this long. Longer than nodes take to
    renew, so that all are not lost at once after the store was away."""
    weight_node_patience_s: float = Field(default=10.0, gt=0)
    """A weight node that cannot be reached counts as a failure after this long, if it still has its lease."""
    terminate_grace_s: float = Field(default=10.0, gt=0)
    """An attention node is killed this long after it was asked to end."""
    retry_min_s: float = Field(default=1.0, gt=0)
    """Wait after the first failure to restore the wanted number of nodes; doubles with each one."""
    retry_max_s: float = Field(default=60.0, gt=0)
    """Longest such wait."""

    provider: ProviderKind = "process"
    """Where attention nodes come from: `process` starts them on this machine, `ray` on the machines of a Ray
    cluster, `kubernetes` scales a StatefulSet, `static` adopts those that others start."""
    ray: RaySettings = RaySettings()
    """Where and as what nodes run on Ray (ray provider)."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    """Which StatefulSet is scaled (kubernetes provider)."""
    attention_node_memory: ByteSize = 512 * 1024**2
    """Size of each node's KV pool, like 2GiB (process and ray providers)."""
    geometry: GeometryJson = ""
    """Shape of the model's keys and values as a JSON object (core.geometry.KvGeometry). The process and ray
    providers pass it on; the topology shows what a token takes, without it only numbers of tokens."""
    standby_attention_nodes: int = Field(default=0, ge=0, le=MAX_STANDBY_NODES)
    """Nodes kept started beside those in use, so that scaling up only has to connect to one; each costs its
    memory. For the process and ray providers."""
    fork_attention_nodes: bool = True
    """Fork nodes from a process that has imported torch, NIXL and gRPC already (process provider): they start
    several times faster. Its memory is a node's without KV, a good part of which forked nodes share. Without
    it, or with attention-node-command, each node is an interpreter of its own."""
    log_dir: Path = Path("logs")
    """Folder for the log file of each node, with the ray provider on its Ray node."""
    transport_error_handling: Literal["peer", "none"] = "peer"
    """Passed on to each node (process and ray providers); all nodes of a cluster need the same."""
    attention_node_threads: int = Field(default=0, ge=0)
    """Threads of each node's kernels; 0 leaves it to the node, with the ray provider to ray.num-cpus."""
    attention_node_devices: list[str] = Field(default_factory=list)
    """Devices of the nodes (process and ray providers), such as `["cuda:1","cuda:2"]`: node a-1 gets the
    first, a-2 the second, and so on in turn. Empty leaves it to each node's own setting."""
    attention_node_command: list[str] = Field(default_factory=list)
    """Command that runs an attention node (process and ray providers); by default the Python of the machine
    in question with `-m kernelflume.anode`. For wrappers such as numactl."""
    attention_node_args: list[str] = Field(default_factory=list)
    """Further arguments of each node's command line (process and ray providers), each as
    `--attention-node-args=--page-tokens=32`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Check that the settings go together.

        Raises:
            ValueError: they do not.
        """
        if self.provider in ("process", "ray") and not self.geometry:
            raise ValueError(f"geometry is required with the {self.provider} provider")
        if self.provider in ("kubernetes", "static") and self.standby_attention_nodes:
            raise ValueError(f"standby-attention-nodes cannot be had with the {self.provider} provider")
        if self.retry_min_s > self.retry_max_s:
            raise ValueError(f"retry-min-s {self.retry_min_s:g} is above retry-max-s {self.retry_max_s:g}")

    def kv_geometry(self) -> KvGeometry | None:
        """Return the geometry, or None when none is set."""
        return KvGeometry.from_json(self.geometry) if self.geometry else None
