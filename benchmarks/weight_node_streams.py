"""What a streamed token costs a weight node's shell and its caller: a stream a request, or one for all.

The service and its request table are real, the engine is a clock whose every step has a token for each
request. CPU time is that of each process.

    python -m benchmarks.weight_node_streams --requests 128
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil

from kernelflume.core.sampling import SamplingParameters
from kernelflume.rpc.channel import Channels
from kernelflume.rpc.codec import sampling_to_proto
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.wnode.messages import Cancel, StepOutput, Submit, TokenOutput
from kernelflume.wnode.requests import RequestTable
from kernelflume.wnode.servicer import WeightNodeServicer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection

    from kernelflume.wnode.messages import Command

SERVICE = "kernelflume.rpc.v1.WeightNode"


class ClockEngine:
    """Gives each request a token a step."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def take(self, command: Command) -> None:
        """Take a command of the shell."""
        if isinstance(command, Submit):
            self._left[command.request_id] = command.sampling.max_tokens
        elif isinstance(command, Cancel):
            self._left.pop(command.request_id, None)

    def step(self) -> StepOutput:
        """Return a step's outputs."""
        outputs = []
        for request_id, left in list(self._left.items()):
            outputs.append(TokenOutput(request_id, (1234,), "" if left > 1 else "length"))
            self._left[request_id] = left - 1
            if left == 1:
                del self._left[request_id]
        return StepOutput(tuple(outputs))


async def _no_grammar(_: Any, tenant: str) -> bytes:
    return b""


async def serve(pipe: Connection, period_s: float) -> None:
    """Run the weight node until it is ended; say its port."""
    engine = ClockEngine()
    table = RequestTable(
        engine.take, max_in_flight=4096, max_model_len=8192, vocab_size=50_000, compile_grammar=_no_grammar
    )
    shell: Any = SimpleNamespace(requests=table, report=None)
    server = Server("127.0.0.1:0", [SERVICE])
    wnode_pb2_grpc.add_WeightNodeServicer_to_server(WeightNodeServicer(shell), server.grpc_server)
    await server.start()
    pipe.send(server.port)
    while True:
        await asyncio.sleep(period_s)
        table.deliver(engine.step())


def _serve(pipe: Connection, period_s: float) -> None:
    asyncio.run(serve(pipe, period_s))


def request(name: str, max_tokens: int) -> wnode_pb2.GenerateRequest:
    """Return a request."""
    sampling = sampling_to_proto(SamplingParameters(max_tokens=max_tokens))
    return wnode_pb2.GenerateRequest(request_id=name, prompt_token_ids=[1, 2], sampling=sampling)


async def by_generate(stub: wnode_pb2_grpc.WeightNodeStub, num_requests: int, max_tokens: int) -> int:
    """Run the requests, each by a call; return the tokens that came."""

    async def one(name: str) -> int:
        return sum([len(event.token_ids) async for event in stub.Generate(request(name, max_tokens))])

    return sum(await asyncio.gather(*(one(f"g-{number}") for number in range(num_requests))))


async def by_attach(stub: wnode_pb2_grpc.WeightNodeStub, num_requests: int, max_tokens: int) -> int:
    """Run the requests on one stream; return the tokens that came."""
    call = stub.Attach()
    for number in range(1, num_requests + 1):
        asked = request(f"a-{number}", max_tokens)
        submission = wnode_pb2.Submission(number=number, request=asked)
        await call.write(wnode_pb2.AttachRequest(submission=submission))
    await call.done_writing()
    num_tokens = 0
    async for reply in call:
        num_tokens += len(list(zip(reply.numbers, reply.token_ids, strict=True)))
        num_tokens += sum(len(told.event.token_ids) for told in reply.events)
    return num_tokens


async def measure(options: argparse.Namespace, port: int, server_cpu: Callable[[], float]) -> None:
    """Print both ways' CPU time a token, on both sides."""
    ways: dict[str, Callable[..., Awaitable[int]]] = {"Generate": by_generate, "Attach": by_attach}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    async with Channels().open(f"127.0.0.1:{port}") as channel:
        stub = wnode_pb2_grpc.WeightNodeStub(channel)
        for number in range(options.rounds + 1):
            for name, way in ways.items():
                theirs, ours = server_cpu(), time.process_time()
                num_tokens = await way(stub, options.requests, options.tokens)
                ours, theirs = time.process_time() - ours, server_cpu() - theirs
                if number:  # the first round warms up
                    found[name].append((1e6 * theirs / num_tokens, 1e6 * ours / num_tokens))
    print("| way | weight node, us of CPU a token | caller |")
    print("|---|---|---|")
    for name, rounds in found.items():
        print(f"| {name} | {median(one for one, _ in rounds):.1f} | {median(two for _, two in rounds):.1f} |")


def main() -> None:
    """Start the weight node, measure, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=60, help="of each request")
    parser.add_argument("--period", type=float, default=0.05, help="seconds between two steps")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pipe, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, options.period))
    process.start()
    try:
        port = pipe.recv()

        def server_cpu() -> float:
            times = psutil.Process(process.pid).cpu_times()
            return float(times.user + times.system)

        asyncio.run(measure(options, port, server_cpu))
    finally:
        process.terminate()
        process.join(10)


if __name__ == "__main__":
    main()
