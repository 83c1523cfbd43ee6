"""What moving a running request between two weight nodes costs its stream.

    python -m benchmarks.hand_over [--moves 40] [--gap 8]

One stream decodes; every few tokens it is moved to the other weight node. The gap of a move is that between
the token before it and the token after it, as a client sees them, beside the median of the other gaps.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

import httpx
from grpc.aio import insecure_channel
from tests.stack import Stream, serve

from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc

PROMPT = "Chapter 1. A short history of rivers in the north from 900:"


async def ask_away(address: str) -> int:
    """Ask a weight node to have its requests moved; return of how many that was asked."""
    async with insecure_channel(address) as channel:
        request = wnode_pb2.MoveRequestsRequest()
        answer = await wnode_pb2_grpc.WeightNodeStub(channel).MoveRequests(request)
        return int(answer.num_asked)


async def histogram(url: str, name: str) -> tuple[float, float]:
    """Return the sum and the number of a histogram's observations."""
    async with httpx.AsyncClient() as client:
        lines = (await client.get(f"{url}/metrics")).text.splitlines()
    figures = [line for line in lines if line.startswith((f"{name}_sum", f"{name}_count"))]
    num, total = sorted(figures)  # the number's name comes first
    return float(total.rpartition(" ")[2]), float(num.rpartition(" ")[2])


async def measure(options: argparse.Namespace) -> None:
    """Print the figures."""
    num_tokens = (options.moves + 2) * options.gap
    flags = ("--weight-nodes", "2", "--attention-nodes", "2", "--attention-node-memory", "128MiB")
    with tempfile.TemporaryDirectory() as logs, serve(Path(logs), *flags) as stack:
        await stack.stream(PROMPT, 16, Stream())  # to warm
        addresses = [node["address"] for node in stack.status()["weight_nodes"]]
        stream, moved_after = Stream(), list[int]()
        running = asyncio.create_task(stack.stream(PROMPT, num_tokens, stream))
        for number in range(1, options.moves + 1):
            while len(stream.token_ids) < number * options.gap:  # noqa: ASYNC110 - it grows
                await asyncio.sleep(0.001)
            for address in addresses:
                if await ask_away(address):
                    moved_after.append(len(stream.token_ids))
                    break
        await running
        gaps = stream.gaps
        # The order reaches the step that is under way, or the one after it.
        worst = [max(gaps[at - 1 : at + 2]) for at in moved_after]
        others = [gap for place, gap in enumerate(gaps) if all(abs(place - at) > 2 for at in moved_after)]
        held_s, num_moved = await histogram(stack.url, "kernelflume_router_hand_over_seconds")
    print(f"moves: {num_moved:.0f}")
    print(f"from standing still to the next token, mean: {1e3 * held_s / num_moved:.1f} ms")
    print(f"longest gap around a move, median: {1e3 * statistics.median(worst):.1f} ms")
    print(f"other gaps, median: {1e3 * statistics.median(others):.1f} ms")


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument("--gap", type=int, default=8, help="tokens between two moves")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
