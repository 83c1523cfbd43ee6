"""Starts the router: ``python -m kernelflume.router``."""

from __future__ import annotations

import uvloop

from kernelflume.router.lifecycle import serve
from kernelflume.router.settings import RouterSettings
from kernelflume.runtime.service import run
from kernelflume.runtime.settings import load_or_exit


def main() -> None:
    """Parse the settings and serve until told to stop."""
    settings = load_or_exit(RouterSettings, program="kernelflume router")
    run("router", settings, lambda stop: serve(settings, stop), new_loop=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
