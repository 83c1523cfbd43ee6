"""Measuring a small running stack: load through its router, figures from its weight node, nodes and scaler.

Requests go the way of a client's: where all share the cores of one machine, router and client have a part in
every step.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import asynccontextmanager
from statistics import median
from typing import TYPE_CHECKING

from kernelflume.cli.bench.endpoint import Endpoint, parse_target
from kernelflume.cli.profile_plan import PROMPT_TOKENS, MeasuredGrowth, MeasuredSteps, typical_steps
from kernelflume.cli.step_counter import StepCounter
from kernelflume.core.errors import DeadlineError, UnavailableError
from kernelflume.core.routing import NodeState
from kernelflume.rpc.channel import open_channel
from kernelflume.rpc.codec import step_times_from_proto
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

    from kernelflume.cli.bench.answer import Answer
    from kernelflume.rpc.v1.wnode_pb2 import ModelCard, WeightNodeLoad

_CALL_TIMEOUT_S = 10.0
_MEASURE_TIMEOUT_S = 300.0
"""Bound of one measurement, prompts included."""
_POLL_S = 0.05
_WINDOW_STEPS = 16
"""Steps that a weight node reports the medians of: readings this far apart share none."""
_SCAN_READING_S = 1.0
_MAX_OUTPUT_TOKENS = 100_000
"""More than any measurement lasts; the model's own limit may be lower."""
_PREWARM_PHASES = ("launching", "prewarming")


class StackMeter:
    """Puts load on a stack of one attention node and reads what its nodes measure. Close it at the end."""

    def __init__(self, *, router: str, model: str, weight_node: str, scaler: str) -> None:
        """Open channels to the services.

        Args:
            router: base URL.
            model: what the router calls it.
            weight_node: host:port.
            scaler: host:port.
        """
        self._endpoint = Endpoint(parse_target(router, (), None))
        self._model = model
        self._channels = [open_channel(weight_node), open_channel(scaler)]
        self._weight = wnode_pb2_grpc.WeightNodeStub(self._channels[0])
        self._scaler = scaler_pb2_grpc.ScalerAdminStub(self._channels[1])
        self._clock = MonotonicClock()
        self._requests: set[asyncio.Task[Answer]] = set()
        self._num_prompts = 0

    async def close(self) -> None:
        """Close the channels."""
        self._endpoint.close()
        for channel in self._channels:
            await channel.close()

    async def card(self) -> ModelCard:
        """Return what the weight node tells of itself."""
        card: ModelCard = await self._weight.GetModel(wnode_pb2.GetModelRequest(), timeout=_CALL_TIMEOUT_S)
        return card

    async def measure_steps(self, rows: int, *, num_windows: int) -> MeasuredSteps:
        """Decode ``rows`` short sequences and return their typical step.

        Raises:
            DeadlineError: so many never decoded together.
            KernelFlumeError: a request failed.
        """
        async with self._decoding(rows, PROMPT_TOKENS):
            return await self._typical_steps(rows, num_windows)

    async def _typical_steps(self, rows: int, num_windows: int) -> MeasuredSteps:
        """Return the typical step of ``rows`` sequences that decode."""
        windows: list[MeasuredSteps] = []
        counter = StepCounter()
        load = wnode_pb2.WeightNodeLoad()

        async def enough() -> bool:
            nonlocal load
            load = await self._load()
            if load.step_times.rows != rows or load.num_requests_running != rows:
                windows.clear()
                counter.restart()
                return False
            counter.look(self._clock.now(), load.num_steps)
            if counter.num_steps >= _WINDOW_STEPS * (len(windows) + 1):
                times = step_times_from_proto(load.step_times)
                windows.append(MeasuredSteps(times=times, held_tokens=load.num_tokens))
            return len(windows) >= num_windows

        def complaint() -> str:
            running, waiting = load.num_requests_running, load.num_requests_waiting
            doubt = (
                "does the router let as many in (KERNELFLUME_ROUTER_MAX_CONCURRENT_REQUESTS)?"
                if running + waiting < rows
                else "does the pool hold them (--attention-node-memory)?"
            )
            told = f"{running} run and {waiting} wait on the weight node"
            return f"{rows} sequences do not decode together: {told}; {doubt}"

        await self._until(enough, complaint)
        num_layers = (await self.card()).geometry.num_layers
        return typical_steps(windows, mean_s=counter.mean_s, num_layers=num_layers)

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
            await self._until(
                enough, lambda: "the attention node does not tell how fast it reads keys and values"
            )
        return median(readings)

    async def measure_prefill(self, num_tokens: int) -> float:
        """Return how long the idle stack takes for a prompt, up to its first token.

        Raises:
            UnavailableError: no token came.
            KernelFlumeError: the request failed.
        """
        card = await self.card()
        answer = await self._generate(num_tokens, 1, card.vocab_size)
        if answer.ttft_s is None:
            raise UnavailableError(f"a prompt of {num_tokens} tokens was answered without a token")
        return answer.ttft_s

    async def measure_growth(self, rows: int, num_tokens: int, *, num_windows: int) -> MeasuredGrowth:
        """Add an attention node under ``rows`` sequences, spread as many over both, and remove it again.

        Args:
            rows: sequences.
            num_tokens: of each prompt.
            num_windows: reports before and after.

        Raises:
            UnavailableError: the scaler could not add or remove it.
            KernelFlumeError: a request failed.
        """
        async with self._decoding(rows, num_tokens):
            before = await self._typical_steps(rows, num_windows)
            operation = await self._scale(2)
        async with self._decoding(rows, num_tokens):
            after = await self._typical_steps(rows, num_windows)
        await self._scale(1)
        return MeasuredGrowth(
            prewarm_s=sum(span.seconds for span in operation.history if span.phase in _PREWARM_PHASES),
            before_s=before.times.step_s,
            after_s=after.times.step_s,
        )

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

    async def _load(self) -> WeightNodeLoad:
        load: WeightNodeLoad = await self._weight.GetLoad(wnode_pb2.GetLoadRequest(), timeout=_CALL_TIMEOUT_S)
        return load

    @asynccontextmanager
    async def _decoding(self, num_sequences: int, num_tokens: int) -> AsyncIterator[None]:
        """Keep sequences of so many prompt tokens decoding inside; none runs any more afterwards."""
        card = await self.card()
        max_tokens = min(_MAX_OUTPUT_TOKENS, card.max_model_len - num_tokens)
        self._requests = {
            asyncio.create_task(self._generate(num_tokens, max_tokens, card.vocab_size))
            for _ in range(num_sequences)
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

        await self._until(idle, lambda: "the weight node does not become idle")

    async def _generate(self, num_tokens: int, max_tokens: int, vocab_size: int) -> Answer:
        """Send a prompt of so many tokens, and return the answer once it has ended.

        Raises:
            UnavailableError: it failed.
        """
        self._num_prompts += 1  # no beginning of a prompt is kept from one before
        fields = {
            "model": self._model,
            "prompt": _prompt(self._num_prompts, num_tokens, vocab_size),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = await self._endpoint.stream(
            "/completions", json.dumps(fields).encode(), {}, timeout_s=_MEASURE_TIMEOUT_S, keep_text=False
        )
        if not answer.ok:
            raise UnavailableError(f"a request failed: {answer.status}: {answer.detail}")
        return answer

    async def _until(self, condition: Callable[[], Awaitable[bool]], complaint: Callable[[], str]) -> None:
        """Ask until ``condition`` holds.

        Raises:
            DeadlineError: it never did; the message is what ``complaint`` says then.
            KernelFlumeError: a request ended meanwhile.
        """
        deadline = Deadline(self._clock, _MEASURE_TIMEOUT_S)
        while not await condition():
            for ended in [request for request in self._requests if request.done()]:
                ended.result()
                raise UnavailableError("a sequence reached the model's longest length while it was measured")
            if deadline.expired:
                raise DeadlineError(f"after {deadline.seconds:g} s {complaint()}")
            await asyncio.sleep(_POLL_S)


def _prompt(number: int, num_tokens: int, vocab_size: int) -> list[int]:
    """Return a prompt that differs from those of other numbers, of ids that every vocabulary has."""
    return [1 + (7 * number + position) % (vocab_size - 1) for position in range(num_tokens)]
