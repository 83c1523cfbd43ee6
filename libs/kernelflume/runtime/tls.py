"""Certificates of a service, and the token of the admin API: which files, and whether they can be used."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations at run time
from typing import Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from kernelflume.core.errors import ConfigurationError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """What the files of ``TlsSettings`` hold, in PEM."""

    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ca: bytes | None = None
    require_client_certificate: bool = False
    server_name: str = ""


class TlsSettings(BaseModel):
    """Security of gRPC. Unset is plaintext; with a certificate or a CA, calls to other services use TLS."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    certificate: Path | None = None
    """PEM file with this service's certificate and those between it and the CA; also shown to servers that
    ask for one."""
    key: Path | None = None
    """PEM file with the certificate's private key, not encrypted."""
    ca: Path | None = None
    """PEM file with the CAs that other services' certificates must come from; the system's by default."""
    require_client_certificate: bool = False
    """Refuse callers without a certificate from the CA (mutual TLS)."""
    server_name: str = ""
    """Name that servers' certificates must carry, where nodes are called by addresses that none carries."""

    @field_validator("certificate", "key", "ca")
    @classmethod
    def _check_file(cls, path: Path | None) -> Path | None:
        if path is not None:
            try:
                path.read_bytes()
            except OSError as error:
                raise ValueError(f"cannot read {path}: {error.strerror}") from error
        return path

    @field_validator("ca")
    @classmethod
    def _check_ca(cls, path: Path | None) -> Path | None:
        if path is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
            except ssl.SSLError as error:
                raise ValueError(f"{path} holds no certificates in PEM") from error
        return path

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.certificate is not None and self.key is None:
            raise ValueError("tls.certificate needs tls.key as well")
        if self.key is not None and self.certificate is None:
            raise ValueError("tls.key needs tls.certificate as well")
        if self.require_client_certificate and (self.certificate is None or self.ca is None):
            raise ValueError("tls.require-client-certificate needs tls.certificate and tls.ca as well")
        if self.server_name and not self.enabled:
            raise ValueError("tls.server-name needs tls.ca or tls.certificate as well")
        if self.certificate is not None and self.key is not None:
            _check_pair(self.certificate, self.key)
        return self

    @property
    def enabled(self) -> bool:
        """True when calls to other services use TLS."""
        return self.certificate is not None or self.ca is not None

    def flags(self) -> list[str]:
        """Return the command-line flags that give another service the same settings."""
        flags = [
            f"--tls.{name}={path}"
            for name, path in (("certificate", self.certificate), ("key", self.key), ("ca", self.ca))
            if path is not None
        ]
        if self.require_client_certificate:
            flags.append("--tls.require-client-certificate")
        if self.server_name:
            flags.append(f"--tls.server-name={self.server_name}")
        return flags

    def open(self) -> TlsFiles | None:
        """Read the files, and go on with them; None when nothing is set.

        Raises:
            ConfigurationError: a file is gone since the settings were parsed.
        """
        return TlsFiles(self) if self.enabled else None

    def read(self) -> TlsMaterial:
        """Read the files once.

        Raises:
            ConfigurationError: one cannot be read.
        """
        return TlsMaterial(
            certificate=_read("tls.certificate", self.certificate),
            key=_read("tls.key", self.key),
            ca=_read("tls.ca", self.ca),
            require_client_certificate=self.require_client_certificate,
            server_name=self.server_name,
        )


class TlsFiles:
    """The files of ``TlsSettings``, read again when they have changed. May be used by any thread.

    Files that are no good, or do not belong together yet because only one of them was replaced, change
    nothing: what was read last stays in force, and they are looked at again.
    """

    def __init__(self, settings: TlsSettings) -> None:
        """Read the files; see ``TlsSettings.open``."""
        self._settings = settings
        self._lock = threading.Lock()
        self._stamps = self._look_at_files()
        self._material = settings.read()
        self._fault = ""

    def look(self) -> TlsMaterial:
        """Return what the files hold, as of their last good state."""
        with self._lock:
            stamps = self._look_at_files()
            if stamps == self._stamps:
                return self._material
            try:
                # Its validators check each file, and that they belong together.
                self._material = TlsSettings(**self._settings.model_dump()).read()
            except (ValueError, ConfigurationError) as error:
                fault = "; ".join(str(error).splitlines())
                if fault != self._fault:
                    self._fault = fault
                    logger.warning("certificates have changed and are not used yet: %s", fault)
            else:
                self._stamps, self._fault = stamps, ""
                logger.info("certificates have changed and are in force for new connections")
            return self._material

    def _look_at_files(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, (self._settings.certificate, self._settings.key, self._settings.ca)))


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Return what tells that a file was written or replaced; None while it is away."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def read_token(setting: str, path: Path | None) -> str | None:
    """Read the file that holds one token; None without a path.

    Args:
        setting: what the path is called where it was given.
        path: the file; white space around the token does not count.

    Raises:
        ConfigurationError: it cannot be read, or does not hold exactly one token. The message never shows it.
    """
    raw = _read(setting, path)
    if raw is None:
        return None
    words = raw.split()
    if len(words) != 1:
        raise ConfigurationError(f"{setting}: {path} must hold one token, and holds {len(words)} words")
    [word] = words
    if not all(0x21 <= byte <= 0x7E for byte in word):
        raise ConfigurationError(f"{setting}: the token in {path} has bytes that are no printable ASCII")
    return word.decode("ascii")


def _read(setting: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{setting}: cannot read {path}: {error.strerror}") from error


def _check_pair(certificate: Path, key: Path) -> None:
    def no_password() -> str:
        # Without it OpenSSL would ask for the password on the terminal.
        raise ValueError(f"tls.key: {key} is encrypted; give a key without a password")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"tls.key: {key} does not belong to the certificate {certificate}") from error
        raise ValueError(
            f"tls.certificate {certificate} and tls.key {key} are no certificate and key in PEM"
        ) from error
