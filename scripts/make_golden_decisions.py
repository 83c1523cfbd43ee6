"""Write tests/golden/decisions.jsonl: what the scaling policy decides over made-up days of load.

    python scripts/make_golden_decisions.py

Run it after a wanted change of the policy, and read the difference: it is what operators will notice.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.golden.decisions import PATH, golden_lines  # noqa: E402 - needs the path

if __name__ == "__main__":
    lines = golden_lines()
    PATH.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    sys.stdout.write(f"{len(lines)} decisions in {PATH.relative_to(ROOT)}\n")
