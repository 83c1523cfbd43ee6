"""HTTPS: one TLS context whose certificate is replaced while connections go on."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kernelflume.runtime.tls import TlsFiles, TlsSettings

logger = logging.getLogger(__name__)


class HttpTls:
    """The server's side of HTTPS. New connections use what the files hold now."""

    def __init__(self, settings: TlsSettings) -> None:
        """Read the files.

        Raises:
            ConfigurationError: there is no certificate, or it cannot be used.
        """
        files = settings.open()
        if files is None or settings.certificate is None:
            raise ConfigurationError("http-tls.ca needs http-tls.certificate and http-tls.key as well")
        self._settings = settings
        self._files: TlsFiles = files
        self._material = files.look()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """For the server; TLS 1.2 and newer."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        if settings.ca is not None:
            self.context.load_verify_locations(cafile=settings.ca)
            required = settings.require_client_certificate
            self.context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        self._load()

    async def run(self, *, interval_s: float) -> None:
        """Look at the files for ever, and use what is new and good."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await asyncio.to_thread(self.refresh)
            except Exception:
                logger.exception("looking at certificates failed")

    def refresh(self) -> None:
        """Look at the files once. Files that are no good change nothing, which is logged."""
        material = self._files.look()
        if material is self._material:
            return
        try:
            self._load()
        except (ConfigurationError, OSError) as error:  # they changed again since they were looked at
            logger.warning("certificates are not used yet: %s", error)
        else:
            self._material = material

    def _load(self) -> None:
        if self._settings.certificate is None:
            raise ConfigurationError("http-tls.certificate is not set")
        try:
            self.context.load_cert_chain(self._settings.certificate, self._settings.key)
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"http-tls: {self._settings.certificate} cannot be used: {error}"
            ) from error
