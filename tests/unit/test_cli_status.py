"""What `kernelflume status` shows."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from kernelflume.cli.status import headline, ranges, render, size, to_dict
from kernelflume.rpc.v1 import common_pb2, scaler_pb2


def topology() -> scaler_pb2.Topology:
    return scaler_pb2.Topology(
        epoch=7,
        target_attention_nodes=2,
        attention_nodes=[
            scaler_pb2.AttentionNodeStatus(
                node_id="a-1",
                incarnation="0f",
                address="127.0.0.1:9001",
                state="active",
                capacity_tokens=2048,
                used_tokens=512,
                kv_bytes_per_token=46080,
                num_sequences=1,
                alive=True,
            ),
            scaler_pb2.AttentionNodeStatus(node_id="a-2", state="draining", address="127.0.0.1:9002"),
        ],
        weight_nodes=[
            scaler_pb2.WeightNodeStatus(
                node_id="w-1", address="127.0.0.1:8200", adopted_epoch=6, num_requests_running=3
            )
        ],
        sequences=[
            scaler_pb2.SequenceRouteStatus(
                weight_node="w-1#aa",
                sequence_id=41,
                ranges=[
                    common_pb2.OwnedRange(node_id="a-1", start=0, end=512),
                    common_pb2.OwnedRange(node_id="a-2", start=512, end=600),
                ],
            )
        ],
    )


def shown(message: scaler_pb2.Topology) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160).print(render(message))
    return stream.getvalue()


def test_the_tables_say_state_use_and_ranges() -> None:
    lines = shown(topology()).splitlines()
    assert lines[0].startswith("epoch 7: 1 of 2 attention nodes active, 1 weight node(s), 1 sequence(s)")
    assert lines[1].split("  ")[0].startswith("attention node state")
    assert lines[1].rstrip().endswith("% sequences address")
    words = [line.split() for line in lines]
    assert "a-1 active 22.5 MiB 90.0 MiB 25.0 1 127.0.0.1:9001".split() in words
    assert "a-2 draining, lease lost 0 B 0 B - 0 127.0.0.1:9002".split() in words
    assert "w-1 6 3 0 127.0.0.1:8200".split() in words
    assert "41 w-1#aa 600 a-1[0,512) a-2[512,600)".split() in words


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
    assert fields["operation"] is None
    node = fields["attention_nodes"][0]
    assert (node["capacity_tokens"], node["alive"], node["state"]) == (2048, True, "active")
    assert fields["attention_nodes"][1]["num_sequences"] == 0
    assert fields["sequences"][0]["ranges"][1] == {"node_id": "a-2", "start": 512, "end": 600}


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")],
)
def test_sizes_are_for_people(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


def test_ranges_are_half_open() -> None:
    assert ranges([]) == ""
