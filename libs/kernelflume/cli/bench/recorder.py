"""Recording a run for `kernelflume sim validate`: what the scaler did while the load was on."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import grpc

from kernelflume.cli.admin import CALL_TIMEOUT_S
from kernelflume.cli.bench.sightings import Sightings
from kernelflume.cli.watch import watch_topology
from kernelflume.core.errors import ConfigurationError, UnavailableError
from kernelflume.core.profile import PerformanceProfile
from kernelflume.core.recording import RecordedRequest, Recording
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import (
    anode_pb2,
    anode_pb2_grpc,
    scaler_pb2,
    scaler_pb2_grpc,
    wnode_pb2,
    wnode_pb2_grpc,
)
from kernelflume.runtime.smallfile import read_small_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernelflume.cli.bench.load import Measured
    from kernelflume.cli.bench.outcome import Outcome
    from kernelflume.rpc.channel import Channels

_LOOK_S = 0.1
"""Between two looks at the scaler: the shortest that it allows."""


def read_profile(path: Path) -> PerformanceProfile:
    """Read the profile that goes into a recording.

    Raises:
        ConfigurationError: it cannot be read, or is none; the message names the flag.
    """
    try:
        return PerformanceProfile.from_dict(json.loads(read_small_file(path)))
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"--profile: {path}: {error}") from error


class RunRecorder:
    """Looks at the scaler from ``begin`` to ``end``, and then makes the recording. Used once."""

    def __init__(self, address: str, channels: Channels, profile: PerformanceProfile) -> None:
        """Record what the scaler at ``address`` does; ``profile`` is of this machine."""
        self._address = address
        self._channels = channels
        self._profile = profile
        self._sightings = Sightings()
        self._first = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._policy = ""
        self._page_tokens = 0
        self._has_prefix_cache = False

    async def begin(self) -> None:
        """Read the policy and the pool, and go on looking.

        Raises:
            ConfigurationError: this is no run that can be replayed.
            KernelFlumeError: the scaler or a node does not answer.
        """
        try:
            async with self._channels.open(self._address) as channel:
                scaler = scaler_pb2_grpc.ScalerAdminStub(channel)
                policy = await scaler.GetPolicy(scaler_pb2.GetPolicyRequest(), timeout=CALL_TIMEOUT_S)
                topology = await scaler.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=CALL_TIMEOUT_S)
            self._policy = policy.yaml
            if not topology.attention_nodes:
                raise ConfigurationError("--record: there is no attention node")
            async with self._channels.open(topology.attention_nodes[0].address) as channel:
                node = anode_pb2_grpc.AttentionNodeStub(channel)
                statistics = await node.GetStatistics(
                    anode_pb2.GetAttentionStatisticsRequest(), timeout=CALL_TIMEOUT_S
                )
            self._page_tokens = statistics.page_tokens
            for weight_node in topology.weight_nodes:
                async with self._channels.open(weight_node.address) as channel:
                    stub = wnode_pb2_grpc.WeightNodeStub(channel)
                    load = await stub.GetLoad(wnode_pb2.GetLoadRequest(), timeout=CALL_TIMEOUT_S)
                self._has_prefix_cache |= load.block_tokens > 0
        except grpc.RpcError as failure:
            raise error_of(failure) from failure
        self._watching = asyncio.create_task(self._watch(), name="watch the scaler")
        first = asyncio.create_task(self._first.wait())
        await asyncio.wait({first, self._watching}, timeout=CALL_TIMEOUT_S, return_when="FIRST_COMPLETED")
        first.cancel()
        if self._watching.done():
            self._watching.result()
        if not self._first.is_set():
            raise UnavailableError(f"the scaler at {self._address} shows nothing")
        if self._sightings.fault:
            raise ConfigurationError(f"--record: {self._sightings.fault}")

    async def end(self) -> None:
        """Look no longer; read how the last operations stand.

        Raises:
            KernelFlumeError: the scaler refused, or does not answer any more.
        """
        if self._watching is None:
            return
        self._watching.cancel()
        await asyncio.wait({self._watching})
        if not self._watching.cancelled():
            self._watching.result()
        try:
            async with self._channels.open(self._address) as channel:
                scaler = scaler_pb2_grpc.ScalerAdminStub(channel)
                for operation_id in self._sightings.unfinished():
                    request = scaler_pb2.GetOperationRequest(operation_id=operation_id)
                    operation = await scaler.GetOperation(request, timeout=CALL_TIMEOUT_S)
                    self._sightings.operation(operation, asyncio.get_running_loop().time())
        except grpc.RpcError as failure:
            raise error_of(failure) from failure

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        async for sight in watch_topology(self._address, self._channels, interval_s=_LOOK_S):
            if sight.topology is None or sight.fault:
                raise UnavailableError(f"--record: {sight.fault}")
            self._sightings.add(sight.topology, loop.time())
            self._first.set()

    def recording(self, measured: Measured, workload: str) -> Recording:
        """Return what was recorded.

        Raises:
            ConfigurationError: the run cannot be replayed; the message says why.
        """
        sightings = self._sightings
        if measured.interrupted:
            raise ConfigurationError("--record: nothing is written: the run was interrupted")
        if sightings.fault:
            raise ConfigurationError(f"--record: nothing is written: {sightings.fault}")
        requests = _requests(measured.outcomes)
        return Recording(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            workload=workload,
            duration_s=max(request.ended_s for request in requests),
            initial_nodes=sightings.nodes,
            node_capacity_tokens=sightings.capacity_tokens,
            page_tokens=self._page_tokens,
            token_bytes=sightings.token_bytes,
            has_prefix_cache=self._has_prefix_cache,
            policy=self._policy,
            profile=self._profile,
            operations=sightings.recorded(measured.begun_s),
            requests=requests,
        )


def write_recording(folder: Path, recording: Recording) -> None:
    """Write the files of a recording.

    Raises:
        ConfigurationError: one cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in recording.to_files().items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--record {folder}: {error.strerror or error}") from error


def _requests(outcomes: Sequence[Outcome]) -> tuple[RecordedRequest, ...]:
    requests = []
    for outcome in sorted(outcomes, key=lambda each: each.sent_s):
        if not outcome.ok or outcome.ttft_s is None:
            raise ConfigurationError(
                f"--record: nothing is written: a request failed ({outcome.status}); a replay would serve it"
            )
        requests.append(
            RecordedRequest(
                sent_s=round(outcome.sent_s, 6),
                first_token_s=round(outcome.sent_s + outcome.ttft_s, 6),
                ended_s=round(outcome.sent_s + outcome.e2e_s, 6),
                prompt_tokens=outcome.num_prompt,
                cached_tokens=outcome.num_cached or 0,
                output_tokens=outcome.num_output,
            )
        )
    if not requests:
        raise ConfigurationError("--record: nothing is written: no request was sent")
    return tuple(requests)
