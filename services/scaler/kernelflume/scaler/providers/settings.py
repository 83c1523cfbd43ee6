"""Settings of providers: a group for each that reaches beyond this machine, and the policy's section."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kernelflume.runtime.settings import ByteSize  # noqa: TC001 - pydantic reads the annotations

_GROUP = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
_OWN_SETTINGS = {"CPU": "num-cpus", "GPU": "num-gpus", "memory": "the size of its memory"}
ProviderKind = Literal["process", "ray", "kubernetes", "static"]
MAX_STANDBY_NODES = 64
_DNS_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class RayActorSettings(BaseModel):
    """Where and as what a service runs on Ray."""

    model_config = _GROUP

    address: str = Field(default="auto", pattern=r"^(auto|local|[a-z]+://.*|[^\s/]+:\d+)$")
    """`auto` joins the Ray cluster that this machine is part of (or RAY_ADDRESS names), host:port the one
    with that head, `local` starts one of this machine alone that ends with the scaler."""
    namespace: str = Field(default="kernelflume", pattern="^[A-Za-z0-9_.-]+$")
    """Ray namespace of the actors; each is called CLUSTER/NODE there."""
    num_cpus: float = Field(default=1.0, ge=0)
    """CPUs that each node asks Ray for; also the threads of its kernels, unless told otherwise."""
    num_gpus: float = Field(default=0.0, ge=0)
    """GPUs that each node asks Ray for."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom resources that each node asks Ray for, as {"name": amount}: they say where it may run."""
    connect_timeout_s: float = Field(default=30.0, gt=0)
    """Longest wait for the Ray cluster to answer, at the start and at each call."""
    placement_timeout_s: float = Field(default=30.0, gt=0)
    """A node has failed when Ray has found no place for it after this long."""

    @field_validator("resources")
    @classmethod
    def _only_custom(cls, resources: dict[str, float]) -> dict[str, float]:
        for name, amount in resources.items():
            if name in _OWN_SETTINGS:
                raise ValueError(f"the amount of {name} has a setting of its own, {_OWN_SETTINGS[name]}")
            if amount <= 0:
                raise ValueError(f"{amount:g} of {name} is no amount to ask for")
        return resources

    @field_validator("address")
    @classmethod
    def _no_client(cls, address: str) -> str:
        if "://" in address:
            raise ValueError(
                f"{address} is not supported: Ray Client cannot hold the actors of a scaler. Let this "
                "machine join the cluster (ray start --address=HEAD:PORT --num-cpus=0) and use `auto`"
            )
        return address

    def demands(self, *, memory_bytes: int) -> dict[str, float]:
        """Return what one node asks Ray for, as Ray names it."""
        asked = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(memory_bytes), **self.resources}
        return {name: amount for name, amount in asked.items() if amount}


class RaySettings(RayActorSettings):
    """Where and as what attention nodes run on Ray, and for how long."""

    lifetime: Literal["scaler", "detached"] = "scaler"
    """`scaler`: nodes end with the scaler, however it ends. `detached`: they outlive it, and the next scaler
    takes those over that are in the routing table."""


class KubernetesSettings(BaseModel):
    """Which StatefulSet attention nodes are pods of."""

    model_config = _GROUP

    namespace: str = Field(default="kernelflume", pattern=_DNS_LABEL, max_length=63)
    """Namespace of the StatefulSet."""
    stateful_set: str = Field(default="kernelflume-anode", pattern=_DNS_LABEL, max_length=63)
    """Name of the StatefulSet; its pods must take their own names as node ids."""
    kubeconfig: str = ""
    """Path of a kubeconfig file; empty takes the pod's own service account, or the default kubeconfig."""
    context: str = ""
    """Context of the kubeconfig; empty takes its current one."""
    request_timeout_s: float = Field(default=5.0, gt=0)
    """Longest wait for one answer of the API server."""
    poll_interval_s: float = Field(default=1.0, gt=0)
    """How often the pods of launched nodes are looked at."""


class ProviderSection(BaseModel):
    """What the scaling policy says of the provider. A setting that it gives wins over the scaler's own."""

    model_config = _GROUP

    kind: ProviderKind | None = None
    """Which provider; a running scaler refuses another one."""
    launch_timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """As operation-deadline-s of the scaler, for operations that begin from now on."""
    standby_nodes: int | None = Field(default=None, ge=0, le=MAX_STANDBY_NODES)
    """As standby-attention-nodes of the scaler; more are started, and surplus ones ended, at once."""
    node_memory: ByteSize | None = None
    """As attention-node-memory of the scaler, for nodes that are started from now on."""
    node_threads: int | None = Field(default=None, ge=0)
    """As attention-node-threads of the scaler, for nodes that are started from now on."""
    ray: RaySettings = RaySettings()
    """Those of the scaler's ray settings that are given; used with the ray provider."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    """Those of the scaler's kubernetes settings that are given; used with the kubernetes provider."""
