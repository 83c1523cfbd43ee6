"""Start an attention node: ``python -m kernelflume.anode`` or ``kernelflume anode``."""

from __future__ import annotations

import sys

from kernelflume.anode.launch import spawn_worker


def main() -> None:
    """Start the worker, and load and run the shell beside it: each takes its time to import."""
    worker = spawn_worker()
    from kernelflume.anode.shell import run_shell  # noqa: PLC0415 - imported while the worker imports torch

    run_shell(sys.argv[1:], worker)


if __name__ == "__main__":
    main()
