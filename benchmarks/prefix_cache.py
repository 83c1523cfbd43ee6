"""Whether a replay of sessions finds all that it can in the prefix cache, and says the same without one.

    python -m benchmarks.prefix_cache kv_cache_tester_claude_code.jsonl.gz [--num-requests 60] [--seed 0]

Two weight nodes share what attention nodes hold. The trace is replayed against them by `kernelflume bench`,
and again against a stack without a cache, from the same seed. Each request's cached tokens are compared with
those that a cache without an end would hold, by the trace; it may lack what does not fill a block.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.replay import Replayed, replay
from tests.stack import serve

TIMEOUT_S = 3600.0


def run(options: argparse.Namespace, *flags: str) -> Replayed:
    """Start a stack and replay the trace against it."""
    stack_flags = (
        "--weight-nodes",
        "2",
        "--attention-nodes",
        "2",
        "--placement-policy",
        options.policy,
        *flags,
    )
    settings = {
        "KERNELFLUME_ANODE_PAGE_TOKENS": str(options.page_tokens),
        "KERNELFLUME_SCALER_OPERATION_DEADLINE_S": "240",
    }
    workload = (
        *(str(options.trace), "--num-requests", str(options.num_requests), "--max-turns", "12"),
        *("--length-scale", "128", "--output-scale", "32", "--time-scale", "10", "--max-think-time", "1"),
        *("--active-sessions", "4", "--seed", str(options.seed)),
    )
    with tempfile.TemporaryDirectory() as logs, serve(Path(logs), *stack_flags, **settings) as stack:
        return replay(stack, *workload, timeout_s=TIMEOUT_S)


def row(name: str, replayed: Replayed, page_tokens: int, *, are_equal: bool) -> str:
    """Return a row of the table."""
    own = replayed.result["kernelflume"]
    cached = {key: line["cached_tokens"] for key, line in replayed.requests.items()}
    lacking = [line["infinite_cache_tokens"] - line["cached_tokens"] for line in replayed.requests.values()]
    bounds = replayed.findable(page_tokens)
    num_off = sum(not least <= cached[key] <= most for key, (least, most) in bounds.items())
    num_spread = sum(len(places) > 1 for places in replayed.places.values())
    compared = (
        (f"{sum(lacking) / len(lacking):.1f}", max(lacking), num_off) if any(cached.values()) else "---"
    )
    cells = (
        name,
        len(replayed.requests),
        replayed.result["total_input_tokens"],
        f"{own['infinite_cache_hit']:.2%}",
        f"{own['prefix_hit']:.2%}",
        *compared,
        f"{num_spread} of {len(replayed.places)}",
        f"{replayed.result['median_ttft_ms']:.0f} ms",
        "yes" if are_equal else "no",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Parse the arguments, replay, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--num-requests", type=int, default=60)
    parser.add_argument("--page-tokens", type=int, default=16)
    parser.add_argument("--policy", default="least_loaded")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cached, computed = run(options), run(options, "--no-enable-prefix-caching")
    are_equal = cached.answers == computed.answers
    print(
        "| stack | requests | prompt tokens | trace's hit | measured hit | lacking tokens, mean | most "
        "| beyond rounding | sessions on both nodes | TTFT p50 | outputs equal |"
    )
    print("|" + "---|" * 11)
    print(row("prefix cache", cached, options.page_tokens, are_equal=are_equal))
    print(row("none", computed, options.page_tokens, are_equal=are_equal))
    if not are_equal:
        different = [key for key, answer in cached.answers.items() if computed.answers[key] != answer]
        print(f"\nother outputs: {different}")


if __name__ == "__main__":
    main()
