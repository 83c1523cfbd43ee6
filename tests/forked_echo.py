"""A fork server for tests, with nothing to load: its processes tell of themselves and await their end."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from kernelflume.runtime.forkserver import ForkServer


def run(arguments: list[str], lifeline: int) -> None:
    match arguments:
        case ["end", code]:
            raise SystemExit(int(code))
        case ["say", text]:
            raise SystemExit(text)
        case ["crash"]:
            raise ValueError("broken")
        case ["live"]:
            descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
            sys.stdout.write(json.dumps({"parent": os.getppid(), "descriptors": descriptors}) + "\n")
            sys.stdout.flush()
            assert not os.read(lifeline, 1)
            sys.stdout.write("the owner is gone\n")


def main(mode: str, descriptor: int) -> None:
    match mode:
        case "broken":
            raise SystemExit("no such library")
        case "threads":
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        case "threads-on-signal":
            late = threading.Thread(target=time.sleep, args=(600,), daemon=True)
            signal.signal(signal.SIGUSR1, lambda *_: late.start())
    ForkServer(socket.socket(fileno=descriptor), run).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
