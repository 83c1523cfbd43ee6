"""Attention of one layer on an attention node, as the share of the copy bandwidth that it reads pages at.

python -m benchmarks.gpu.attention --out attention.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import torch
from benchmarks.gpu.attention_side import fill_pages, make_pages
from benchmarks.gpu.device import copy_bandwidth
from benchmarks.gpu.workload import Workload

from kernelflume.anode.gpu.decode import PagedDecode
from kernelflume.anode.gpu.device_kernels import allocate_workspace
from kernelflume.anode.gpu.page_table import PageTable
from kernelflume.core.geometry import kv_dtype_of

CELLS = ((32, 16_384), (32, 32_768), (8, 32_768), (128, 4_096), (32, 2_048), (1, 131_072))
"""Rows and tokens of each."""
LAYERS, REPEATS = 8, 15


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", default="32:8,32:32")
    parser.add_argument("--kv-dtypes", default="bfloat16", help="some of bfloat16, fp8")
    parser.add_argument("--tensor-cores", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--page-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    copied = copy_bandwidth(torch.device("cuda", 0))
    print(f"{torch.cuda.get_device_name(0)}, device copy {copied / 1e12:.2f} TB/s")
    rows = []
    for heads in options.heads.split(","):
        queries, keys = map(int, heads.split(":"))
        for asked in options.kv_dtypes.split(","):
            kv_dtype = kv_dtype_of(asked, "bfloat16")
            for batch, context in CELLS:
                workload = Workload(
                    num_query_heads=queries,
                    num_kv_heads=keys,
                    num_layers=LAYERS,
                    batch=batch,
                    context=context,
                    page_tokens=options.page_tokens,
                    kv_dtype=kv_dtype,
                )
                seconds = measure(workload, {"yes": True, "no": False}.get(options.tensor_cores))
                read = batch * context * workload.geometry.kv_row_bytes
                rows.append(
                    {
                        "cell": f"{workload.name} {kv_dtype}",
                        "us": round(seconds * 1e6, 1),
                        "TB/s": round(read / seconds / 1e12, 2),
                        "of copy": round(read / seconds / copied, 3),
                    }
                )
                print(rows[-1], flush=True)
    if options.out:
        options.out.write_text(json.dumps({"copy": copied, "rows": rows}))


def measure(workload: Workload, tensor_cores: bool | None) -> float:
    """Return the seconds of a layer, from a graph of all; their pages are the same, beyond the L2 cache."""
    device = torch.device("cuda", 0)
    size, batch = workload.page_tokens, workload.batch
    each = -(-workload.context // size)
    pages = make_pages(workload, batch * each, device, shares_layers=True)
    fill_pages(pages, 5)
    geometry = workload.geometry
    decode = PagedDecode(
        pages,
        num_rows=batch,
        workspace=allocate_workspace(device, geometry, batch),
        max_pages=pages.num_pages,
        tensor_cores=tensor_cores,
    )
    queries = torch.randn(
        batch, geometry.num_query_heads, geometry.head_dim, device=device, dtype=torch.bfloat16
    )
    out, lse = torch.empty_like(queries), torch.empty(batch, geometry.num_query_heads, device=device)
    # Pages of a sequence scattered, as they are after a while of serving.
    order = np.random.default_rng(3).permutation(pages.num_pages).astype(np.int32)
    last = np.full(batch, workload.context - (each - 1) * size, np.int32)
    decode.plan(PageTable((np.arange(batch + 1) * each).astype(np.int32), order, last))
    decode.run(0, queries, out, lse)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(workload.num_layers):
            decode.run(layer, queries, out, lse)
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e-3 / workload.num_layers)
    return statistics.median(times[3:])


if __name__ == "__main__":
    main()
