"""Step times of the disaggregated decode against one GPU alone, over the paper's grid (section 6.3).

python -m benchmarks.gpu.grid --cells small --out results.json
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from benchmarks.gpu.device import copy_bandwidth
from benchmarks.gpu.host_weight_side import side_of
from benchmarks.gpu.reference import Reference
from benchmarks.gpu.weight_side import AttentionProcess, make_decoder
from benchmarks.gpu.workload import HEAD_CONFIGURATIONS, Workload

from kernelflume.core.geometry import kv_dtype_of
from kernelflume.core.regions import LanePath
from kernelflume.transport.nixl import NixlTransport
from kernelflume.wnode.gpu.device_stage import QueryFirst

if TYPE_CHECKING:
    from kernelflume.wnode.model.decoder import Decoder

STEPS, WARM = 18, 6


def main() -> None:
    """Run the cells and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", default="all", help="all, or Q:KV,Q:KV")
    parser.add_argument("--batches", default="8,32,128")
    parser.add_argument("--contexts", default="2048,8192,32768")
    parser.add_argument("--modes", default="off,paper,local")
    parser.add_argument("--paths", default="device", help="device, host or both, separated by commas")
    parser.add_argument("--lanes", default="1")
    parser.add_argument("--kv-dtype", default="bfloat16", help="bfloat16 or fp8")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--device", type=int, default=-1, help="of the attention nodes; by default the last")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    print(
        "device",
        torch.cuda.get_device_name(0),
        "copy TB/s",
        round(copy_bandwidth(torch.device("cuda", 0)) / 1e12, 2),
    )
    heads = (
        HEAD_CONFIGURATIONS
        if options.heads == "all"
        else tuple((int(q), int(kv)) for q, kv in (pair.split(":") for pair in options.heads.split(",")))
    )
    device = torch.cuda.device_count() - 1 if options.device < 0 else options.device
    transport = NixlTransport("w0#1", error_handling="peer", memory="VRAM")
    processes = [AttentionProcess(index, device) for index in range(options.nodes)]
    results = []
    try:
        for num_query_heads, num_kv_heads in heads:
            base = Workload(
                num_query_heads=num_query_heads,
                num_kv_heads=num_kv_heads,
                num_layers=options.layers,
                batch=1,
                context=64,
                num_nodes=options.nodes,
                kv_dtype=kv_dtype_of(options.kv_dtype, "bfloat16"),
            )
            decoder = make_decoder(base)
            for batch in map(int, options.batches.split(",")):
                for context in map(int, options.contexts.split(",")):
                    workload = base.with_(batch=batch, context=context)
                    kv_bytes = batch * (context + 4096) * workload.geometry.kv_row_bytes
                    if kv_bytes > 90e9:
                        continue
                    counts = [int(count) for count in options.lanes.split(",")]
                    modes = options.modes.split(",")
                    row = run_cell(
                        workload,
                        decoder,
                        processes,
                        transport,
                        paths=options.paths.split(","),
                        modes=modes,
                        lanes=counts,
                    )
                    results.append(row)
                    if options.out:
                        options.out.write_text(json.dumps(results))
            del decoder
            release()
    finally:
        for process in processes:
            process.stop()


def run_cell(
    workload: Workload,
    decoder: Decoder,
    processes: list[AttentionProcess],
    transport: NixlTransport,
    *,
    paths: list[str],
    modes: list[str],
    lanes: list[int],
) -> dict[str, object]:
    """Measure one cell."""
    token_ids = torch.randint(0, workload.model.vocab_size, (workload.batch,), device="cuda")
    reference = Reference(workload, decoder, shares_layers=True)
    reference.set_inputs(token_ids)
    alone, _ = reference.run(STEPS)
    base_s = statistics.median(alone[WARM:])
    del reference
    release()
    row: dict[str, object] = {
        "cell": workload.name,
        "layer_us_alone": round(base_s / workload.num_layers * 1e6, 1),
    }
    for mode, path, count in itertools.product(modes, paths, lanes):
        cell = workload.with_(num_lanes=count)
        side = side_of(path)(cell, decoder, processes, mode=QueryFirst(mode), transport=transport)
        side.link(shares_layers=True)
        side.set_inputs(token_ids)
        times, _ = side.run(STEPS)
        step_s = statistics.median(times[WARM:])
        key = mode if path == LanePath.DEVICE else f"{mode} {path}"
        key = key if count == 1 else f"{key} M={count}"
        row[key] = round(step_s / base_s, 3)
        row[f"{key} layer_us"] = round(step_s / workload.num_layers * 1e6, 1)
        row[f"{key} host_us"] = round(side.attention_host_s * 1e6)
        side.close()
        del side
        release()
    print(row, flush=True)
    return row


def release() -> None:
    """Give memory back."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
