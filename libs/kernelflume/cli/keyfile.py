"""A file of API keys as the command line edits it: one at a time, never half written, for its owner alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from typing import TYPE_CHECKING

from kernelflume.core.apikeys import dump_keys, load_keys
from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.smallfile import read_small_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kernelflume.core.apikeys import ApiKey

_MAX_BYTES = 16 * 1024 * 1024
_OWNER_ONLY = 0o600


class KeyFile:
    """One file, held against other commands until ``close``."""

    def __init__(self, path: Path) -> None:
        """Wait for other commands that edit files in the same folder.

        Raises:
            ConfigurationError: there is no such folder.
        """
        self._path = path
        try:
            self._folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigurationError(f"--file {path}: {error.strerror}") from error
        # On the folder, because the file itself is replaced at each edit.
        fcntl.flock(self._folder, fcntl.LOCK_EX)

    def read(self) -> list[ApiKey]:
        """Return the keys; none when there is no file yet.

        Raises:
            ConfigurationError: it is no file of keys.
        """
        if not self._path.exists():
            return []
        try:
            return load_keys(read_small_file(self._path, max_bytes=_MAX_BYTES))
        except ConfigurationError as error:
            raise ConfigurationError(f"--file {self._path}: {error}") from error

    def write(self, keys: Iterable[ApiKey]) -> None:
        """Replace the file's content; whoever may read the file stays the same.

        Raises:
            ConfigurationError: it cannot be written.
        """
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                opened.write(dump_keys(keys))
                if self._path.exists():
                    before = self._path.stat()
                    os.fchmod(opened.fileno(), stat.S_IMODE(before.st_mode))
                    with contextlib.suppress(PermissionError):
                        os.fchown(opened.fileno(), before.st_uid, before.st_gid)
                opened.flush()
                os.fsync(opened.fileno())
            temporary.replace(self._path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise ConfigurationError(f"--file {self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Let other commands go on."""
        os.close(self._folder)
