"""Records of operations: written for a successor, and what it makes of those that were given up half way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.table_entries import entry

from kernelflume.core.errors import ConflictError
from kernelflume.core.routing import NodeState, RoutingSnapshot
from kernelflume.runtime.clock import ManualClock
from kernelflume.scaler.leader import Leadership
from kernelflume.scaler.operation import Operation, OperationEvent, Phase, Result
from kernelflume.scaler.operation_records import (
    MAX_RECORDS,
    TTL_S,
    OperationRecord,
    OperationRecords,
)
from kernelflume.scaler.succession import leftovers, settled
from kernelflume.scaler.table import Table
from kernelflume.store.memory import MemoryServer, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

UP = [OperationEvent.LAUNCHED, OperationEvent.PREPARED, OperationEvent.PUBLISH]
DOWN = [OperationEvent.DRAINED, OperationEvent.RETIRED]


def operation(events: Sequence[OperationEvent], *, initial: int = 1, nodes: Sequence[str] = ()) -> Operation:
    target = 2 if initial == 1 else 1
    begun = Operation.begin("op", target=target, initial=initial, now_s=0.0).with_nodes(*nodes)
    for second, event in enumerate(events, 1):
        begun = begun.after(event, now_s=float(second), reason="cancelled on request")
    return begun


def table(**states: NodeState) -> RoutingSnapshot:
    nodes = (entry(name.replace("_", "-"), state) for name, state in states.items())
    return RoutingSnapshot(epoch=3, nodes=tuple(nodes))


def end_of(found: Operation, snapshot: RoutingSnapshot) -> Operation:
    record = OperationRecord(operation=found, scaler="s-1", leader=7, held_before="")
    ended = settled(record, snapshot, now_s=50.0)
    assert ended.done
    return ended


@pytest.mark.parametrize(
    ("events", "nodes", "reason"),
    [
        ([], [], "scaler s-1 died or lost the leadership in phase launching: no node had been launched"),
        ([], ["a-2"], "scaler s-1 died or lost the leadership in phase launching: a-2 rolled back"),
        (
            UP[:1],
            ["a-2", "a-3"],
            "scaler s-1 died or lost the leadership in phase prewarming: a-2, a-3 rolled",
        ),
        (UP[:2], ["a-2"], "scaler s-1 died or lost the leadership in phase ready: a-2 rolled back"),
        (UP, ["a-2"], "scaler s-1 died or lost the leadership in phase publishing: a-2 rolled back"),
    ],
)
def test_a_scale_up_that_was_given_up_has_failed(
    events: list[OperationEvent], nodes: list[str], reason: str
) -> None:
    ended = end_of(operation(events, nodes=nodes), table(a_1=NodeState.ACTIVE, a_2=NodeState.READY))
    assert (ended.result, ended.rolled_back) == (Result.FAILED, True)
    assert ended.reason.startswith(reason)
    assert ended.history[-2].phase is Phase.ROLLING_BACK
    assert ended.history[-3].ended_at_s == 50.0


def test_a_publish_that_happened_has_succeeded() -> None:
    ended = end_of(operation(UP, nodes=["a-2"]), table(a_1=NodeState.ACTIVE, a_2=NodeState.ACTIVE))
    assert (ended.result, ended.rolled_back) == (Result.SUCCEEDED, False)


@pytest.mark.parametrize(
    ("num_events", "states", "effect", "rolled_back"),
    [
        (0, {"a_2": NodeState.DRAINING}, "the drain of a-2 is rolled back", True),
        (1, {"a_2": NodeState.DRAINING}, "the drain of a-2 is rolled back", True),
        (1, {}, "a-2 had left the routing table", False),
        (2, {}, "a-2 had left the routing table", False),
    ],
)
def test_a_scale_down_that_was_given_up_has_failed(
    num_events: int, states: dict[str, NodeState], effect: str, rolled_back: bool
) -> None:
    found = operation(DOWN[:num_events], initial=2, nodes=["a-2"])
    ended = end_of(found, table(a_1=NodeState.ACTIVE, **states))
    assert ended.result is Result.FAILED
    assert ended.reason.endswith(effect)
    assert ended.rolled_back is rolled_back


def test_one_that_was_being_undone_ends_as_it_would_have() -> None:
    ended = end_of(operation([*UP[:1], OperationEvent.CANCEL], nodes=["a-2"]), table(a_1=NodeState.ACTIVE))
    assert ended.result is Result.CANCELLED
    assert ended.reason.startswith("cancelled on request; scaler s-1 died")


def test_one_that_is_done_stays_as_it_is() -> None:
    done = operation([*UP, OperationEvent.PUBLISHED], nodes=["a-2"])
    assert end_of(done, table()) == done


def test_left_over_is_what_was_launched_and_is_in_no_table() -> None:
    snapshot = table(a_1=NodeState.ACTIVE, a_2=NodeState.PREWARMING)
    given_up = end_of(operation(UP[:1], nodes=["a-2", "a-3"]), snapshot)
    assert leftovers(given_up, snapshot) == ("a-3",)
    assert leftovers(end_of(operation([], initial=2, nodes=["a-9"]), snapshot), snapshot) == ()


class Scaler:
    """Records of one scaler that leads, on a shared store."""

    def __init__(self, server: MemoryServer, name: str) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(server)
        self.leadership = Leadership(self.store, self.clock, ttl_s=10)
        self.name = name
        self.wall_s = 1000.0
        table = Table(self.store, self.leadership, self.clock)
        self.records = OperationRecords(self.store, table, self.clock, scaler=name, wall=lambda: self.wall_s)

    async def lead(self) -> None:
        self.leadership.token = await self.store.lead(self.name, ttl_s=10)


@pytest.fixture
async def scalers() -> tuple[Scaler, Scaler]:
    server = MemoryServer(ManualClock())
    first, second = Scaler(server, "s-1"), Scaler(server, "s-2")
    await first.lead()
    return first, second


async def take_over(first: Scaler, second: Scaler) -> None:
    await first.store.resign("s-1")
    await second.lead()


async def test_a_successor_reads_what_was_written_on_its_own_clock(scalers: tuple[Scaler, Scaler]) -> None:
    first, second = scalers
    first.clock.advance(100.0)
    begun = Operation.begin("op", target=2, initial=1, now_s=first.clock.now())
    await first.records.begin(begun, held_before="4")
    first.clock.advance(2.0)
    prewarming = begun.with_nodes("a-2").after(OperationEvent.LAUNCHED, now_s=first.clock.now())
    first.records.follow(begun)
    first.records.follow(prewarming)
    await first.records.close()
    await take_over(first, second)
    second.clock.advance(7.0)
    second.wall_s = 1003.0  # three seconds after the write
    found = await second.records.newest()
    assert found is not None
    assert (found.scaler, found.leader, found.held_before) == ("s-1", first.leadership.token, "4")
    now_s = second.clock.now()
    assert [round(span.seconds(now_s), 6) for span in found.operation.history] == [2.0, 3.0]
    assert found.operation.node_ids == ("a-2",)
    assert await second.records.read("other") is None


async def test_an_old_leader_records_nothing(scalers: tuple[Scaler, Scaler]) -> None:
    first, second = scalers
    begun = Operation.begin("op", target=2, initial=1, now_s=0.0)
    await take_over(first, second)
    with pytest.raises(ConflictError, match="fencing token"):
        await first.records.begin(begun, held_before="")
    first.records.follow(begun)
    await first.records.close()
    first.leadership.token = None
    with pytest.raises(ConflictError, match="does not lead"):
        await first.records.write(begun)
    assert await second.records.newest() is None


async def test_a_record_vanishes_after_its_time(scalers: tuple[Scaler, Scaler]) -> None:
    first, _ = scalers
    await first.records.begin(Operation.begin("op", target=2, initial=1, now_s=0.0), held_before="")
    server_clock = first.store._server.clock
    assert isinstance(server_clock, ManualClock)
    server_clock.advance(TTL_S + 1)
    assert await first.records.read("op") is None
    assert await first.records.newest() is None


async def test_only_so_many_are_kept(scalers: tuple[Scaler, Scaler]) -> None:
    first, second = scalers
    for number in range(MAX_RECORDS + 2):
        begun = Operation.begin(f"op-{number}", target=2, initial=1, now_s=0.0)
        await first.records.begin(begun, held_before="")
    await take_over(first, second)
    newest = await second.records.newest()
    assert newest is not None
    assert newest.operation.operation_id == f"op-{MAX_RECORDS + 1}"
    server_clock = first.store._server.clock
    assert isinstance(server_clock, ManualClock)
    server_clock.advance(1.0)
    assert [await second.records.read(f"op-{number}") is None for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    await second.records.begin(Operation.begin("more", target=2, initial=1, now_s=0.0), held_before="")
    server_clock.advance(1.0)
    assert await second.records.read("op-2") is None


async def test_a_store_that_was_away_gets_the_newest_state(scalers: tuple[Scaler, Scaler]) -> None:
    first, _ = scalers
    begun = Operation.begin("op", target=2, initial=1, now_s=0.0)
    await first.records.begin(begun, held_before="")
    first.store._server.reachable = False
    first.records.follow(begun)
    await asyncio.sleep(0)
    first.records.follow(begun.with_nodes("a-2"))
    first.store._server.reachable = True
    async with asyncio.timeout(60):
        while first.records._pending:  # noqa: ASYNC110 - the writer tells nobody
            await asyncio.sleep(0.02)
    found = await first.records.read("op")
    assert found is not None
    assert found.operation.node_ids == ("a-2",)


@pytest.mark.parametrize("text", ["no json", "[]", '{"schema": 9}', '{"schema": 1, "written_at": 0}'])
async def test_a_damaged_record_is_none(
    text: str, scalers: tuple[Scaler, Scaler], caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = scalers
    await first.store.write_setting("operation:op", text)
    assert await first.records.read("op") is None
    assert "the record of operation op cannot be used" in caplog.text
