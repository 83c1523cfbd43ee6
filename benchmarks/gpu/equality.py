"""Logits of the disaggregated decode against one GPU alone, with the same keys and values in the pool.

python -m benchmarks.gpu.equality
"""

from __future__ import annotations

import torch
from benchmarks.gpu.grid import release
from benchmarks.gpu.reference import Reference
from benchmarks.gpu.weight_side import AttentionProcess, WeightSide, make_decoder
from benchmarks.gpu.workload import Workload

from kernelflume.transport.nixl import NixlTransport
from kernelflume.wnode.gpu.device_stage import QueryFirst


def main() -> None:
    """Print the largest difference of each mode."""
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    transport = NixlTransport("w0#1", error_handling="peer", memory="VRAM")
    process = AttentionProcess(0, torch.cuda.device_count() - 1)
    try:
        for batch, context in ((5, 1000), (32, 2048)):
            workload = Workload(
                num_query_heads=32, num_kv_heads=8, num_layers=4, batch=batch, context=context
            )
            decoder = make_decoder(workload)
            token_ids = torch.randint(0, 32_000, (batch,), device="cuda")
            reference = Reference(workload, decoder, shares_layers=False)
            reference.set_inputs(token_ids)
            _, expected = reference.run(6, keep_logits=True)
            for mode in QueryFirst:
                for lanes in (1, 2):
                    side = WeightSide(
                        workload.with_(num_lanes=lanes), decoder, [process], mode=mode, transport=transport
                    )
                    side.link(shares_layers=False)
                    side.set_inputs(token_ids)
                    _, logits = side.run(6, keep_logits=True)
                    errors = [
                        ((mine - theirs).norm() / theirs.norm()).item()
                        for mine, theirs in zip(logits, expected, strict=True)
                    ]
                    print(workload.name, mode, f"M={lanes}", "captures", side.graphs.num_captures,
                          "relative errors", [f"{error:.2e}" for error in errors], flush=True)  # fmt: skip
                    side.close()
                    del side
                    release()
            del decoder, reference
            release()
    finally:
        process.stop()


if __name__ == "__main__":
    main()
