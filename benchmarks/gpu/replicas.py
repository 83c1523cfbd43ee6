"""Tokens a second and GPU, beside replicas of the whole model on the same two GPUs.

    python -m benchmarks.gpu.replicas --out replicas.json

Two replicas take half of the batch each; one weight node and one attention node take all of it. Also printed:
how many tokens of context each arrangement holds in ``--memory`` of every GPU, which says at which context a
replica must shrink its batch, and one pool of attention nodes need not.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from benchmarks.gpu.grid import STEPS, WARM, release
from benchmarks.gpu.reference import Reference
from benchmarks.gpu.weight_side import AttentionProcess, WeightSide, make_decoder
from benchmarks.gpu.workload import Workload

from kernelflume.transport.nixl import NixlTransport
from kernelflume.wnode.gpu.device_stage import QueryFirst

if TYPE_CHECKING:
    from kernelflume.wnode.model.decoder import Decoder

NUM_GPUS = 2
LLAMA_8B_WEIGHT_BYTES = 16.06e9


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", default="32:8")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--cells", default="32:4096,64:4096,128:2048,32:16384,64:16384")
    parser.add_argument(
        "--memory", type=float, default=130e9, help="bytes of each GPU, weights and KV together"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    transport = NixlTransport("w0#1", error_handling="peer", memory="VRAM")
    queries, keys = map(int, options.heads.split(":"))
    base = Workload(
        num_query_heads=queries, num_kv_heads=keys, num_layers=options.layers, batch=1, context=64
    )
    token_bytes = base.geometry.token_bytes
    replicas_hold = (options.memory - LLAMA_8B_WEIGHT_BYTES) / token_bytes
    pool_holds = options.memory / token_bytes
    print(f"a replica holds {replicas_hold:,.0f} tokens, an attention node {pool_holds:,.0f}")
    process = AttentionProcess(0, torch.cuda.device_count() - 1)
    rows = []
    try:
        decoder = make_decoder(base)
        for cell in options.cells.split(","):
            batch, context = map(int, cell.split(":"))
            row = measure(base.with_(batch=batch, context=context), decoder, process, transport)
            rows.append(row)
            print(row, flush=True)
    finally:
        process.stop()
    if options.out:
        options.out.write_text(json.dumps(rows), encoding="utf-8")


def measure(
    workload: Workload, decoder: Decoder, process: AttentionProcess, transport: NixlTransport
) -> dict[str, object]:
    """Measure one cell: microseconds a step, and tokens a second and GPU."""
    row: dict[str, object] = {"cell": workload.name}
    half = workload.with_(batch=workload.batch // NUM_GPUS)
    token_ids = torch.randint(0, workload.model.vocab_size, (workload.batch,), device="cuda")
    reference = Reference(half, decoder, shares_layers=True)
    reference.set_inputs(token_ids[: half.batch])
    times, _ = reference.run(STEPS)
    alone_s = statistics.median(times[WARM:])
    del reference
    release()
    row["replica us"] = round(alone_s * 1e6)
    row["replicas tokens/s/GPU"] = round(half.batch / alone_s)
    for lanes in (1, 2):
        side = WeightSide(
            workload.with_(num_lanes=lanes), decoder, [process], mode=QueryFirst.LOCAL, transport=transport
        )
        side.link(shares_layers=True)
        side.set_inputs(token_ids)
        times, _ = side.run(STEPS)
        step_s = statistics.median(times[WARM:])
        row[f"M={lanes} us"] = round(step_s * 1e6)
        row[f"M={lanes} tokens/s/GPU"] = round(workload.batch / step_s / NUM_GPUS)
        side.close()
        del side
        release()
    return row


if __name__ == "__main__":
    main()
