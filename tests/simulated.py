"""Small simulations for tests: a model, GPUs of a few thousand tokens, and sessions of given lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kernelflume.scaler.sim.config import config_of
from kernelflume.scaler.sim.sessions import Session, Turn
from kernelflume.scaler.sim.simulation import Simulator
from kernelflume.scaler.sim.workload import Demand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MODEL = """
name: tiny
num_layers: 4
hidden_size: 256
num_query_heads: 4
num_kv_heads: 2
head_dim: 64
ffn_size: 512
vocabulary_size: 1000
source: a test
"""
# 2048 bytes a token and 5.7 MB of weights: 12 MB hold 5859 tokens on an attention node, 3055 on an instance.
HARDWARE = """
name: tiny
memory_gb: 0.012
memory_gb_per_s: 0.5
bf16_tflops: 1.0
intra_gb_per_s: 1.0
inter_gb_per_s: 0.5
source: a test
"""
# What is taken away costs little here; tests are short, so it happens often.
STRATEGIES: list[dict[str, Any]] = [
    {"kind": "fixed", "name": "under", "size_for": "average"},
    {"kind": "fixed", "name": "over", "size_for": "maximum"},
    {"kind": "instances", "name": "current", "maximum_instances": 6, "scale_in_idle_s": 2},
    {"kind": "instances", "name": "moving", "maximum_instances": 6, "migrates": True, "placement": "fullest"},
    {"kind": "instances", "name": "peak", "maximum_instances": 6, "admission": "peak"},
    {
        "kind": "fixed",
        "name": "in-order",
        "size_for": "longest",
        "rank_fill": "in_order",
        "admission": "peak",
    },
    {"kind": "fixed", "name": "bound", "size_for": "bound", "admission": "longest"},
    {
        "kind": "instances",
        "name": "longest",
        "maximum_instances": 6,
        "admission": "longest",
        "bills_startup": False,
        "scale_in_idle_s": 2,
    },
    {
        "kind": "instances",
        "name": "filled",
        "ranks_per_instance": 2,
        "maximum_instances": 6,
        "rank_fill": "in_order",
    },
    {"kind": "instances", "name": "watched", "ranks_per_instance": 2, "trigger_utilisation": 0.6},
    {"kind": "kernelflume", "name": "kernelflume", "policy": {"scale_down_cooldown_s": 5, "silence_s": 5}},
    {"kind": "kernelflume", "name": "mixed", "attention_hardware": "other.yaml", "spread_tokens": 64},
    {
        "kind": "instances",
        "name": "leaving",
        "maximum_instances": 6,
        "trigger_step_s": 0.02,
        "scale_in_utilisation": 0.8,
        "scale_in_idle_s": 1,
        "migration_gb_per_s": 0.001,
        "load_gb_per_s": 0.01,
    },
    {
        "kind": "kernelflume",
        "name": "spot",
        "attention_price": "spot",
        "spot": {"preemptions_per_node_hour": 600, "notice_s": 1},
        "policy": {"scale_down_cooldown_s": 5, "silence_s": 5},
    },
    {
        "kind": "kernelflume",
        "name": "copies",
        "replicas": 2,
        "weight_nodes": 2,
        "placement": "pack",
        "spot": {"preemptions_per_node_hour": 600, "notice_s": 0},
        "policy": {"scale_down_cooldown_s": 5, "silence_s": 5},
    },
]
STRATEGY = {fields["name"]: fields for fields in STRATEGIES}
"""The same by name."""


def write_profiles(folder: Path) -> None:
    (folder / "model.yaml").write_text(MODEL)
    (folder / "gpu.yaml").write_text(HARDWARE)
    (folder / "other.yaml").write_text(HARDWARE.replace("0.012", "0.008"))


def simulator_of(
    folder: Path,
    sessions: Sequence[Session] | None = None,
    *,
    concurrency: int | None = 4,
    admits: Literal["sessions", "turns", "batches"] = "sessions",
    price: float = 2.0,
    workload: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Simulator:
    """A simulator of the tiny model; ``sessions`` stand for what the configuration would have drawn."""
    config = config_of(
        {
            "name": "test",
            "model": "model.yaml",
            "hardware": "gpu.yaml",
            "reserve_gb": 0,
            "tpot_slo_s": 0.05,
            "prices": {
                "gpu.yaml": {"usd_per_gpu_hour": price, "source": "a test"},
                "other.yaml": {"usd_per_gpu_hour": price / 2, "source": "a test"},
                "spot": {"usd_per_gpu_hour": price / 4, "source": "a test"},
            },
            "workload": {"source": {"kind": "generator", "num_sessions": 0}, **(workload or {})},
            "strategies": STRATEGIES,
            **settings,
        }
    )
    simulator = Simulator(config, folder)
    if sessions is not None:
        simulator.demand = Demand(sessions=tuple(sessions), concurrency=concurrency, admits=admits)
    return simulator


def session(number: int, *turns: tuple[int, int], start_s: float = 0.0, think_s: float = 0.0) -> Session:
    """A session whose turns add (prompt tokens, output tokens) to what was there."""
    context = 0
    made: list[Turn] = []
    for added, output in turns:
        context += added
        made.append(Turn(context, output, think_s if made else 0.0))
        context += output
    return Session(number, tuple(made), start_s)
