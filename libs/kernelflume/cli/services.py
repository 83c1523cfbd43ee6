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
}
"""Services by the name of their module below ``kernelflume``, with a line of help."""


def become(service: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the service. It reads its own flags, environment and YAML file, --help too."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", f"kernelflume.{service}", *arguments])  # noqa: S606 - our own module
