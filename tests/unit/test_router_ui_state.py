"""What the live page is sent of a sight."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.topology import topology
from tests.ui_sights import WEIGHT_ADDRESS, attention_lease, entry, sequence, sight

from kernelflume.core.routing import NodeState
from kernelflume.router.latencies import RecentLatencies
from kernelflume.router.ui.history import Event
from kernelflume.router.ui.sight import Sight, WeightNodeSight
from kernelflume.router.ui.state import (
    MAX_RANGES,
    MAX_SEQUENCES,
    attention_section,
    cluster_section,
    event_section,
    latency_section,
    sequence_section,
    weight_section,
)
from kernelflume.runtime.clock import ManualClock

A1, A2 = entry("a-1"), entry("a-2", NodeState.DRAINING)


def test_attention_nodes_have_occupancy_tails_and_what_the_scaler_knows() -> None:
    section = attention_section(replace(sight(A1, A2), topology=topology()))
    first, second = section["nodes"][:2]
    assert first["id"] == "a-1"
    assert (first["state"], first["alive"], first["used_tokens"], first["num_tails"]) == (
        "active",
        True,
        250,
        2,
    )
    assert (first["token_bytes"], first["fill_s"]) == (46080, 42.0)
    assert (second["state"], second["num_tails"], second["fill_s"]) == ("draining", 1, None)


def test_nodes_that_an_operation_starts_are_shown_before_they_are_in_the_table() -> None:
    operating = replace(sight(A1, entry("a-3", NodeState.PREWARMING)), topology=topology())
    assert [(node["id"], node["state"]) for node in attention_section(operating)["nodes"]] == [
        ("a-1", "active"),
        ("a-3", "prewarming"),
        ("a-4", "launching"),
    ]
    releasing = topology()
    releasing.operation.phase = "releasing"
    assert len(attention_section(replace(operating, topology=releasing))["nodes"]) == 2


def test_a_node_without_a_lease_is_not_alive_and_another_start_of_it_does_not_count() -> None:
    lost = replace(sight(A1), attention_leases=(attention_lease("a-1", used=9, incarnation="0"),))
    [node] = attention_section(lost)["nodes"]
    assert (node["alive"], node["used_tokens"]) == (False, 0)


def test_weight_nodes_are_named_by_their_lease_or_else_by_their_address() -> None:
    away = WeightNodeSight(address="10.0.0.9:1", trouble="UNAVAILABLE: gone", num_requests=0, num_tokens=0)
    seen = sight(A1)
    nodes = weight_section(replace(seen, weight_nodes=(*seen.weight_nodes, away)))["nodes"]
    assert [(node["id"], node["trouble"]) for node in nodes] == [
        ("10.0.0.9:1", "UNAVAILABLE: gone"),
        ("w-1", None),
    ]
    assert nodes[0]["num_running"] is None
    assert (nodes[1]["num_running"], nodes[1]["num_waiting"], nodes[1]["step_ms"]) == (2, 1, 18.3)


def test_sequences_show_their_ranges_and_the_longest_are_kept_in_the_order_of_ids() -> None:
    many = [sequence(number, ("a-1", 10 + number), ("a-2", 5)) for number in range(MAX_SEQUENCES + 3)]
    section = sequence_section(replace(sight(A1, A2), sequences=tuple(many)))
    assert section["num_sequences"] == MAX_SEQUENCES + 3
    assert [shown["id"] for shown in section["sequences"]] == [
        f"w-1/{number}" for number in range(3, MAX_SEQUENCES + 3)
    ]
    assert section["sequences"][0]["ranges"] == [["a-1", 0, 13], ["a-2", 13, 18]]


def test_a_sequence_of_very_many_ranges_has_its_earliest_taken_together() -> None:
    pieces = [("a-1", 4), ("a-2", 4)] * MAX_RANGES
    [shown] = sequence_section(replace(sight(A1), sequences=(sequence(1, *pieces),)))["sequences"]
    assert len(shown["ranges"]) == MAX_RANGES + 1
    assert shown["ranges"][0] == ["", 0, 4 * MAX_RANGES]
    assert shown["ranges"][1][1] == 4 * MAX_RANGES
    assert shown["ranges"][-1] == ["a-2", 8 * MAX_RANGES - 4, 8 * MAX_RANGES]


def test_the_cluster_says_who_chooses_the_number_of_nodes_and_what_is_away() -> None:
    section = cluster_section(replace(sight(A1), topology=topology()), model="tiny", version="1")
    assert (section["epoch"], section["store_fault"]) == (7, "")
    assert (section["scaling"]["mode"], section["scaling"]["num_target"]) == ("automatic", 3)
    assert section["scaling"]["operation"]["phases"] == [["launching", 0.5], ["prewarming", 1.25]]
    unknown = cluster_section(Sight(store_fault="no answer"), model="tiny", version="1")
    assert (unknown["epoch"], unknown["store_fault"], unknown["scaling"]) == (None, "no answer", None)


def test_only_decisions_that_change_something_are_events() -> None:
    event = Event(at=1.23456, kind="epoch", epoch=3)
    section = event_section([event], topology())
    assert section["events"][0]["at"] == 1.235
    assert [decision["action"] for decision in section["decisions"]] == ["scale"]
    assert event_section([], None) == {"events": [], "decisions": []}


def test_latencies_are_milliseconds_by_slots_with_none_where_nothing_was_measured() -> None:
    clock = ManualClock()
    first, between = (RecentLatencies(clock, num_slots=3) for _ in range(2))
    first.observe(0.05)
    section = latency_section(first, between)
    assert section["ttft"]["p50_ms"][:2] == [None, None]
    assert 48 < section["ttft"]["p50_ms"][2] < 52
    assert section["tpot"] == {"p50_ms": [None] * 3, "p99_ms": [None] * 3, "counts": [0] * 3, "minute": None}


def test_everything_is_plain_json_before_anything_is_known() -> None:
    nothing = Sight()
    for section in (attention_section, weight_section, sequence_section):
        assert json.loads(json.dumps(section(nothing), allow_nan=False)) is not None
    assert WEIGHT_ADDRESS not in json.dumps(weight_section(nothing))
