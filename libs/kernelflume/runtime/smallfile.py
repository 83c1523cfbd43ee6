"""Small text files that a service reads while it runs, whatever an editor or a mistake left there."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 64 * 1024
"""Longest text that is taken. Settings with many comments have a tenth of that; parsing it takes a moment,
not so long that the reader's event loop would miss its leases."""


def read_small_file(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a small regular file.

    Raises:
        ConfigurationError: it cannot be read, is too long, no regular file, or not UTF-8. The message does
            not name the path.
    """
    try:
        # Opening a pipe that nobody writes to would else wait without end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigurationError("it is no regular file")
            content = os.read(descriptor, max_bytes + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(f"it cannot be read: {error.strerror}") from error
    if len(content) > max_bytes:
        raise ConfigurationError(f"it is longer than {max_bytes // 1024} KiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
