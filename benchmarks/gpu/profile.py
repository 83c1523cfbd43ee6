"""Which kernels a step consists of, and how long each runs on the weight node.

python -m benchmarks.gpu.profile --heads 32:8 --batch 32 --context 16384
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch
from benchmarks.gpu.grid import release
from benchmarks.gpu.reference import Reference
from benchmarks.gpu.weight_side import AttentionProcess, WeightSide, make_decoder
from benchmarks.gpu.workload import Workload
from torch.profiler import ProfilerActivity, profile

from kernelflume.transport.nixl import NixlTransport
from kernelflume.wnode.gpu.device_stage import QueryFirst

STEPS = 6


def main() -> None:
    """Print microseconds a layer of every kernel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", default="32:8")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--modes", default="local")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--timeline", type=int, default=0, help="print so many kernels of mid-step")
    options = parser.parse_args()
    torch.cuda.set_device(0)
    queries, keys = map(int, options.heads.split(":"))
    workload = Workload(num_query_heads=queries, num_kv_heads=keys, num_layers=8, batch=options.batch,
                        context=options.context, num_lanes=options.lanes)  # fmt: skip
    decoder = make_decoder(workload)
    token_ids = torch.randint(0, 32_000, (options.batch,), device="cuda")
    transport = NixlTransport("w0#1", error_handling="peer", memory="VRAM")
    process = AttentionProcess(0, torch.cuda.device_count() - 1)
    try:
        if options.lanes == 1:
            reference = Reference(workload, decoder, shares_layers=True)
            reference.set_inputs(token_ids)
            show("one GPU", reference, workload)
            del reference
        else:
            without = WeightSide(workload, decoder, [], mode=QueryFirst.LOCAL, transport=transport)
            without.time_alone()
            show("weight node without attention", without, workload)
            without.close()
            del without
        release()
        for mode in options.modes.split(","):
            side = WeightSide(workload, decoder, [process], mode=QueryFirst(mode), transport=transport)
            side.link(shares_layers=True)
            side.set_inputs(token_ids)
            show(mode, side, workload, timeline=options.timeline)
            side.close()
            del side
            release()
    finally:
        process.stop()


def show(name: str, side: Reference | WeightSide, workload: Workload, timeline: int = 0) -> None:
    """Run steps under the profiler."""
    side.run(STEPS)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        side.run(STEPS)
    totals: dict[str, list[float]] = defaultdict(list)
    spans = []
    for event in recorded.events():
        if event.device_type.name == "CUDA":
            totals[event.name[:80]].append(event.time_range.elapsed_us())
            spans.append((event.time_range.start, event.time_range.end, event.name[:60]))
    spans.sort()
    share = workload.num_layers * STEPS
    print(f"== {name}: wall {(spans[-1][1] - spans[0][0]) / share:.1f} us a layer")
    for kernel, times in sorted(totals.items(), key=lambda item: -sum(item[1])):
        mean_us, count = sum(times) / len(times), len(times) / share
        print(f"{mean_us * count:8.2f} us a layer, {count:5.2f} calls of {mean_us:7.2f}  {kernel}")
    middle = len(spans) // 2
    for start, end, kernel in spans[middle : middle + timeline]:
        print(f"{start - spans[middle][0]:9.1f} +{end - start:7.1f}  {kernel}")


if __name__ == "__main__":
    main()
