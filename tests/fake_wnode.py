"""A process that looks like a weight node to its host on Ray: it logs, and ends when told to, or as it likes.

Run as a program with the flags that a host passes; ``--say TEXT`` logs it, ``--fail CODE`` ends at once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading


def log(level: str, message: str) -> None:
    sys.stderr.write(json.dumps({"level": level, "message": message}) + "\n")
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--threads", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--say", default="up")
    parser.add_argument("--fail", type=int)
    options, _ = parser.parse_known_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    seed = os.environ.get("KERNELFLUME_WNODE_SEED")
    log("info", f"{options.say} pid={os.getpid()} at={options.address} threads={options.threads} seed={seed}")
    if options.fail is not None:
        log("error", "the model is no good")
        sys.exit(options.fail)
    stop.wait()
    log("info", "ended in order")


if __name__ == "__main__":
    main()
