"""A topology with something of everything, as a scaler would send it."""

from __future__ import annotations

from kernelflume.rpc.v1 import common_pb2, scaler_pb2


def topology() -> scaler_pb2.Topology:
    return scaler_pb2.Topology(
        epoch=7,
        target_attention_nodes=3,
        scaling_mode="automatic",
        pool_fill_seconds=42.0,
        operation=scaler_pb2.Operation(
            operation_id="horizon-1f",
            origin="policy",
            cause="horizon",
            initial_attention_nodes=1,
            target_attention_nodes=3,
            phase="prewarming",
            node_ids=["a-3", "a-4"],
            history=[
                scaler_pb2.OperationPhase(phase="launching", seconds=0.5),
                scaler_pb2.OperationPhase(phase="prewarming", seconds=1.25),
            ],
        ),
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
                threshold_tokens=1843,
                fill_seconds=42.0,
                num_tails=2,
                cached_tokens=256,
                shared_tokens=1024,
                pinned_tokens=128,
            ),
            scaler_pb2.AttentionNodeStatus(node_id="a-2", state="draining", address="127.0.0.1:9002"),
        ],
        weight_nodes=[
            scaler_pb2.WeightNodeStatus(
                node_id="w-1",
                role="both",
                address="127.0.0.1:8200",
                adopted_epoch=6,
                num_requests_running=3,
                num_requests_waiting=1,
                waiting_tokens=120,
                decode_step_seconds=0.0183,
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
        decisions=[
            scaler_pb2.ScalingDecision(
                time="2026-01-02T03:04:05.000+00:00",
                action="none",
                reason="steady",
                target_attention_nodes=1,
                active_attention_nodes=1,
            ),
            scaler_pb2.ScalingDecision(
                time="2026-01-02T03:04:06.000+00:00",
                action="scale",
                reason="horizon",
                target_attention_nodes=3,
                active_attention_nodes=1,
            ),
        ],
    )
