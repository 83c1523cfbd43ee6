"""The pipeline model against measured steps of one and two microbatches (paper section 5.2).

Stages are measured apart from each other: the weight node alone, the attention node alone. What a round
trip takes besides is known from steps of one microbatch of the same workload, and what the exchange costs
the weight node where it never waits from steps of several at a short context, once for each batch. From
these the step of several microbatches is predicted; nothing is taken from the step that is predicted.

python -m benchmarks.gpu.pipeline --out pipeline.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from benchmarks.gpu.grid import STEPS, WARM, release
from benchmarks.gpu.weight_side import AttentionProcess, WeightSide, make_decoder
from benchmarks.gpu.workload import Workload

from kernelflume.core.pipeline import StageTimes, choose, gain, step_s
from kernelflume.transport.nixl import NixlTransport
from kernelflume.wnode.gpu.device_stage import QueryFirst

if TYPE_CHECKING:
    from kernelflume.wnode.model.decoder import Decoder

SHORT_CONTEXT = 256
"""Tokens of the workload that tells what the exchange costs the weight node; not one of those predicted."""


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
                lanes = [int(count) for count in options.lanes.split(",")]
                short = base.with_(batch=batch, context=SHORT_CONTEXT)
                costs = weight_exchange_s(short, decoder, processes, transport, max(lanes))
                for context in map(int, options.contexts.split(",")):
                    workload = base.with_(batch=batch, context=context)
                    rows.append(measure(workload, decoder, processes, transport, lanes, costs_s=costs))
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
    split = [float(str(row["chosen_over_one"])) for row in rows if row["chosen"] != 1]
    if split:
        print(f"where more than one is chosen: {statistics.mean(split):.3f} of one, at most {max(split):.3f}")


def measure_part(
    workload: Workload,
    decoder: Decoder,
    processes: list[AttentionProcess],
    transport: NixlTransport,
) -> tuple[StageTimes, float]:
    """Return a microbatch's stages, each by itself, and the measured seconds a layer of whole steps."""
    token_ids = torch.randint(0, workload.model.vocab_size, (workload.batch,), device="cuda")
    alone = WeightSide(workload, decoder, [], mode=QueryFirst.LOCAL, transport=transport)
    alone.set_inputs(token_ids)
    weight_s = alone.time_alone() / workload.num_lanes
    alone.close()
    del alone
    release()
    side = WeightSide(workload, decoder, processes, mode=QueryFirst.LOCAL, transport=transport)
    side.link(shares_layers=True)
    side.set_inputs(token_ids)
    times, _ = side.run(STEPS)
    layer_s = statistics.median(times[WARM:]) / workload.num_layers
    stages = StageTimes(weight_s, statistics.mean(side.time_attention()))
    side.close()
    del side
    release()
    return stages, layer_s


def weight_exchange_s(
    workload: Workload,
    decoder: Decoder,
    processes: list[AttentionProcess],
    transport: NixlTransport,
    num_microbatches: int,
) -> float:
    """Measure what each microbatch's exchange costs a weight node that never waits, a layer."""
    cell = workload.with_(num_lanes=num_microbatches)
    stages, layer_s = measure_part(cell, decoder, processes, transport)
    return max(0.0, layer_s / num_microbatches - stages.weight_s)


def measure(
    workload: Workload,
    decoder: Decoder,
    processes: list[AttentionProcess],
    transport: NixlTransport,
    lanes: list[int],
    *,
    costs_s: float,
) -> dict[str, object]:
    """Measure the stages and the steps of one workload, and predict the latter.

    Args:
        workload: of one microbatch.
        decoder: the model.
        processes: the attention nodes.
        transport: the weight node's.
        lanes: numbers of microbatches, 1 among them.
        costs_s: as ``weight_exchange_s`` returns it.
    """
    stages: dict[int, StageTimes] = {}
    measured: dict[int, float] = {}
    for count in sorted(lanes):
        stages[count], measured[count] = measure_part(
            workload.with_(num_lanes=count), decoder, processes, transport
        )
    round_trip_s = measured[1] - stages[1].weight_s - stages[1].attention_s
    stages = {
        count: replace(times, exchange_s=round_trip_s, weight_exchange_s=costs_s)
        for count, times in stages.items()
    }
    layers = workload.num_layers
    predicted = {
        count: step_s(times, count, num_layers=layers, overhead_s=0.0) / layers
        for count, times in stages.items()
    }
    most = max(lanes)
    ratio, predicted_ratio = measured[1] / measured[most], predicted[1] / predicted[most]
    # Against the same microbatches one after the other, as the paper has it.
    at_this_size = most * (stages[most].weight_s + stages[most].attention_s) / measured[most]
    bound = gain(0.0, stages[most].attention_s, stages[most].weight_s)
    chosen = choose(stages).num_microbatches
    return {
        "cell": workload.name,
        "nodes": workload.num_nodes,
        "stages_us": {
            count: (round(times.weight_s * 1e6, 1), round(times.attention_s * 1e6, 1))
            for count, times in stages.items()
        },
        "exchange_us": (round(round_trip_s * 1e6, 1), round(costs_s * 1e6, 1)),
        "measured_us": {count: round(seconds * 1e6, 1) for count, seconds in measured.items()},
        "predicted_us": {count: round(seconds * 1e6, 1) for count, seconds in predicted.items()},
        "gain": round(ratio, 3),
        "predicted_gain": round(predicted_ratio, 3),
        "error": abs(predicted_ratio / ratio - 1),
        "gain_at_this_size": round(at_this_size, 3),
        "bound_at_this_size": round(bound, 3),
        "of_bound": round(at_this_size / bound, 3),
        "chosen": chosen,
        "chosen_over_one": round(measured[chosen] / measured[1], 3),
    }


if __name__ == "__main__":
    main()
