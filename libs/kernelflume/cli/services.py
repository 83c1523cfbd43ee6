"""`kernelflume router|wnode|anode|scaler`: become that service, its arguments untouched."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICES = {
    "router": "Run the OpenAI gateway.",
    "wnode": "Run a weight node: the model, all but its attention.",
    "anode": "Run an attention node: keys, values, and attention over them.",
    "scaler": "Run the scaler: it adds attention nodes and drains them.",
    "sim": "Simulate what a workload would cost, by the live scaling policy.",
}
"""Services, and what else runs in a service's package, with a line of help."""

_MODULES = {"sim": "scaler.sim"}
"""Modules below ``kernelflume`` of those that are not named as theirs."""


def become(service: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the service. It reads its own flags, environment and YAML file, --help too."""
    sys.stdout.flush()
    module = f"kernelflume.{_MODULES.get(service, service)}"
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - our own module
