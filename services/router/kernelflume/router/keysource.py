"""Where API keys come from, read again while the router runs: a key takes force, or loses it, in a moment."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from kernelflume.core.apikeys import KeyRing, load_keys, load_stored
from kernelflume.core.errors import ConfigurationError, KernelFlumeError, UnavailableError
from kernelflume.runtime.smallfile import read_small_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kernelflume.core.apikeys import ApiKey
    from kernelflume.store.base import ApiKeyStore

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Of a file of keys; some fifty thousand."""


class KeySource(Protocol):
    """Gives the keys that are in force."""

    async def read(self) -> list[ApiKey] | None:
        """Return the keys, or None when they are as they were.

        Raises:
            KernelFlumeError: they cannot be read.
        """
        ...


class FileKeys:
    """Keys in a file that ``kernelflume keys`` writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None

    async def read(self) -> list[ApiKey] | None:
        """Return the file's keys when it was written since."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[ApiKey] | None:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp == self._stamp:
                return None
            keys = load_keys(read_small_file(self._path, max_bytes=MAX_FILE_BYTES))
        except OSError as error:
            raise ConfigurationError(f"auth.keys-file: cannot read {self._path}: {error.strerror}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"auth.keys-file: {self._path}: {error}") from error
        self._stamp = stamp
        return keys


class StoreKeys:
    """Keys in the routing-table store, where every router of a cluster finds them."""

    def __init__(self, store: ApiKeyStore) -> None:
        self._store = store
        self._texts: Mapping[str, str] | None = None

    async def read(self) -> list[ApiKey] | None:
        """Return the store's keys when they have changed."""
        texts = await self._store.read_api_keys()
        if texts == self._texts:
            return None
        keys = load_stored(texts)
        self._texts = texts
        return keys


class Keys:
    """The keys in force. Used in one event loop; ``run`` keeps them fresh."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self._ring: KeyRing | None = None
        self._fault = ""

    def find(self, presented: str) -> ApiKey | None:
        """Return the key that a text is, or None.

        Raises:
            UnavailableError: no keys were read yet.
        """
        if self._ring is None:
            raise UnavailableError("the API keys cannot be read now")
        return self._ring.find(presented)

    async def load(self) -> None:
        """Read the keys for the first time; a store that is away is asked again later.

        Raises:
            ConfigurationError: they can never be read.
        """
        try:
            await self._refresh()
        except UnavailableError as error:
            self._note(error)

    async def run(self, *, interval_s: float) -> None:
        """Read again for ever; what cannot be read leaves the last keys in force."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._refresh()
            except KernelFlumeError as error:
                self._note(error)
            except Exception:
                logger.exception("reading API keys failed")

    async def _refresh(self) -> None:
        keys = await self._source.read()
        self._fault = ""
        if keys is not None:
            self._ring = KeyRing(keys)
            logger.info("API keys are in force", extra={"num_keys": len(keys)})

    def _note(self, error: KernelFlumeError) -> None:
        if str(error) != self._fault:
            self._fault = str(error)
            logger.warning("API keys cannot be read; the last ones stay in force: %s", error)
