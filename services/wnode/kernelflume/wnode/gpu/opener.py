"""Whether decode steps can run as captured graphs here, and what runs them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import FP8
from kernelflume.cuda.requirements import EXCHANGE_PACKAGES, flashinfer_limit, missing_packages
from kernelflume.wnode.pipeline.lane_plan import LanePlan

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.nixl import NixlTransport
    from kernelflume.wnode.gpu.graph_runner import GraphRunner
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.model.decoder import Decoder
    from kernelflume.wnode.settings import WeightNodeSettings

logger = logging.getLogger(__name__)

_FP8_CAPABILITY = (8, 9)
"""First GPUs with an instruction for it; the posted path needs none."""
_NEEDED = {"triton": "triton", **EXCHANGE_PACKAGES}


def make_graph_runner(
    *,
    decoder: Decoder,
    geometry: KvGeometry,
    transport: NixlTransport,
    links: LinkTable,
    clock: Clock,
    settings: WeightNodeSettings,
    eos_token_ids: frozenset[int],
) -> GraphRunner | None:
    """Return what runs decode steps on the device path, or None where they are posted.

    Raises:
        ConfigurationError: the settings ask for the device path, and it cannot be had.
    """
    if settings.data_path == "host" or (settings.data_path == "auto" and decoder.device.type == "cpu"):
        return None
    try:
        _check(decoder.device, geometry)
        from kernelflume.wnode.gpu.device_stage import QueryFirst  # noqa: PLC0415 - needs what was looked for
        from kernelflume.wnode.gpu.graph_runner import GraphRunner  # noqa: PLC0415

        return GraphRunner(
            decoder=decoder,
            geometry=geometry,
            transport=transport,
            links=links,
            clock=clock,
            lane_plan=LanePlan.of(settings.microbatches, settings.max_num_seqs),
            query_first=QueryFirst(settings.query_first),
            timeout_s=settings.exchange_timeout_s,
            eos_token_ids=eos_token_ids,
        )
    except ConfigurationError as error:
        if settings.data_path == "device":
            raise
        logger.warning("no device path, decode steps are posted: %s", error)
        return None


def _check(device: torch.device, geometry: KvGeometry) -> None:
    if device.type == "cpu":
        raise ConfigurationError("data_path: the device path needs device=cuda")
    if limit := flashinfer_limit(geometry):
        raise ConfigurationError(f"data_path: on the device path FlashInfer {limit}")
    if geometry.kv_dtype == FP8 and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise ConfigurationError(
            f"data_path: kernels of the device path round to {FP8} on GPUs of compute capability "
            f"{'.'.join(map(str, _FP8_CAPABILITY))} or more"
        )
    missing = missing_packages(_NEEDED)
    if missing:
        raise ConfigurationError(
            f"data_path: the device path needs {', '.join(missing)}; install kernelflume[gpu]"
        )
