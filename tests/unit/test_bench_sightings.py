"""What a recorder makes of the topologies that it sees."""

from typing import Any

import pytest

from kernelflume.cli.bench.sightings import Sightings
from kernelflume.rpc.v1 import scaler_pb2


def shown(
    *node_ids: str, operation: scaler_pb2.Operation | None = None, **changes: Any
) -> scaler_pb2.Topology:
    nodes = [
        scaler_pb2.AttentionNodeStatus(node_id=node_id, capacity_tokens=1000, kv_bytes_per_token=8)
        for node_id in node_ids
    ]
    given: dict[str, Any] = {"scaling_mode": "automatic", "attention_nodes": nodes, "operation": operation}
    return scaler_pb2.Topology(**(given | changes))


def growing(*phases: tuple[str, float], result: str = "", name: str = "op-1") -> scaler_pb2.Operation:
    return scaler_pb2.Operation(
        operation_id=name,
        target_attention_nodes=2,
        initial_attention_nodes=1,
        result=result,
        node_ids=["a-2"],
        cause="horizon",
        history=[scaler_pb2.OperationPhase(phase=phase, seconds=seconds) for phase, seconds in phases],
    )


def test_an_operation_began_when_its_phases_add_up_to() -> None:
    seen = Sightings()
    seen.add(shown("a-1"), 100.0)
    seen.add(shown("a-1", operation=growing(("launching", 0.06))), 100.1)
    done = growing(
        ("launching", 0.3), ("prewarming", 0.1), ("publishing", 0.01), ("done", 0.0), result="succeeded"
    )
    seen.add(shown("a-1", "a-2", operation=done), 103.0)
    [recorded] = seen.recorded(99.0)
    assert recorded.started_s == pytest.approx(1.04)
    assert recorded.ended_s == pytest.approx(1.45)
    assert (recorded.initial, recorded.target, recorded.cause) == (1, 2, "horizon")
    assert recorded.result == "succeeded"
    assert seen.nodes == ("a-1",)
    assert (seen.capacity_tokens, seen.token_bytes) == (1000, 8)
    assert seen.unfinished() == []
    assert seen.fault == ""


def test_what_had_ended_before_is_no_part_of_the_run() -> None:
    seen = Sightings()
    for at_s in (100.0, 100.1):
        seen.add(shown("a-1", operation=growing(("done", 0.0), result="succeeded", name="old")), at_s)
    assert seen.recorded(100.0) == ()


def test_what_is_under_way_at_the_end_is_asked_for() -> None:
    seen = Sightings()
    seen.add(shown("a-1"), 100.0)
    seen.add(shown("a-1", operation=growing(("launching", 0.05))), 100.1)
    assert seen.unfinished() == ["op-1"]
    seen.operation(growing(("launching", 0.4)), 100.45)
    [recorded] = seen.recorded(100.0)
    assert recorded.phases == (("launching", 0.4),)
    assert recorded.started_s == pytest.approx(0.05)


def test_nodes_that_an_operation_takes_out_are_not_lost() -> None:
    seen = Sightings()
    seen.add(shown("a-1", "a-2"), 100.0)
    seen.add(shown("a-1", operation=growing(("releasing", 0.1))), 100.1)
    assert seen.fault == ""
    seen.add(shown("a-3"), 100.2)
    assert seen.fault == "attention node a-1 was lost"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"scaling_mode": "manual"}, "not the policy's"),
        (
            {"weight_nodes": [scaler_pb2.WeightNodeStatus(), scaler_pb2.WeightNodeStatus()]},
            "several weight nodes",
        ),
    ],
)
def test_a_run_that_cannot_be_replayed_is_told(changes: dict[str, Any], fault: str) -> None:
    seen = Sightings()
    seen.add(shown("a-1", **changes), 100.0)
    seen.add(shown("a-1"), 100.1)
    assert fault in seen.fault
