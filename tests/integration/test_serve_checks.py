"""What `kernelflume serve` checks before it starts anything."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kernelflume.cli.main import app
from kernelflume.cli.prepare import checked_port
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refused(tmp_path: Path, *arguments: str) -> str:
    """Run serve, which must end with code 2, one line, and no process started; return the line."""
    logs = tmp_path / "logs"
    ports = [] if "--scaler-port" in arguments else ["--scaler-port", "0"]
    ports += [] if "--port" in arguments else ["--port", "0"]
    result = CliRunner().invoke(app, ["serve", "--log-dir", str(logs), *ports, *arguments])
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1]
    assert line.startswith("kernelflume: ")
    assert not logs.is_dir() or not list(logs.iterdir())
    return line


@pytest.mark.parametrize("flag", ["--port", "--scaler-port"])
def test_a_port_that_is_taken(flag: str, taken_port: int, tmp_path: Path) -> None:
    line = refused(tmp_path, "smollm2", flag, str(taken_port))
    assert f"{flag}: cannot listen on 127.0.0.1:{taken_port}: Address already in use" in line


def test_one_port_for_two_parts(tmp_path: Path) -> None:
    port = str(free_port())
    assert f"--scaler-port: {port} is the port of --port already" in refused(
        tmp_path, "smollm2", "--port", port, "--scaler-port", port
    )


def test_a_host_that_is_not_this_machine_s(tmp_path: Path) -> None:
    assert "--port: cannot listen on 203.0.113.1:" in refused(tmp_path, "smollm2", "--host", "203.0.113.1")


def test_a_host_that_has_no_address(tmp_path: Path) -> None:
    assert "--port: cannot listen on no host:" in refused(tmp_path, "smollm2", "--host", "no host")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    assert "model: " in refused(tmp_path, str(tmp_path / "absent"))


@pytest.mark.parametrize("flag", ["--scaling-policy", "--profile"])
def test_a_scaling_file_that_is_not_there(flag: str, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    assert refused(tmp_path, "smollm2", flag, absent) == (
        f"kernelflume: {flag}: cannot read {absent}: No such file or directory"
    )


def test_a_policy_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("minimum_nodes: none")
    assert f"--scaling-policy: {file}: minimum_nodes: must be a number from 1, not 'none'" in refused(
        tmp_path, "smollm2", "--scaling-policy", str(file)
    )


def test_memory_for_the_policy_s_minimum(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("minimum_nodes: 3")
    arguments = ("smollm2", "--scaling-policy", str(file), "--attention-node-memory", "100TiB")
    assert "3 attention nodes of 100.0 TiB need 300.0 TiB" in refused(tmp_path, *arguments)
    line = refused(tmp_path, *arguments, "--attention-nodes", "1")
    assert "1 attention nodes of 100.0 TiB need 100.0 TiB" in line


def test_memory_and_provider_of_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("provider: {node_memory: 100TiB, standby_nodes: 1}")
    line = refused(tmp_path, "smollm2", "--scaling-policy", str(file), "--attention-node-memory", "1MiB")
    assert "2 attention nodes of 100.0 TiB need 200.0 TiB" in line
    file.write_text("provider: {kind: kubernetes}")
    line = refused(tmp_path, "smollm2", "--scaling-policy", str(file))
    assert f"--scaling-policy: {file}: provider.kind: a stack starts with process or ray" in line


def test_memory_for_the_policy_s_maximum_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("maximum_nodes: 1000000")
    arguments = ("serve", str(tmp_path / "absent"), "--scaling-policy", str(file), "--port", "0")
    result = CliRunner().invoke(app, [*arguments, "--scaler-port", "0", "--log-dir", str(tmp_path / "logs")])
    warning, *_ = result.stderr.splitlines()
    assert warning.startswith(
        f"kernelflume: warning: --scaling-policy: {file}: maximum_nodes: 1000000 attent"
    )
    assert "model: " in result.stderr.splitlines()[-1]


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    line = refused(tmp_path, "smollm2", "--attention-nodes", "3", "--attention-node-memory", "100TiB")
    assert "--attention-node-memory: 3 attention nodes of 100.0 TiB need 300.0 TiB" in line


def test_a_store_that_does_not_answer(tmp_path: Path) -> None:
    line = refused(tmp_path, "smollm2", "--redis-url", f"redis://127.0.0.1:{free_port()}/0")
    assert "--redis-url: " in line


def test_a_store_url_that_is_none(tmp_path: Path) -> None:
    assert "redis-url" in refused(tmp_path, "smollm2", "--redis-url", "127.0.0.1:6379")


def test_a_log_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(
        app,
        ["serve", "smollm2", "--port", "0", "--scaler-port", "0", "--log-dir", str(tmp_path / "file" / "x")],
    )
    assert result.exit_code == 2
    assert "--log-dir: cannot make" in result.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "needs --provider ray: attention nodes on this machine's loopback cannot be reached"),
        (["--provider", "ray", "--ray-address", "local"], "needs a cluster that is there"),
    ],
)
def test_a_weight_node_on_ray_that_could_not_work(flags: list[str], reason: str, tmp_path: Path) -> None:
    line = refused(tmp_path, "smollm2", "--weight-node-provider", "ray", *flags)
    assert f"--weight-node-provider: ray {reason}" in line


@pytest.mark.parametrize("text", ["weights", "[1]", '{"weights": 0}', '{"weights": true}', '{"CPU": "1"}'])
def test_resources_that_are_none(text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "smollm2", "--weight-node-resources", text])
    assert result.exit_code == 2
    assert "--weight-node-resources" in result.stderr
    assert "is no JSON" in result.stderr


def test_port_0_takes_a_free_one() -> None:
    assert checked_port("--port", "127.0.0.1", 0) != 0
