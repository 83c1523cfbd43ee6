"""Settings of an attention node."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from kernelflume.core.geometry import KvGeometry
from kernelflume.runtime.settings import ByteSize, GeometryJson, ServiceSettings
from kernelflume.transport.waiter import WaitPolicy

_WAIT = WaitPolicy()


class WaitSettings(BaseModel):
    """How the step loop waits for notices."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    spin_s: float = Field(default=_WAIT.spin_s, ge=0)
    """Seconds of polling before sleeping on the doorbell; raise it where the loop has a core of its own."""
    nap_s: float = Field(default=_WAIT.nap_s, gt=0)
    """Longest sleep in seconds inside an exchange: what a lost ring costs."""
    idle_nap_s: float = Field(default=_WAIT.idle_nap_s, gt=0)
    """Longest sleep in seconds between exchanges; shorter ones wake an idle node more often."""


class AttentionNodeSettings(ServiceSettings):
    """An attention node: holds keys and values by token ranges and attends to them. It has no weights."""

    model_config = SettingsConfigDict(env_prefix="KERNELFLUME_ANODE_")

    node_id: str = Field(default="a-1", pattern="^[A-Za-z0-9_.-]+$")
    """Name of this attention node, unique in the cluster."""
    address: str = Field(default="127.0.0.1:0", pattern=r"^.+:\d+$")
    """host:port of the gRPC control service; port 0 picks a free one."""
    advertise_host: str = ""
    """Host that others reach this node at, where it is not the one it listens on."""
    memory: ByteSize = 512 * 1024**2
    """Size of the KV pool, like 2GiB. Lanes and scratch come on top: some dozen MiB for each weight node."""
    geometry: GeometryJson = Field(min_length=1)
    """Shape of the model's keys and values as a JSON object: model_id, model_revision, num_layers,
    num_query_heads, num_kv_heads, head_dim, dtype, kv_dtype."""
    page_tokens: int = Field(default=64, ge=1, le=65536)
    """Tokens a page: smaller ones waste less of a sequence's last page, larger ones scatter it less."""
    prefix_cache: bool = True
    """Keep keys and values of sequences that ended while there is room, for contexts that begin alike."""
    prefix_cache_ttl_s: float = Field(default=0.0, ge=0)
    """Seconds after their last use for which they are kept; 0 is as long as there is room."""
    pinned_share: float = Field(default=0.25, ge=0, le=1)
    """Most of the pool's pages that requests may pin for a day (`prompt_cache_retention`); 0 pins none. They
    are dropped after all others that no sequence uses: the share comes out of the ordinary cache."""
    threads: int = Field(default=0, ge=0)
    """Threads of the attention kernel; 0 takes half of the cores, as a weight node usually runs beside."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Where the KV pool lies and is attended to: `cpu`, `cuda`, or `cuda:N` for one of several GPUs; the
    weight nodes need the same kind."""
    kernel: Literal["auto", "torch", "flashinfer"] = "auto"
    """Attention kernel; auto takes the best that runs here: on a GPU FlashInfer, if it is installed and knows
    the number format."""
    transport_error_handling: Literal["peer", "none"] = "peer"
    """`peer` notices a dead weight node at the next post; `none` is faster on one host, where a dead process
    is noticed by its closed doorbell; of a dead host only its lease tells. All nodes need the same."""
    lease_ttl_s: float = Field(default=6.0, gt=0)
    """The node counts as dead this many seconds after its last sign of life; it renews thrice as often."""
    load_interval_s: float = Field(default=0.5, gt=0)
    """How often the tokens held are told with the lease: the scaler predicts from it, so it should be well
    below the time that an attention node takes to start."""
    link_grace_s: float = Field(default=15.0, gt=0)
    """A weight node without a lease for this many seconds loses its sequences here."""
    doorbell_host: str = "127.0.0.1"
    """Interface on which weight nodes ring."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of the Prometheus endpoint on the host of `address`, 0 for none; nodes of a host need one each."""
    wait: WaitSettings = WaitSettings()
    """How the step loop waits for notices."""

    @property
    def kv_geometry(self) -> KvGeometry:
        """The geometry as a value."""
        return KvGeometry.from_json(self.geometry)

    @property
    def wait_policy(self) -> WaitPolicy:
        """The wait settings as a value."""
        return WaitPolicy(
            spin_s=self.wait.spin_s, nap_s=self.wait.nap_s, idle_nap_s=self.wait.idle_nap_s
        )  # fmt: skip
