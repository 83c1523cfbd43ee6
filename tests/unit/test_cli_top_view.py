"""What `kernelflume top` shows, as text."""

from __future__ import annotations

import io

from rich.console import Console
from tests.topology import topology

from kernelflume.cli.scaling_view import operation_line
from kernelflume.cli.top_view import occupancy_bar, render
from kernelflume.cli.watch import Sight
from kernelflume.rpc.v1 import scaler_pb2


def shown(sight: Sight, *, height: int | None = None) -> list[str]:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(sight, title="kernelflume top", height=height))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_whole_view() -> None:
    assert shown(Sight(topology())) == [
        "kernelflume top",
        "epoch 7: 1 of 3 attention nodes active, 1 weight node(s), 1 sequence(s); scaling to 3: prewarming",
        "scaling: automatic, at this growth the pool is full in 42.0 s",
        "operation horizon-1f by the policy (horizon): 1 -> 3 attention nodes, a-3 a-4; launching 0.50 s,",
        "prewarming 1.25 s so far",
        "attention node state                occupancy               %  KV used   cached tails full in",
        "a-1            active               █████·············│· 25.0 22.5 MiB 11.2 MiB     2  42.0 s",
        "a-2            draining, lease lost ····················    -      0 B      0 B     0       -",
        "weight node role epoch running waiting tokens waiting    TPOT",
        "w-1         both     6       3       1            120 18.3 ms",
        "decided at (UTC)    action reason   nodes",
        "2026-01-02 03:04:06 scale  horizon 1 -> 3",
        "2026-01-02 03:04:05 none   steady       1",
    ]


def test_a_scaler_that_is_away_leaves_its_last_words() -> None:
    lines = shown(Sight(topology(), "no scaler answers at x:1"))
    assert lines[1] == "no scaler answers at x:1 (trying again; what it said last is below)"
    assert lines[2].startswith("epoch 7")
    assert shown(Sight(None, "no scaler answers at x:1")) == [
        "kernelflume top",
        "no scaler answers at x:1 (trying again)",
    ]


def test_an_empty_cluster_is_shown_too() -> None:
    lines = shown(Sight(scaler_pb2.Topology(scaling_mode="automatic")))
    assert lines[1:3] == [
        "epoch 0: 0 of 0 attention nodes active, 0 weight node(s), 0 sequence(s)",
        "scaling: automatic",
    ]
    assert not [line for line in lines if "weight node " in line[:12] or "decided" in line]


def test_a_low_terminal_shows_fewer_nodes_and_says_so() -> None:
    message = topology()
    message.operation.Clear()
    message.ClearField("operation")
    for number in range(3, 20):
        message.attention_nodes.add(node_id=f"a-{number}", state="active", alive=True)
    lines = shown(Sight(message), height=16)
    assert len(lines) == 16
    assert "and 13 more: `kernelflume status` shows all" in lines
    assert lines[-1].startswith("2026-01-02")
    assert sum(line.startswith("a-") for line in shown(Sight(message), height=5)) == 3
    assert sum(line.startswith("a-") for line in shown(Sight(message))) == 19


def bar(used: int, threshold: int, capacity: int = 100) -> str:
    return occupancy_bar(
        scaler_pb2.AttentionNodeStatus(
            used_tokens=used, threshold_tokens=threshold, capacity_tokens=capacity
        ),
        10,
    ).plain


def test_bars() -> None:
    assert bar(0, 0, 0) == "··········"
    assert bar(0, 90) == "·········│"
    assert bar(1, 90) == "█········│"
    assert bar(50, 80) == "█████···│·"
    assert bar(100, 80) == "████████│█"
    assert bar(120, 100) == "█████████│"
    assert bar(30, 0) == "███·······"


def test_a_bar_beyond_its_threshold_is_red() -> None:
    node = scaler_pb2.AttentionNodeStatus(used_tokens=80, threshold_tokens=80, capacity_tokens=100)
    assert "red" in {str(span.style) for span in occupancy_bar(node).spans}
    node.used_tokens = 79
    assert "red" not in {str(span.style) for span in occupancy_bar(node).spans}


def test_an_operation_is_told_by_its_phases() -> None:
    operation = topology().operation
    assert operation_line(scaler_pb2.Operation()) == ""
    operation.history.add(phase="done", seconds=0.0)
    operation.phase, operation.result, operation.reason = "done", "cancelled", "a person asked"
    operation.ClearField("cause")
    operation.origin = "person"
    assert operation_line(operation) == (
        "last operation horizon-1f by a person: 1 -> 3 attention nodes, a-3 a-4: "
        "cancelled (a person asked); launching 0.50 s, prewarming 1.25 s"
    )
