"""Placement policies side by side on the real stack: the table of the second seed's hypotheses.

    python -m benchmarks.placement TRACE [--weight-nodes 2] [--attention-nodes 2] [--rounds 3] [--only NAMES]

For each policy the stack is started anew, so that its prefix cache is empty, and `kernelflume bench` replays
the same sessions of TRACE (a format of `kernelflume bench`, such as the agents' sessions of kv-cache-tester)
with the same seed and load. Lengths are divided by --length-scale, and so are the bounds between WARM, MEDIUM
and HEAVY here and in the router. Rounds alternate the policies; the table shows medians over them.

Each weight node is kept to a core of its own, as it would have a GPU of its own: where all share all cores,
nothing depends on which of them computes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from benchmarks.decode import COMMAND, server

from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WARM_TOKENS, HEAVY_TOKENS = 5_000, 20_000
"""Bounds of the classes before they are divided, as the seed has them."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One line of the table."""

    name: str
    policy: str
    roles: str = ""
    """Role of each weight node where not all take everything; the last one goes for those beyond."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings, by the names that follow ``KERNELFLUME_`` in the environment."""


OVERLOAD_FACTOR = "ROUTER_PLACEMENT__OVERLOAD_FACTOR"
POLICIES = (
    Policy("sticky 2.0", "sticky", settings={OVERLOAD_FACTOR: "2.0"}),
    Policy("sticky 1.5", "sticky", settings={OVERLOAD_FACTOR: "1.5"}),
    Policy("sticky 1.0", "sticky", settings={OVERLOAD_FACTOR: "1.0"}),
    Policy("sticky 2.0, no streaming", "sticky", settings={"WNODE_STREAM_KV_ROWS": "0"}),
    Policy("least_loaded", "least_loaded"),
    Policy("lmetric", "lmetric"),
    Policy("unified", "unified"),
    Policy("ps_always", "ps_always"),
    Policy("cache_gate", "cache_gate"),
    Policy("elastic prefill", "ps_always", roles="prefill,decode"),
)


def roles(policy: Policy, num_nodes: int) -> str:
    """Return the roles of so many weight nodes, or nothing where all take everything."""
    if not policy.roles:
        return ""
    named = policy.roles.split(",")
    return ",".join([*named, *[named[-1]] * num_nodes][:num_nodes])


def run(policy: Policy, options: argparse.Namespace) -> dict[str, Any]:
    """Start the stack, replay the trace, and return the benchmark's result."""
    scale = options.length_scale
    port = free_port()
    environment = {
        "KERNELFLUME_ROUTER_PLACEMENT__WARM_TOKENS": str(round(WARM_TOKENS / scale)),
        "KERNELFLUME_ROUTER_PLACEMENT__HEAVY_TOKENS": str(round(HEAVY_TOKENS / scale)),
        "KERNELFLUME_ANODE_PAGE_TOKENS": str(options.page_tokens),
        **{f"KERNELFLUME_{name}": value for name, value in policy.settings.items()},
    }
    with tempfile.TemporaryDirectory() as folder:
        serve = [*COMMAND, "serve", options.model, "--port", str(port), "--scaler-port", "0"]
        serve += ["--log-dir", f"{folder}/logs", "--attention-nodes", str(options.attention_nodes)]
        serve += ["--weight-nodes", str(options.weight_nodes), "--placement-policy", policy.policy]
        if policy.roles:
            serve += ["--weight-node-roles", roles(policy, options.weight_nodes)]
        with server(serve, port, "/ready", **environment) as url:
            keep_to_cores(f"{folder}/logs")
            bench = [*COMMAND, "bench", str(options.trace), "--base-url", url, "--seed", str(options.seed)]
            bench += ["--num-requests", str(options.num_requests), "--max-turns", str(options.max_turns)]
            bench += ["--length-scale", str(scale), "--output-scale", str(options.output_scale)]
            bench += ["--time-scale", str(options.time_scale), "--max-think-time", "2"]
            bench += ["--active-sessions", str(options.active_sessions), "--classes-by", "trace"]
            bench += ["--output-dir", f"{folder}/out"]
            subprocess.run(bench, check=False, stdout=subprocess.DEVNULL, stderr=sys.stderr, timeout=1800)
            result: dict[str, Any] = json.loads(Path(folder, "out", "result.json").read_text())
            return result


def keep_to_cores(logs: str) -> None:
    """Give each weight node of the stack that logs there a core, one after the other."""
    cores = sorted(os.sched_getaffinity(0))
    lines = {each.pid: each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])}
    weight_nodes = (psutil.Process(pid) for pid, line in lines.items() if "kernelflume.wnode" in line)
    of_stack = [node for node in weight_nodes if logs in lines.get(node.ppid(), ())]
    for number, node in enumerate(of_stack):
        for thread in node.threads():
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(thread.id, {cores[number % len(cores)]})


def figures(result: Mapping[str, Any]) -> dict[str, float | str | None]:
    """Return what a line of the table shows."""
    own = result["kernelflume"]
    classes = own["classes"]
    row: dict[str, float | str | None] = {}
    for name in ("ALL", "WARM", "MEDIUM", "HEAVY"):
        line = next((line for key, line in classes.items() if key.upper().startswith(name)), None)
        if line is None:
            continue
        short = name if name == "ALL" else name[0]
        row[f"{short} OK"] = f"{line['ok']}/{line['n']}"
        row[f"{short} TTFT50"] = line["ttft_p50_s"]
        if name in {"ALL", "HEAVY"}:
            row[f"{short} TTFT90"] = line["ttft_p90_s"]
        row[f"{short} TPOT90"] = line["tpot_p90_s"]
        if name == "ALL":
            row["E2E50"] = line["e2e_p50_s"]
    row["hit"] = own["prefix_hit"]
    row["infinite"] = own["infinite_cache_hit"]
    row["imbalance"] = own["imbalance_utilisation"]
    row["of tokens"] = own["imbalance_computed_tokens"]
    return row


def middle(rows: Sequence[Mapping[str, float | str | None]]) -> dict[str, str]:
    """Return the median of each figure over the rounds, as it is printed."""
    shown = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        numbers = [float(value) for value in values if isinstance(value, (int, float))]
        if numbers:
            shown[name] = f"{statistics.median(numbers):.3f}"
        else:
            shown[name] = " ".join(sorted({str(value) for value in values if value is not None})) or "-"
    return shown


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--weight-nodes", type=int, default=2)
    parser.add_argument("--attention-nodes", type=int, default=2)
    parser.add_argument("--page-tokens", type=int, default=16)
    parser.add_argument("--num-requests", type=int, default=80)
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--length-scale", type=float, default=128)
    parser.add_argument("--output-scale", type=float, default=32)
    parser.add_argument("--time-scale", type=float, default=10)
    parser.add_argument("--active-sessions", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of lines, with commas between")
    parser.add_argument("--output", type=Path, help="file that gets every round's figures as JSON")
    options = parser.parse_args()
    wanted = {name.strip() for name in options.only.split(",") if name.strip()}
    policies = [policy for policy in POLICIES if not wanted or policy.name in wanted]
    found: dict[str, list[dict[str, float | str | None]]] = {policy.name: [] for policy in policies}
    for number in range(options.rounds):
        for policy in policies:
            found[policy.name].append(figures(run(policy, options)))
            print(f"round {number + 1}, {policy.name}: {found[policy.name][-1]}", file=sys.stderr, flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(found, indent=1))
    lines = {name: middle(rows) for name, rows in found.items()}
    columns = list(next(iter(lines.values())))
    print(f"| policy | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for name, line in lines.items():
        print(f"| {name} | {' | '.join(line.get(column, '-') for column in columns)} |")


if __name__ == "__main__":
    main()
