"""The days of load whose decisions are kept in decisions.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernelflume.scaler.decision_log import DecisionRecord
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.sizing import SizingReason
from tests.pool_model import TOKEN_BYTES, Load, PoolModel

PATH = Path(__file__).with_name("decisions.jsonl")
POLICY = ScalingPolicy(
    maximum_nodes=5,
    maximum_nodes_at_once=2,
    node_cost_per_hour=2.0,
    maximum_cost_per_hour=12.0,
    scale_down_cooldown_s=30,
    silence_s=20,
)


@dataclass
class _Recorder(PoolModel):
    """Notes each decision that differs from the one before, as the scaler does."""

    def record(self, lines: list[str]) -> None:
        last = None
        for (view, state), sizing in zip(self.inputs, self.decisions, strict=True):
            key = (sizing.action, sizing.reason, sizing.target)
            if sizing.reason is SizingReason.PENDING:
                continue
            if key != last:
                record = DecisionRecord(
                    time=f"t+{view.now_s:g}s",
                    view=view,
                    state=state,
                    policy=self.policy,
                    profile=None,
                    token_bytes=TOKEN_BYTES,
                    sizing=sizing,
                )
                lines.append(record.to_json())
            last = key


def golden_lines() -> list[str]:
    """Return one line a decision, over load that comes, bursts, ebbs and goes."""
    lines: list[str] = []
    day = _Recorder(POLICY)
    day.run(lambda now: Load(held_tokens=int(200 * now), num_tails=10), 150)  # growth
    day.run(lambda _: Load(held_tokens=30_000, num_tails=10, waiting_tokens=40_000), 20)  # a burst, too large
    day.run(lambda _: Load(held_tokens=12_000, num_tails=2), 150)  # ebb
    day.run(lambda now: Load(held_tokens=int(18_000 + 300 * (now - 320)), num_tails=15), 30)  # back
    day.run(lambda _: Load(0, 0), 120)  # silence
    day.record(lines)

    false_alarm = _Recorder(POLICY.model_copy(update={"gamma": 1.0}))
    false_alarm.run(lambda _: Load(held_tokens=8_000, num_tails=40), 10)
    false_alarm.run(lambda _: Load(held_tokens=1_000, num_tails=1), 120)
    false_alarm.record(lines)

    overtaken = _Recorder(POLICY, num_nodes=2, drain_s=1e6)
    overtaken.run(lambda _: Load(held_tokens=2_000, num_tails=1), 40)
    overtaken.run(lambda _: Load(held_tokens=17_000, num_tails=40), 20)
    overtaken.record(lines)
    return lines
