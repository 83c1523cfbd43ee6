from __future__ import annotations

import pytest

from kernelflume.scaler.providers.ray.spread import least_used

MACHINES = {"m1": {"CPU": 2.0}, "m2": {"CPU": 2.0, "GPU": 1.0}, "m3": {"CPU": 1.0}}


@pytest.mark.parametrize(
    ("demands", "placed", "expected"),
    [
        ({"CPU": 1.0}, [], "m1"),
        ({"CPU": 1.0}, ["m1"], "m2"),
        ({"CPU": 1.0}, ["m1", "m2", "m3"], "m1"),
        ({"CPU": 1.0}, ["m1", "m1", "m2", "m3"], "m2"),
        ({"CPU": 1.0}, ["m1", "m1", "m2", "m2", "m3"], None),
        ({"CPU": 1.0}, ["gone", "m1"], "m2"),
        ({"GPU": 1.0}, [], "m2"),
        ({"GPU": 1.0}, ["m2"], None),
        ({"TPU": 1.0}, [], None),
        ({}, ["m1", "m2"], "m3"),
    ],
)
def test_a_node_goes_where_the_fewest_are_and_room_is(
    demands: dict[str, float], placed: list[str], expected: str | None
) -> None:
    assert least_used(MACHINES, demands, placed) == expected


@pytest.mark.parametrize(
    ("placed", "others", "expected"),
    [
        ([], ["m1"], "m2"),  # elsewhere, as long as there is an elsewhere
        (["m2"], ["m1"], "m1"),  # rather beside another kind than beside its own
        ([], ["m1", "m1", "m2"], "m2"),
        ([], ["m1", "m1", "m2", "m2"], None),
    ],
)
def test_nodes_of_another_kind_take_room_and_are_avoided(
    placed: list[str], others: list[str], expected: str | None
) -> None:
    machines = {name: MACHINES[name] for name in ("m1", "m2")}
    assert least_used(machines, {"CPU": 1.0}, placed, others) == expected
