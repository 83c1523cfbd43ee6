"""Real certificates for tests, made by the `openssl` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

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


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the certificates of this session."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="session")
def authority(folder: Path) -> Authority:
    """Return a CA."""
    return Authority(folder)


@pytest.fixture(scope="session")
def node(authority: Authority) -> Identity:
    """Return a certificate of that CA."""
    return authority.issue("node")


def encrypt_key(key: Path, target: Path) -> Path:
    """Write ``key`` with a password."""
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(target))
    return target


def stamped(source: Path, target: Path) -> Path:
    """Replace ``target`` with a copy of ``source``, as whoever renews certificates does."""
    copy = target.with_suffix(".new")
    copy.write_bytes(source.read_bytes())
    return copy.replace(target)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
