"""Simulates what the paper claims, and writes docs/reproduction.md (`python -m benchmarks.reproduction`)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.reproduction.claims import load_claims
from benchmarks.reproduction.figures import RESULTS
from benchmarks.reproduction.grid import as_text, run_grid
from benchmarks.reproduction.page import render
from benchmarks.reproduction.verdict import judge

from kernelflume.core.errors import KernelFlumeError

if TYPE_CHECKING:
    from benchmarks.reproduction.claims import Part

GRIDS: dict[Part, Path] = {
    "claims": RESULTS / "reproduction.json",
    "sweeps": RESULTS / "reproduction-sweeps.json",
}
PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"


def main() -> int:
    """Write the rows and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render", action="store_true", help="simulate nothing, use the stored rows")
    parser.add_argument("--part", choices=GRIDS, default="claims", help="what is simulated anew")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    try:
        claims = load_claims()
        if not arguments.render:
            began_s = time.monotonic()
            rows = as_text(run_grid(claims, arguments.workers, part=arguments.part))
            GRIDS[arguments.part].write_text(rows, encoding="utf-8")
            print(f"simulated in {time.monotonic() - began_s:.0f} s")
        grid = stored_grid()
        judged = judge(claims, grid)
        PAGE.write_text(render(claims, judged, grid), encoding="utf-8")
    except KernelFlumeError as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 1
    print(f"{len(judged)} claims in {PAGE}")
    return 0


def stored_grid() -> dict[str, Any]:
    """Return the stored rows of both parts."""
    grid: dict[str, Any] = {}
    for path in GRIDS.values():
        grid |= json.loads(path.read_text(encoding="utf-8"))
    return grid


if __name__ == "__main__":
    sys.exit(main())
