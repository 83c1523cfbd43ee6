"""The command line's own answers: help, bad flags, exit codes."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kernelflume.cli import main, services
from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.readiness import attention_fault
from kernelflume.cli.supervisor import StackInterruptedError
from kernelflume.core.errors import ConfigurationError, KernelFlumeError, UnavailableError
from kernelflume.rpc.v1 import scaler_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main.app, arguments)
    return result.exit_code, result.output


def test_the_version_is_the_installed_one() -> None:
    assert run("version") == (0, f"{version('kernelflume')}\n")


@pytest.mark.parametrize(
    "command", ["serve", "status", "scale", "drain", "top", "policy", "geometry", "version"]
)
def test_every_command_has_help(command: str) -> None:
    code, text = run(command, "--help")
    assert code == 0
    assert text.startswith("Usage: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "Missing argument"),
        (["serve", "m", "--attention-nodes", "0"], "Invalid value for '--attention-nodes'"),
        (["serve", "m", "--port", "70000"], "Invalid value for '--port'"),
        (["serve", "m", "--dtype", "int8"], "'int8' is not one of"),
        (["serve", "m", "--weight-nodes", "0"], "Invalid value for '--weight-nodes'"),
        (["serve", "m", "--weight-node-roles", "both,half"], "'half' is none of both, prefill, decode"),
        (["serve", "m", "--placement-policy", "best"], "'best' is not one of"),
        (["serve", "m", "--device", "cpu,cuda"], "cannot share attention nodes"),
        (["serve", "m", "--attention-node-memory", "1XB"], "'1XB' is no size"),
        (["serve", "m", "--nodes", "1"], "No such option"),
        (["scale"], "Missing option '--attention-nodes'"),
        (["scale", "--attention-nodes", "-1"], "Invalid value for '--attention-nodes'"),
        (["scale", "--attention-nodes", str(10**20)], "Invalid value for '--attention-nodes'"),
        (["scale", "--attention-nodes", "1", "--operation-id", "\udcff"], "'\\udcff' is not UTF-8"),
        (["status", "--scaler", "\udcff"], "'\\udcff' is not UTF-8"),
        (["serve", "m", "--served-model-name", "\udcff"], "'\\udcff' is not UTF-8"),
        (["drain"], "Missing argument 'NODE'"),
        (["drain", "\udcff"], "'\\udcff' is not UTF-8"),
        (["drain", "a-1", "--deadline", "-1"], "Invalid value for '--deadline'"),
        (["top", "--interval", "0.05"], "Invalid value for '--interval'"),
        (["policy", "set"], "Missing argument 'FILE'"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_a_bad_flag_is_refused_with_code_2(arguments: list[str], message: str) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert message in re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("service", sorted(services.SERVICES))
def test_a_service_gets_its_arguments_untouched(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, Sequence[str]]] = []
    monkeypatch.setattr(services, "become", lambda name, arguments: became.append((name, list(arguments))))
    arguments = ["--help", "-h", "--config", "file.yaml", "--flag=1", "rest"]
    code, _ = run(service, *arguments)
    assert code == 0
    assert became == [(service, arguments)]


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigurationError("a"), 2), (UnavailableError("b"), 1), (StackInterruptedError("c"), 130)],
)
def test_errors_become_one_line_and_a_code(
    error: KernelFlumeError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, errors_as_exit():
        raise error
    assert caught.value.code == code
    assert capsys.readouterr().err == f"kernelflume: {error}\n"


def test_readiness_counts_active_nodes_alone() -> None:
    states = ["active", "prewarming", "active"]
    topology = scaler_pb2.Topology(
        attention_nodes=[scaler_pb2.AttentionNodeStatus(state=state) for state in states],
        operation=scaler_pb2.Operation(phase="prewarming"),
    )
    assert attention_fault(topology, 2) is None
    assert attention_fault(topology, 3) == "2 of 3 attention nodes active, prewarming"


def test_a_failed_operation_is_the_end_of_the_wait() -> None:
    topology = scaler_pb2.Topology(operation=scaler_pb2.Operation(result="failed", reason="no memory"))
    with pytest.raises(UnavailableError, match="no memory"):
        attention_fault(topology, 1)
