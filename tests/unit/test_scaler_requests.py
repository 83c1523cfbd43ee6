"""What people may ask of the scaler."""

from __future__ import annotations

import math

import pytest
from tests.table_entries import entry

from kernelflume.core.errors import InvalidRequestError, LifecycleError, NotFoundError
from kernelflume.core.routing import NodeState, RoutingSnapshot
from kernelflume.scaler.operation import Operation, OperationEvent, Origin
from kernelflume.scaler.requests import check_request, num_left_without


def drain_of(node_id: str, origin: Origin) -> Operation:
    return Operation.begin("down", target=1, initial=2, now_s=0.0, origin=origin).with_nodes(node_id)


TABLE = RoutingSnapshot(epoch=3, nodes=(entry("a-1"), entry("a-2"), entry("a-3", NodeState.DRAINING)))


@pytest.mark.parametrize("operation_id", ["", "x" * 201, "a\nb"])
def test_ids_must_be_fit_for_a_log(operation_id: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^operation_id must"):
        check_request(operation_id, 0.0)


@pytest.mark.parametrize("deadline_s", [-1.0, math.nan, math.inf, 1e9])
def test_deadlines_must_be_times(deadline_s: float) -> None:
    check_request("up", 0.0)
    with pytest.raises(InvalidRequestError, match=r"^deadline_seconds must"):
        check_request("up", deadline_s)


def test_nodes_are_left_down_to_the_minimum() -> None:
    assert num_left_without(TABLE, ("a-2",), running=None, minimum=1) == 1
    with pytest.raises(InvalidRequestError, match="1 active nodes would be left, fewer than"):
        num_left_without(TABLE, ("a-2",), running=None, minimum=2)
    with pytest.raises(NotFoundError):
        num_left_without(TABLE, ("a-9",), running=None, minimum=1)


def test_what_the_policy_drains_counts_until_that_cannot_be_undone() -> None:
    running = drain_of("a-3", Origin.POLICY)
    assert num_left_without(TABLE, ("a-3",), running=running, minimum=2) == 2
    retiring = running.after(OperationEvent.DRAINED, now_s=1.0)
    assert not retiring.allows(OperationEvent.CANCEL)
    for other in (retiring, drain_of("a-3", Origin.PERSON), None):
        with pytest.raises(LifecycleError):
            num_left_without(TABLE, ("a-3",), running=other, minimum=1)
