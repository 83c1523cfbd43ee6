"""The command line against inputs, outputs and scalers that are not as they should be: one clear line."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kernelflume.cli import admin, main
from kernelflume.cli.policy import read_text
from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.smallfile import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY = [sys.executable, "-m", "kernelflume.cli.entry"]
STDIN = Path("-")


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A server that is connected to and says nothing, as a frozen one does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_an_output_that_is_full_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*ENTRY, "version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stderr) == (1, "kernelflume: No space left on device\n")


def test_the_command_that_is_installed_runs() -> None:
    done = subprocess.run([*ENTRY, "--help"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("Usage: ")


@pytest.mark.parametrize("command", [["status"], ["top", "--once"], ["policy", "show"]])
def test_a_scaler_that_hangs_is_said_to(
    command: list[str], silent_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("main", "top", "policy"):
        monkeypatch.setattr(f"kernelflume.cli.{module}.CALL_TIMEOUT_S", 0.5)
    result = CliRunner().invoke(main.app, [*command, "--scaler", silent_address])
    assert result.exit_code == 1
    assert f"the scaler at {silent_address} did not answer in time" in result.output
    assert admin.CALL_TIMEOUT_S > 0.5


@pytest.mark.parametrize("address", ["", "here", "here:", ":80", "here:0", "here:99999", "http://here:80"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    result = CliRunner().invoke(main.app, ["status", "--scaler", address])
    assert result.exit_code == 2
    assert "is not of the form host:port" in result.output


def test_a_policy_is_read_from_a_file_a_pipe_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_bytes(b"\xef\xbb\xbfgamma: 0.5")
    assert read_text(tmp_path / "policy.yaml") == "gamma: 0.5"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"gamma: 0.6")))
    assert read_text(STDIN) == "gamma: 0.6"


@pytest.mark.parametrize(
    ("content", "fault"), [(b"\xff\xfe", "not UTF-8"), (b"#" * (MAX_BYTES + 1), "that is no policy")]
)
def test_what_cannot_be_a_policy_is_not_sent(
    content: bytes, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for file in (tmp_path / "policy.yaml", STDIN):
        with pytest.raises(ConfigurationError, match=fault):
            read_text(file)


def test_a_closed_standard_input_is_a_clear_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigurationError, match="standard input: it is closed"):
        read_text(STDIN)
