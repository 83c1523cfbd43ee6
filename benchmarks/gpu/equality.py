"""Logits of the disaggregated decode against one GPU alone, and of both against float32.

    python -m benchmarks.gpu.equality --out equality.json

Bfloat16 rounds to 8 bits, so no two programs that group their sums differently agree to the last bit. The
question is whether exchanging partials loses more than rounding does: the error of each program is its
distance from the same model in float32, with the same weights, keys and values, and the disaggregated one may
have ``--bound`` times that of one GPU alone. Inputs are given (teacher forcing), so that later steps compare
like with like. Contexts are ragged, shares of nodes uneven, and from the fourth step on tails lie on other
nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from benchmarks.gpu.grid import release
from benchmarks.gpu.history import row_history
from benchmarks.gpu.mps import mps
from benchmarks.gpu.reference import RaggedReference
from benchmarks.gpu.routed import RoutedAttention, RoutedWeights
from benchmarks.gpu.split import Kind, Split, ragged_contexts
from benchmarks.gpu.truth import exact_logits
from benchmarks.gpu.weight_side import AttentionProcess, make_decoder
from benchmarks.gpu.workload import Workload

from kernelflume.transport.nixl import NixlTransport
from kernelflume.wnode.gpu.device_stage import QueryFirst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.wnode.model.decoder import Decoder

KINDS: tuple[Kind, ...] = ("uneven", "join")


class Inputs:
    """What every program is given."""

    def __init__(self, workload: Workload, num_steps: int) -> None:
        self.contexts = ragged_contexts(workload.batch, workload.context, page_tokens=workload.page_tokens)
        generator = torch.Generator().manual_seed(11)
        shape = (num_steps, workload.batch)
        self.token_ids = torch.randint(0, workload.vocab_size, shape, generator=generator).cuda()
        steps = torch.arange(num_steps).unsqueeze(1)
        self.positions = (torch.tensor(self.contexts) + steps).cuda()

    @property
    def num_steps(self) -> int:
        """Steps in all."""
        return len(self.token_ids)


def error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> tuple[float, float, float]:
    """Return the relative error of all steps, the worst step's, and the share of equal greedy tokens."""
    steps = [((a - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True)]
    mine, theirs = torch.cat(list(found)), torch.cat(list(exact))
    equal = (mine.argmax(-1) == theirs.argmax(-1)).float().mean().item()
    return ((mine - theirs).norm() / theirs.norm()).item(), max(steps), equal


def exact(workload: Workload, inputs: Inputs) -> list[torch.Tensor]:
    """Return the logits of each step in float32."""
    decoder = make_decoder(workload.with_(dtype="float32"))
    histories = [
        row_history(workload, row, length, decoder.device) for row, length in enumerate(inputs.contexts)
    ]
    return exact_logits(decoder, histories, inputs.token_ids, inputs.positions)


def alone(workload: Workload, decoder: Decoder, inputs: Inputs) -> list[torch.Tensor]:
    """Return the logits of each step on one GPU that holds everything."""
    reference = RaggedReference(workload, decoder, inputs.contexts)
    return [
        reference.take_step(inputs.token_ids[step], inputs.positions[step])
        for step in range(inputs.num_steps)
    ]


def apart(
    workload: Workload,
    decoder: Decoder,
    inputs: Inputs,
    processes: list[AttentionProcess],
    transport: NixlTransport,
    *,
    mode: QueryFirst,
    kind: Kind,
) -> tuple[list[torch.Tensor], int]:
    """Return the logits of each step over attention nodes, and how many graphs were captured."""
    split = Split.make(kind, inputs.contexts, num_nodes=len(processes), num_steps=inputs.num_steps)
    side = RoutedWeights(workload, decoder, processes, mode=mode, transport=transport, split=split)
    side.open_rows(inputs.contexts)
    logits = [
        side.take_step(step, inputs.token_ids[step], inputs.positions[step])
        for step in range(inputs.num_steps)
    ]
    side.close()
    return logits, side.graphs.num_captures


def compare(
    workload: Workload,
    options: argparse.Namespace,
    processes: list[AttentionProcess],
    transport: NixlTransport,
) -> list[dict[str, object]]:
    """Run one workload with every mode, number of microbatches, and split."""
    inputs = Inputs(workload, options.steps)
    expected = exact(workload, inputs)
    release()
    decoder = make_decoder(workload)
    reference = alone(workload, decoder, inputs)
    release()
    base, base_worst, base_equal = error(reference, expected)
    print(f"{workload.name}, {workload.num_layers} layers, contexts {min(inputs.contexts)} to "
          f"{max(inputs.contexts)}: one GPU alone {base:.3e} (worst step {base_worst:.3e}) from float32, "
          f"{base_equal:.3f} of greedy tokens its own", flush=True)  # fmt: skip
    print("| nodes | split | mode | M | error | of one GPU's | worst step's | from one GPU | greedy |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for num_nodes in map(int, options.nodes.split(",")):
        for kind in KINDS[: 1 if num_nodes == 1 else None]:
            for mode in map(QueryFirst, options.modes.split(",")):
                for lanes in map(int, options.lanes.split(",")):
                    found, captures = apart(
                        workload.with_(num_lanes=lanes, num_nodes=num_nodes),
                        decoder,
                        inputs,
                        processes[:num_nodes],
                        transport,
                        mode=mode,
                        kind=kind,
                    )
                    release()
                    total, worst, equal = error(found, expected)
                    row: dict[str, object] = {
                        "cell": workload.name,
                        "layers": workload.num_layers,
                        "nodes": num_nodes,
                        "split": kind,
                        "mode": str(mode),
                        "microbatches": lanes,
                        "error": total,
                        "of_alone": total / base,
                        "worst_step_of_alone": worst / base_worst,
                        "from_alone": error(found, reference)[0],
                        "greedy_equal": equal,
                        "captures": captures,
                        "holds": total <= options.bound * base and captures == 1,
                    }
                    rows.append(row)
                    print(f"| {num_nodes} | {kind} | {mode} | {lanes} | {total:.3e} | {total / base:.3f} | "
                          f"{worst / base_worst:.3f} | {row['from_alone']:.3e} | {equal:.3f} |",
                          flush=True)  # fmt: skip
    alone_row = {"cell": workload.name, "layers": workload.num_layers, "nodes": 0, "error": base,
                 "greedy_equal": base_equal, "holds": True}  # fmt: skip
    return [alone_row, *rows]


def main() -> None:
    """Print a table; fail where the bound does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", default="32:8")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--cells", default="5:1000,32:2048", help="BATCH:CONTEXT, the longest row's")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--nodes", default="1,2,3,4")
    parser.add_argument("--modes", default="off,paper,local")
    parser.add_argument("--lanes", default="1,2")
    parser.add_argument("--bound", type=float, default=1.2)
    parser.add_argument("--device", type=int, default=-1, help="of the attention nodes; by default the last")
    parser.add_argument("--mps", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.mps:
        with mps() as variables:
            # The daemon ends once its clients have, and this process never becomes one.
            command = [sys.executable, "-m", "benchmarks.gpu.equality", *sys.argv[1:], "--no-mps"]
            raise SystemExit(subprocess.run(command, env=os.environ | variables, check=False).returncode)
    rows = run(options)
    ratios = [float(str(row["of_alone"])) for row in rows if "of_alone" in row]
    print(f"largest error {max(ratios):.3f} of one GPU's, mean {sum(ratios) / len(ratios):.3f}, "
          f"of {len(ratios)} runs; bound {options.bound}")  # fmt: skip
    if not all(row["holds"] for row in rows):
        raise SystemExit("the bound does not hold, or a change of routes captured a graph")


def run(options: argparse.Namespace) -> list[dict[str, object]]:
    """Run every cell."""
    torch.set_float32_matmul_precision("highest")
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    device = torch.cuda.device_count() - 1 if options.device < 0 else options.device
    transport = NixlTransport("w0#1", error_handling="peer", memory="VRAM")
    queries, keys = map(int, options.heads.split(":"))
    most = max(map(int, options.nodes.split(",")))
    processes = [AttentionProcess(index, device, RoutedAttention) for index in range(most)]
    rows: list[dict[str, object]] = []
    try:
        for cell in options.cells.split(","):
            batch, context = map(int, cell.split(":"))
            workload = Workload(
                num_query_heads=queries,
                num_kv_heads=keys,
                num_layers=options.layers,
                batch=batch,
                context=context,
                vocab_size=options.vocab,
            )
            rows += compare(workload, options, processes, transport)
            release()
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    finally:
        for process in processes:
            process.stop()
    return rows


if __name__ == "__main__":
    main()
