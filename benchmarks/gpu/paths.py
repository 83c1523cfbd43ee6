"""Logits of the host path against those of the device path, step by step, with the same keys and values.

python -m benchmarks.gpu.paths --nodes 1,2 --lanes 1,2

Both run the same attention and the same merge, so what differs is at most rounding. The first step that
differs by more says that something arrived too late or in the wrong place; later ones may have other inputs.
"""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING

import torch
from benchmarks.gpu.grid import release
from benchmarks.gpu.host_weight_side import side_of
from benchmarks.gpu.weight_side import AttentionProcess, make_decoder
from benchmarks.gpu.workload import Workload

from kernelflume.core.regions import LanePath
from kernelflume.transport.nixl import NixlTransport
from kernelflume.wnode.gpu.device_stage import QueryFirst

if TYPE_CHECKING:
    from kernelflume.wnode.model.decoder import Decoder

STEPS = 8
BOUND = 2e-2
"""Relative difference of logits that bfloat16 explains."""


def main() -> None:
    """Print the largest difference of each mode; fail where it is above the bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", default="5:1024,32:2048", help="batch:context, separated by commas")
    parser.add_argument("--modes", default="local,off,paper")
    parser.add_argument("--nodes", default="1,2")
    parser.add_argument("--lanes", default="1")
    options = parser.parse_args()
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    transport = NixlTransport("w0#1", error_handling="peer", memory="VRAM")
    counts = [int(count) for count in options.nodes.split(",")]
    last = torch.cuda.device_count() - 1
    processes = [AttentionProcess(index, last) for index in range(max(counts))]
    worst = 0.0
    try:
        for cell in options.cells.split(","):
            batch, context = map(int, cell.split(":"))
            base = Workload(num_query_heads=32, num_kv_heads=8, num_layers=4, batch=batch, context=context)
            decoder = make_decoder(base)
            for num_nodes, lanes, mode in itertools.product(
                counts, map(int, options.lanes.split(",")), options.modes.split(",")
            ):
                workload = base.with_(num_nodes=num_nodes, num_lanes=lanes)
                logits = {
                    path: run(
                        workload,
                        decoder,
                        processes[:num_nodes],
                        transport,
                        path=path,
                        mode=QueryFirst(mode),
                    )
                    for path in LanePath
                }
                errors = [
                    ((mine - theirs).norm() / theirs.norm()).item()
                    for mine, theirs in zip(logits[LanePath.HOST], logits[LanePath.DEVICE], strict=True)
                ]
                worst = max(worst, *errors)
                print(workload.name, f"nodes={num_nodes} M={lanes} {mode}: relative differences",
                      [f"{error:.1e}" for error in errors], flush=True)  # fmt: skip
            del decoder
            release()
    finally:
        for process in processes:
            process.stop()
    if worst > BOUND:
        raise SystemExit(f"the paths differ by {worst:.2e}, more than {BOUND:g}")


def run(
    workload: Workload,
    decoder: Decoder,
    processes: list[AttentionProcess],
    transport: NixlTransport,
    *,
    path: LanePath,
    mode: QueryFirst,
) -> list[torch.Tensor]:
    """Return the logits [batch, vocab] of each step on one path."""
    side = side_of(path)(workload, decoder, processes, mode=mode, transport=transport)
    side.link(shares_layers=False)
    generator = torch.Generator().manual_seed(3)
    side.set_inputs(torch.randint(0, 32_000, (workload.batch,), generator=generator).cuda())
    _, logits = side.run(STEPS, keep_logits=True)
    captures = side.graphs.num_captures
    side.close()
    del side
    release()
    if captures != 1:
        raise SystemExit(f"{captures} graphs were captured for one row count")
    return logits


if __name__ == "__main__":
    main()
