"""Whether decode steps can run as captured graphs here, and what runs them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import FP8
from kernelflume.cuda.requirements import EXCHANGE_PACKAGES, flashinfer_limit, missing_packages
from kernelflume.transport.lanes import LaneLayout
from kernelflume.wnode.pipeline.lane_plan import LanePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.nixl import NixlTransport
    from kernelflume.wnode.gpu.graph_exchange import GraphExchange
    from kernelflume.wnode.gpu.graph_runner import GraphRunner
    from kernelflume.wnode.gpu.lane import LaneBuffers
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
    """Return what runs decode steps as captured graphs, or None where they are posted.

    Raises:
        ConfigurationError: the settings ask for the device or host path, and it cannot be had.
    """
    if settings.data_path == "posted" or (settings.data_path == "auto" and decoder.device.type == "cpu"):
        return None
    path = "host" if settings.data_path == "host" else "device"
    try:
        _check(decoder.device, geometry, path)
        from kernelflume.wnode.gpu.captured_steps import CapturedSteps  # noqa: PLC0415 - needs what was looked for
        from kernelflume.wnode.gpu.device_stage import QueryFirst  # noqa: PLC0415
        from kernelflume.wnode.gpu.graph_runner import GraphRunner  # noqa: PLC0415
        from kernelflume.wnode.gpu.lane import LaneBuffers  # noqa: PLC0415
        from kernelflume.wnode.gpu.step_stream import CudaStepStream  # noqa: PLC0415

        plan = LanePlan.of(settings.microbatches, settings.max_num_seqs)
        layout = LaneLayout(geometry, plan.max_rows)
        lanes = [
            LaneBuffers.allocate(geometry, layout.max_rows, decoder.device) for _ in range(plan.num_lanes)
        ]
        exchange = _make_exchange(path, lanes, layout, transport=transport, clock=clock, settings=settings)
        return GraphRunner(
            steps=CapturedSteps.capture(decoder, geometry, lanes, exchange.stages, plan),
            stream=CudaStepStream(exchange.stream),
            layout=layout,
            lanes=lanes,
            exchange=exchange,
            links=links,
            clock=clock,
            max_step_rows=plan.max_step_rows,
            query_first=QueryFirst(settings.query_first),
            timeout_s=settings.exchange_timeout_s,
            eos_token_ids=eos_token_ids,
        )
    except ConfigurationError as error:
        if settings.data_path != "auto":
            raise
        logger.warning("no device path, decode steps are posted: %s", error)
        return None


def _make_exchange(
    path: str,
    lanes: Sequence[LaneBuffers],
    layout: LaneLayout,
    *,
    transport: NixlTransport,
    clock: Clock,
    settings: WeightNodeSettings,
) -> GraphExchange:
    from kernelflume.wnode.gpu.device_exchange import DeviceExchange  # noqa: PLC0415 - as above
    from kernelflume.wnode.gpu.device_stage import QueryFirst  # noqa: PLC0415
    from kernelflume.wnode.gpu.host_exchange import HostExchange  # noqa: PLC0415

    query_first, timeout_s = QueryFirst(settings.query_first), settings.exchange_timeout_s
    if path == "host":
        return HostExchange(
            lanes, layout, query_first=query_first, transport=transport, clock=clock, timeout_s=timeout_s
        )
    return DeviceExchange(lanes, layout, query_first=query_first, transport=transport, timeout_s=timeout_s)


def _check(device: torch.device, geometry: KvGeometry, path: str) -> None:
    if device.type == "cpu":
        raise ConfigurationError(f"data_path: the {path} path needs device=cuda")
    if limit := flashinfer_limit(geometry):
        raise ConfigurationError(f"data_path: on the {path} path FlashInfer {limit}")
    if geometry.kv_dtype == FP8 and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise ConfigurationError(
            f"data_path: kernels of the {path} path round to {FP8} on GPUs of compute capability "
            f"{'.'.join(map(str, _FP8_CAPABILITY))} or more"
        )
    missing = missing_packages(_NEEDED)
    if missing:
        raise ConfigurationError(
            f"data_path: the {path} path needs {', '.join(missing)}; install kernelflume[gpu]"
        )
