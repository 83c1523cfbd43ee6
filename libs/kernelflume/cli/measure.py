"""Measuring a small running stack through the gRPC of its weight node, attention node and scaler."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from statistics import median
from typing import TYPE_CHECKING

import grpc

from kernelflume.cli.profile_plan import PROMPT_TOKENS, MeasuredSteps, median_steps
from kernelflume.core.errors import DeadlineError, UnavailableError
from kernelflume.core.routing import NodeState
from kernelflume.rpc.channel import open_channel
from kernelflume.rpc.codec import step_times_from_proto
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import (
    anode_pb2,
    anode_pb2_grpc,
    scaler_pb2,
    scaler_pb2_grpc,
    wnode_pb2,
    wnode_pb2_grpc,
)
from kernelflume.runtime.clock import Deadline, MonotonicClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_CALL_TIMEOUT_S = 10.0
_MEASURE_TIMEOUT_S = 300.0
"""Bound of one measurement, prompts included."""
_POLL_S = 0.05
_WINDOW_STEPS = 16
"""Steps that a weight node reports the medians of: readings this far apart share none."""
_SCAN_READING_S = 1.0
_FIRST_PROMPT = 1000
"""Number of the first prompt that is measured by itself: those that decode together have lower ones."""
_MAX_OUTPUT_TOKENS = 100_000
"""More than any measurement lasts; the model's own limit may be lower."""
_PREWARM_PHASES = ("launching", "prewarming")


class StackMeter:
    """Puts load on a stack of one attention node and reads what its nodes measure. Close it at the end."""

    def __init__(self, *, weight_node: str, scaler: str) -> None:
        """Open channels to the services at these host:port addresses."""
        self._channels = [open_channel(weight_node), open_channel(scaler)]
        self._weight = wnode_pb2_grpc.WeightNodeStub(self._channels[0])
        self._scaler = scaler_pb2_grpc.ScalerAdminStub(self._channels[1])
        self._clock = MonotonicClock()
        self._requests: set[asyncio.Task[None]] = set()
        self._num_prompts = _FIRST_PROMPT

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            await channel.close()

    async def measure_steps(self, rows: int, *, num_windows: int) -> MeasuredSteps:
        """Decode ``rows`` short sequences and return the medians of their steps.

        Raises:
            DeadlineError: so many never decoded together.
            KernelFlumeError: a request failed.
        """
        windows: list[MeasuredSteps] = []
        counted_at = 0

        async def enough() -> bool:
            nonlocal counted_at
            load = await self._load()
            is_settled = load.step_times.rows == load.num_requests_running == rows
            if not is_settled:
                counted_at = load.num_steps
            elif load.num_steps - counted_at >= _WINDOW_STEPS:
                counted_at = load.num_steps
                times = step_times_from_proto(load.step_times)
                windows.append(MeasuredSteps(times=times, held_tokens=load.num_tokens))
            return len(windows) >= num_windows

        async with self._decoding(rows, PROMPT_TOKENS):
            await self._until(enough, f"{rows} sequences do not decode together; does the pool hold them?")
        return median_steps(windows)

    async def measure_scan(self, num_sequences: int, num_tokens: int, *, num_readings: int) -> float:
        """Decode sequences of so many tokens; return the bytes a second that the attention node reads.

        Raises:
            DeadlineError: it never told any.
            KernelFlumeError: a request failed.
        """
        topology = await self._scaler.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=_CALL_TIMEOUT_S)
        [address] = [node.address for node in topology.attention_nodes if node.state == str(NodeState.ACTIVE)]
        readings: list[float] = []

        async def enough() -> bool:
            if (await self._load()).step_times.rows != num_sequences:
                return False
            if readings:
                await asyncio.sleep(_SCAN_READING_S)
            told = await attention.GetStatistics(
                anode_pb2.GetAttentionStatisticsRequest(), timeout=_CALL_TIMEOUT_S
            )
            if told.scan_bytes_per_second:
                readings.append(told.scan_bytes_per_second)
            return len(readings) >= num_readings

        async with open_channel(address) as channel, self._decoding(num_sequences, num_tokens):
            attention = anode_pb2_grpc.AttentionNodeStub(channel)
            await self._until(enough, "the attention node does not tell how fast it reads keys and values")
        return median(readings)

    async def measure_prefill(self, num_tokens: int) -> float:
        """Return how long the idle stack takes for a prompt, up to its first token.

        Raises:
            UnavailableError: no token came.
            KernelFlumeError: the request failed.
        """
        card = await self._weight.GetModel(wnode_pb2.GetModelRequest(), timeout=_CALL_TIMEOUT_S)
        self._num_prompts += 1  # no beginning of a prompt is kept from one before
        began = self._clock.now()
        call = self._weight.Generate(
            _request(_prompt(self._num_prompts, num_tokens, card.vocab_size), 1), timeout=_MEASURE_TIMEOUT_S
        )
        async for event in call:
            if event.token_ids:
                return self._clock.now() - began
        raise UnavailableError(f"a prompt of {num_tokens} tokens was answered without a token")

    async def measure_prewarm(self, rows: int) -> float:
        """Add an attention node while ``rows`` sequences decode, remove it again, and return T_prewarm.

        Raises:
            UnavailableError: the scaler could not add or remove it.
            KernelFlumeError: a request failed.
        """

        async def decoding() -> bool:
            return (await self._load()).step_times.rows == rows

        async with self._decoding(rows, PROMPT_TOKENS):
            await self._until(decoding, f"{rows} sequences do not decode together; does the pool hold them?")
            operation = await self._scale(2)
        await self._scale(1)
        return sum(span.seconds for span in operation.history if span.phase in _PREWARM_PHASES)

    async def _scale(self, num_nodes: int) -> scaler_pb2.Operation:
        operation_id = f"profile-{uuid.uuid4().hex[:12]}"
        await self._scaler.SetTarget(
            scaler_pb2.SetTargetRequest(operation_id=operation_id, attention_nodes=num_nodes),
            timeout=_CALL_TIMEOUT_S,
        )
        operation = scaler_pb2.Operation()
        request = scaler_pb2.GetOperationRequest(operation_id=operation_id)
        async for state in self._scaler.WatchOperation(request, timeout=_MEASURE_TIMEOUT_S):
            operation = state
        if operation.result != "succeeded":
            raise UnavailableError(f"scaling to {num_nodes} attention nodes: {operation.reason}")
        return operation

    async def _load(self) -> wnode_pb2.WeightNodeLoad:
        load: wnode_pb2.WeightNodeLoad = await self._weight.GetLoad(
            wnode_pb2.GetLoadRequest(), timeout=_CALL_TIMEOUT_S
        )
        return load

    @asynccontextmanager
    async def _decoding(self, num_sequences: int, num_tokens: int) -> AsyncIterator[None]:
        """Keep sequences of so many prompt tokens decoding inside; none runs any more afterwards."""
        card = await self._weight.GetModel(wnode_pb2.GetModelRequest(), timeout=_CALL_TIMEOUT_S)
        max_tokens = min(_MAX_OUTPUT_TOKENS, card.max_model_len - num_tokens)
        self._requests = {
            asyncio.create_task(self._generate(_prompt(number, num_tokens, card.vocab_size), max_tokens))
            for number in range(num_sequences)
        }
        try:
            yield
        finally:
            for request in self._requests:
                request.cancel()
            await asyncio.gather(*self._requests, return_exceptions=True)
            self._requests = set()

        async def idle() -> bool:
            load = await self._load()
            return load.num_requests_running == load.num_requests_waiting == 0

        await self._until(idle, "the weight node does not become idle")

    async def _generate(self, prompt: list[int], max_tokens: int) -> None:
        call = self._weight.Generate(_request(prompt, max_tokens), timeout=_MEASURE_TIMEOUT_S)
        try:
            async for _ in call:
                continue
        finally:
            call.cancel()

    async def _until(self, condition: Callable[[], Awaitable[bool]], complaint: str) -> None:
        """Ask until ``condition`` holds.

        Raises:
            DeadlineError: it never did; the message is ``complaint``.
            KernelFlumeError: a request ended meanwhile.
        """
        deadline = Deadline(self._clock, _MEASURE_TIMEOUT_S)
        while not await condition():
            for ended in [request for request in self._requests if request.done()]:
                if isinstance(failure := ended.exception(), grpc.RpcError):
                    raise error_of(failure) from failure
                ended.result()
                raise UnavailableError("a sequence reached the model's longest length while it was measured")
            if deadline.expired:
                raise DeadlineError(f"after {deadline.seconds:g} s {complaint}")
            await asyncio.sleep(_POLL_S)


def _prompt(number: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Return a prompt that differs from those of other numbers, of ids that every vocabulary has."""
    return [1 + (7 * number + position) % (vocab_size - 1) for position in range(num_tokens)]


def _request(prompt: list[int], max_tokens: int) -> wnode_pb2.GenerateRequest:
    request = wnode_pb2.GenerateRequest(
        request_id=f"profile-{uuid.uuid4().hex}",
        prompt_token_ids=prompt,
        sampling=wnode_pb2.SamplingParameters(max_tokens=max_tokens, top_p=1.0, repetition_penalty=1.0),
    )
    request.sampling.ignore_eos = True
    return request
