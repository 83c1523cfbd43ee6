"""`kernelflume status` and `kernelflume scale` against a scaler over real gRPC."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from typer.testing import CliRunner

from kernelflume.cli.main import app
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


class RecordingScaler(scaler_pb2_grpc.ScalerAdminServicer):
    """Answers with prepared operations and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[scaler_pb2.SetTargetRequest] = []
        self.states = [
            scaler_pb2.Operation(phase="launching"),
            scaler_pb2.Operation(phase="prewarming"),
            scaler_pb2.Operation(
                phase="done",
                result="succeeded",
                initial_attention_nodes=1,
                target_attention_nodes=3,
                history=[scaler_pb2.OperationPhase(phase="prewarming", seconds=1.5)],
            ),
        ]
        self.hangs = False
        self.refusal: tuple[grpc.StatusCode, str] | None = None

    def GetTopology(self, request: Any, context: Any) -> scaler_pb2.Topology:  # noqa: N802 - gRPC's names
        return scaler_pb2.Topology(epoch=5, target_attention_nodes=1)

    def SetTarget(self, request: scaler_pb2.SetTargetRequest, context: Any) -> scaler_pb2.Operation:  # noqa: N802
        if self.refusal:
            context.abort(*self.refusal)
        self.requests.append(request)
        return self.states[0]

    def WatchOperation(self, request: Any, context: Any) -> Iterator[scaler_pb2.Operation]:  # noqa: N802
        for state in self.states:
            yield state
            if self.hangs:
                while context.is_active():
                    context.time_remaining()


@pytest.fixture
def scaler() -> Iterator[RecordingScaler]:
    servicer = RecordingScaler()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        scaler_pb2_grpc.add_ScalerAdminServicer_to_server(servicer, server)
        servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"  # type: ignore[attr-defined]
        server.start()
        yield servicer
        server.stop(None).wait()


def run(scaler: Any, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*arguments, "--scaler", scaler.address])
    return result.exit_code, result.stdout, result.stderr


def test_status_as_json(scaler: RecordingScaler) -> None:
    code, out, _ = run(scaler, "status", "--json")
    assert code == 0
    assert json.loads(out)["epoch"] == 5


def test_status_as_tables(scaler: RecordingScaler) -> None:
    code, out, _ = run(scaler, "status")
    assert code == 0
    assert out.startswith("epoch 5: 0 of 1 attention nodes active")


def test_the_scaler_s_address_may_come_from_the_environment(scaler: Any) -> None:
    result = CliRunner().invoke(app, ["status"], env={"KERNELFLUME_SCALER": scaler.address})
    assert result.exit_code == 0


def test_scale_returns_at_once_unless_told_to_wait(scaler: RecordingScaler) -> None:
    code, out, _ = run(scaler, "scale", "--attention-nodes", "3", "--operation-id", "op", "--deadline", "9")
    assert (code, out) == (0, "operation op is launching; `kernelflume status` shows how it goes on\n")
    [request] = scaler.requests
    assert (request.operation_id, request.attention_nodes, request.deadline_seconds) == ("op", 3, 9.0)


def test_each_scale_has_an_operation_id_of_its_own(scaler: RecordingScaler) -> None:
    for _ in range(2):
        run(scaler, "scale", "--attention-nodes", "3")
    assert len({request.operation_id for request in scaler.requests}) == 2


def test_scale_waits_and_tells_the_phases(scaler: RecordingScaler) -> None:
    code, out, err = run(scaler, "scale", "--attention-nodes", "3", "--wait")
    assert (code, out) == (0, "succeeded: 1 -> 3 attention nodes (prewarming 1.50 s)\n")
    assert err.splitlines() == ["launching", "prewarming", "done"]


def test_a_failed_scale_gives_the_reason_and_code_1(scaler: RecordingScaler) -> None:
    scaler.states[-1] = scaler_pb2.Operation(
        phase="rolling_back", result="failed", reason="a-2 did not start"
    )
    code, out, _ = run(scaler, "scale", "--attention-nodes", "3", "--wait")
    assert code == 1
    assert "failed: " in out
    assert "a-2 did not start" in out


def test_an_operation_that_has_ended_already_is_told_at_once(scaler: RecordingScaler) -> None:
    scaler.states[0] = scaler.states[-1]
    code, out, err = run(scaler, "scale", "--attention-nodes", "3", "--wait")
    assert (code, err) == (0, "")
    assert out.startswith("succeeded")


def test_a_wait_that_is_too_short_says_that_the_operation_goes_on(scaler: RecordingScaler) -> None:
    scaler.hangs = True
    code, _, err = run(
        scaler, "scale", "--attention-nodes", "3", "--wait", "--timeout", "0.3", "--operation-id", "op"
    )
    assert code == 1
    assert "after 0.3 s; it goes on" in err
    assert "--operation-id op --wait" in err


def test_a_watch_without_a_result_is_an_error(scaler: RecordingScaler) -> None:
    del scaler.states[1:]
    code, _, err = run(scaler, "scale", "--attention-nodes", "3", "--wait")
    assert code == 1
    assert "ended the watch" in err


def test_a_refusal_is_told_in_the_scaler_s_words(scaler: RecordingScaler) -> None:
    scaler.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "operation op-1 is running")
    code, _, err = run(scaler, "scale", "--attention-nodes", "3")
    assert (code, err) == (1, "kernelflume: operation op-1 is running\n")


def test_what_the_scaler_lacks_is_not_told_as_its_absence(scaler: RecordingScaler) -> None:
    scaler.refusal = (grpc.StatusCode.UNAVAILABLE, "the store cannot be reached")
    assert run(scaler, "scale", "--attention-nodes", "3") == (
        1,
        "",
        "kernelflume: the store cannot be reached\n",
    )


def test_a_scaler_that_cannot_be_reached_is_one_clear_line() -> None:
    address = f"127.0.0.1:{free_port()}"
    for arguments in (["status"], ["scale", "--attention-nodes", "1"]):
        result = CliRunner().invoke(app, [*arguments, "--scaler", address])
        assert result.exit_code == 1
        assert result.stderr.startswith(f"kernelflume: no scaler answers at {address}")
        assert len(result.stderr.splitlines()) == 1
