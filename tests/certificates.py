"""Real certificates for tests, made by the `openssl` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost"


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A CA that signs certificates; its own certificate is ``ca``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self.ca = folder / f"{name}.pem"
        self._key = folder / f"{name}-key.pem"
        _openssl(
            *("req", "-x509", *_CURVE, "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(self._key), "-out", str(self.ca)),
        )

    def issue(self, name: str, names: str = _NAMES) -> Identity:
        """Return a certificate for servers and clients on this machine."""
        identity = Identity(self._folder / f"{name}.pem", self._folder / f"{name}-key.pem")
        _openssl(
            *("req", "-x509", *_CURVE, "-days", "2", "-subj", f"/CN={name}", "-addext", names),
            *("-addext", "basicConstraints=critical,CA:FALSE", "-CA", str(self.ca), "-CAkey", str(self._key)),
            *("-keyout", str(identity.key), "-out", str(identity.certificate)),
        )
        return identity


def encrypt_key(key: Path, target: Path) -> Path:
    """Write ``key`` with a password."""
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(target))
    return target


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
