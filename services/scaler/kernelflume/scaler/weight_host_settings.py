"""Settings of a weight node's host on Ray."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from kernelflume.runtime.settings import ByteSize, ServiceSettings
from kernelflume.scaler.providers.settings import RayActorSettings


class WeightHostSettings(ServiceSettings):
    """Runs a weight node as an actor of a Ray cluster: ends when it ends, and ends it when told to end."""

    model_config = SettingsConfigDict(env_prefix="KERNELFLUME_WEIGHT_HOST_")

    node_id: str = Field(default="w-1", pattern="^[A-Za-z0-9_.-]+$")
    """Name of the weight node, unique in the cluster."""
    model: str = Field(pattern="^/")
    """Absolute path of the model's folder, on whichever machine Ray puts the weight node."""
    ray: RayActorSettings = RayActorSettings()
    """Where and as what it runs on Ray."""
    memory: ByteSize = 0
    """Memory that it asks Ray for: room for the weights. Ray keeps count of it and sets no limit."""
    log_dir: Path = Path("logs")
    """Folder for its log file on its Ray node; what it logs is also copied to this service's output."""
    stop_grace_s: float = Field(default=10.0, gt=0)
    """It is killed this long after it was asked to end."""
    weight_node_command: list[str] = Field(default_factory=list)
    """Command that runs a weight node; by default the Python of its Ray node with `-m kernelflume.wnode`. For
    wrappers such as numactl."""
    weight_node_args: list[str] = Field(default_factory=list)
    """Further arguments of its command line, each as `--weight-node-args=--seed=1`."""
