"""The pipeline model against measured steps of one and two microbatches (paper section 5.2).

python -m benchmarks.gpu.pipeline --out pipeline.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from benchmarks.gpu.grid import STEPS, WARM, release
from benchmarks.gpu.weight_side import AttentionProcess, WeightSide, make_decoder
from benchmarks.gpu.workload import Workload
from kernelflume.wnode.microbatch import StageTimes, choose, predict

from kernelflume.transport.nixl import NixlTransport
from kernelflume.wnode.gpu.device_stage import QueryFirst

if TYPE_CHECKING:
    from kernelflume.wnode.model.decoder import Decoder

EXCHANGE_S = 7e-6
"""What a layer's exchange adds: measured beforehand, as a weight node knows it from its own steps."""


def main() -> None:
    """Run the workloads and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", default="32:8")
    parser.add_argument("--batches", default="16,32,64,128")
    parser.add_argument("--contexts", default="2048,4096,16384")
    parser.add_argument(
        "--layers",
        type=int,
        default=32,
        help="a step's first and last layer overlap with nothing: with 8 that is a tenth of a step",
    )
    parser.add_argument("--nodes", default="1")
    parser.add_argument("--lanes", default="1,2")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    transport = NixlTransport("w0#1", error_handling="peer", memory="VRAM")
    queries, keys = map(int, options.heads.split(":"))
    rows = []
    for num_nodes in map(int, options.nodes.split(",")):
        processes = [AttentionProcess(index, torch.cuda.device_count() - 1) for index in range(num_nodes)]
        try:
            base = Workload(
                num_query_heads=queries,
                num_kv_heads=keys,
                num_layers=options.layers,
                batch=1,
                context=64,
                num_nodes=num_nodes,
            )
            decoder = make_decoder(base)
            for batch in map(int, options.batches.split(",")):
                for context in map(int, options.contexts.split(",")):
                    workload = base.with_(batch=batch, context=context)
                    lanes = [int(count) for count in options.lanes.split(",")]
                    rows.append(measure(workload, decoder, processes, transport, lanes))
                    print(rows[-1], flush=True)
                    if options.out:
                        options.out.write_text(json.dumps(rows))
            del decoder
            release()
        finally:
            for process in processes:
                process.stop()
    errors = [float(str(row["error"])) for row in rows]
    print("mean absolute error of the predicted ratio", f"{statistics.mean(errors):.4f}", "of", len(errors))


def measure(
    workload: Workload,
    decoder: Decoder,
    processes: list[AttentionProcess],
    transport: NixlTransport,
    lanes: list[int],
) -> dict[str, object]:
    """Measure the stages and the steps of one workload."""
    token_ids = torch.randint(0, workload.model.vocab_size, (workload.batch,), device="cuda")
    stages: dict[int, StageTimes] = {}
    measured: dict[int, float] = {}
    for count in lanes:
        cell = workload.with_(num_lanes=count)
        alone = WeightSide(cell, decoder, [], mode=QueryFirst.LOCAL, transport=transport)
        alone.set_inputs(token_ids)
        weight_s = alone.time_alone() / count
        alone.close()
        del alone
        release()
        side = WeightSide(cell, decoder, processes, mode=QueryFirst.LOCAL, transport=transport)
        side.link(shares_layers=True)
        side.set_inputs(token_ids)
        times, _ = side.run(STEPS)
        measured[count] = statistics.median(times[WARM:]) / workload.num_layers
        stages[count] = StageTimes(weight_s, statistics.mean(side.time_attention()), EXCHANGE_S)
        side.close()
        del side
        release()
    most = max(lanes)
    predicted_ratio = predict(stages[1], 1).layer_s / predict(stages[most], most).layer_s
    ratio = measured[1] / measured[most]
    bound = (stages[most].weight_s + stages[most].attention_s) / max(
        stages[most].weight_s, stages[most].attention_s
    )
    return {
        "cell": workload.name,
        "nodes": workload.num_nodes,
        "stages_us": {
            count: (round(times.weight_s * 1e6, 1), round(times.attention_s * 1e6, 1))
            for count, times in stages.items()
        },
        "measured_us": {count: round(seconds * 1e6, 1) for count, seconds in measured.items()},
        "predicted_us": {
            count: round(predict(times, count).layer_s * 1e6, 1) for count, times in stages.items()
        },
        "gain": round(ratio, 3),
        "predicted_gain": round(predicted_ratio, 3),
        "error": abs(predicted_ratio / ratio - 1),
        "bound_at_this_size": round(bound, 3),
        "chosen": choose(stages).num_microbatches,
    }


if __name__ == "__main__":
    main()
