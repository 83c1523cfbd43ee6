"""Reading the folder of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.recording import REQUESTS, SUMMARY, Recording
from kernelflume.runtime.smallfile import read_small_file

if TYPE_CHECKING:
    from pathlib import Path

_MAX_SUMMARY_BYTES = 16 * 1024**2
_MAX_REQUESTS_BYTES = 64 * 1024**2
"""Of as many requests as a benchmark sends at most."""


def read_recording(folder: Path) -> Recording:
    """Read a recording.

    Raises:
        ConfigurationError: a file cannot be read, is cut off, or has a figure that cannot be; it is named.
    """
    texts = []
    for name, most in ((SUMMARY, _MAX_SUMMARY_BYTES), (REQUESTS, _MAX_REQUESTS_BYTES)):
        try:
            texts.append(read_small_file(folder / name, max_bytes=most))
        except ConfigurationError as error:
            raise ConfigurationError(f"{folder / name}: {error}") from error
    try:
        return Recording.from_files(*texts)
    except ConfigurationError as error:
        raise ConfigurationError(f"{folder}: {error}") from error
