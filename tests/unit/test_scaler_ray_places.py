"""What actors' names tell, and which machine follows from it."""

from __future__ import annotations

import pytest

from kernelflume.core.leases import NodeKind
from kernelflume.runtime.clock import ManualClock
from kernelflume.scaler.providers.ray.machines import SHUNNED_S, Machines
from kernelflume.scaler.providers.ray.names import ActorName

ALIVE = {name: {"CPU": 2.0} for name in ("m1", "m2", "m3")}
DEMANDS = {"CPU": 1.0}


def named(kind: NodeKind, node_id: str, machine: str | None, attempt: int = 1) -> ActorName:
    return ActorName(cluster="c", kind=kind, node_id=node_id, attempt=attempt, machine=machine)


@pytest.mark.parametrize("machine", ["0af3", None])
def test_a_name_is_read_back(machine: str | None) -> None:
    name = named(NodeKind.ATTENTION, "a-1", machine, attempt=2)
    assert ActorName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", "c/a-1", "c/anode/a-1/1", "c/other/a-1/1/any", "c/anode/a-1/x/any"])
def test_other_names_are_none_of_ours(text: str) -> None:
    assert ActorName.parse(text) is None


def test_nodes_are_spread_and_those_of_others_count() -> None:
    machines = Machines(NodeKind.ATTENTION, ManualClock())
    there = [
        named(NodeKind.WEIGHT, "w-1", "m1"),
        named(NodeKind.ATTENTION, "a-7", "m2"),
        named(NodeKind.ATTENTION, "a-8", None),
    ]
    chosen = [machines.choose(f"a-{i}", DEMANDS, alive=ALIVE, actors=there) for i in range(3)]
    # m3 is empty; beside the weight node rather than beside an attention node; then any with room.
    assert chosen == ["m3", "m1", "m2"]


def test_where_it_really_is_counts_more_than_its_name() -> None:
    machines = Machines(NodeKind.ATTENTION, ManualClock())
    machines.put("a-1", "m3")
    there = [named(NodeKind.ATTENTION, "a-1", "m1")]
    assert machines.choose("a-2", DEMANDS, alive=ALIVE, actors=there) == "m1"
    machines.forget("a-1")
    machines.forget("a-2")
    assert machines.choose("a-2", DEMANDS, alive=ALIVE, actors=there) == "m2"


def test_a_machine_that_lost_a_node_is_shunned_for_a_while() -> None:
    clock = ManualClock()
    machines = Machines(NodeKind.ATTENTION, clock)
    assert machines.choose("a-1", DEMANDS, alive=ALIVE, actors=()) == "m1"
    machines.shun_that_of("a-1")
    assert machines.choose("a-1", DEMANDS, alive=ALIVE, actors=()) == "m2"
    machines.shun_that_of("unknown")
    clock.advance(SHUNNED_S)
    assert machines.choose("a-2", DEMANDS, alive=ALIVE, actors=()) == "m1"


def test_where_no_machine_has_room_ray_chooses() -> None:
    machines = Machines(NodeKind.WEIGHT, ManualClock())
    assert machines.choose("w-1", {"CPU": 3.0}, alive=ALIVE, actors=()) is None
