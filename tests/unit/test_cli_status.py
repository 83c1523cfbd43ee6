"""What `kernelflume status` shows."""

from __future__ import annotations

import io
import json

from rich.console import Console
from tests.topology import topology

from kernelflume.cli.status import headline, ranges, render, to_dict
from kernelflume.rpc.v1 import scaler_pb2


def shown(message: scaler_pb2.Topology) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160).print(render(message))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def test_the_tables_say_state_use_and_ranges() -> None:
    lines = shown(topology()).splitlines()
    assert lines[0] == (
        "epoch 7: 1 of 3 attention nodes active, 1 weight node(s), 1 sequence(s); scaling to 3: prewarming"
    )
    assert lines[1] == "scaling: automatic, at this growth the pool is full in 42.0 s"
    assert lines[2] == (
        "operation horizon-1f by the policy (horizon): 1 -> 3 attention nodes, a-3 a-4; "
        "launching 0.50 s, prewarming 1.25 s so far"
    )
    tables = [line.partition(" 127.0.0.1:")[0].partition(" address")[0].rstrip() for line in lines[3:]]
    last = "% threshold % tails full in sequences"
    used, none = "22.5 MiB 11.2 MiB 5.6 MiB 45.0 MiB", "     0 B      0 B     0 B      0 B"
    assert tables == [
        f"attention node state                 KV used   cached  pinned   reused capacity    {last}",
        f"a-1            active               {used} 90.0 MiB 25.0        90.0     2  42.0 s         1",
        f"a-2            draining, lease lost {none}      0 B    -           -     0       -         0",
        "weight node role epoch running waiting tokens waiting    step",
        "w-1         both     6       3       1            120 18.3 ms",
        "decided at (UTC)    action reason   nodes",
        "2026-01-02 03:04:06 scale  horizon 1 -> 3",
        "2026-01-02 03:04:05 none   steady       1",
        "sequence of weight node tokens ranges",
        "41       w-1#aa            600 a-1[0,512) a-2[512,600)",
    ]
    assert lines[4].endswith(" 127.0.0.1:9001")


def test_a_manual_pool_says_how_to_go_on() -> None:
    message = topology()
    message.scaling_mode = "manual"
    message.operation.Clear()
    line = shown(message).splitlines()[1]
    assert line.startswith("scaling: manual, ")
    assert "where the policy is automatic, `kernelflume policy resume` lets it choose again" in line


def test_nodes_of_a_scaler_without_a_geometry_are_shown_in_tokens() -> None:
    message = topology()
    for node in message.attention_nodes:
        node.kv_bytes_per_token = 0
    assert " 512 tokens 256 tokens 128 tokens 1024 tokens 2048 tokens 25.0 " in shown(message)


def test_the_first_nodes_are_no_work_of_a_policy() -> None:
    message = topology()
    message.operation.cause = "target"
    assert "operation horizon-1f by the scaler (target): 1 -> 3 attention nodes" in shown(message)


def test_an_empty_cluster_is_shown_too() -> None:
    assert "epoch 0: 0 of 0 attention nodes active" in shown(scaler_pb2.Topology())


def test_an_operation_is_told_while_it_runs() -> None:
    message = topology()
    message.operation.CopyFrom(
        scaler_pb2.Operation(operation_id="x", target_attention_nodes=3, phase="prewarming")
    )
    assert headline(message).endswith("; scaling to 3: prewarming")
    message.operation.result = "succeeded"
    assert "scaling" not in headline(message)


def test_json_has_every_field_by_name_with_numbers_as_numbers() -> None:
    fields = json.loads(json.dumps(to_dict(topology())))
    assert fields["epoch"] == 7
    assert fields["operation"]["cause"] == "horizon"
    assert (fields["scaling_mode"], fields["pool_fill_seconds"]) == ("automatic", 42.0)
    assert fields["decisions"][1]["target_attention_nodes"] == 3
    node = fields["attention_nodes"][0]
    assert (node["capacity_tokens"], node["alive"], node["state"]) == (2048, True, "active")
    assert (node["threshold_tokens"], node["num_tails"], node["fill_seconds"]) == (1843, 2, 42.0)
    assert fields["attention_nodes"][1]["num_sequences"] == 0
    assert fields["weight_nodes"][0]["decode_step_seconds"] == 0.0183
    assert fields["sequences"][0]["ranges"][1] == {"node_id": "a-2", "start": 512, "end": 600}
    assert to_dict(scaler_pb2.Topology())["operation"] is None


def test_ranges_are_half_open() -> None:
    assert ranges([]) == ""
