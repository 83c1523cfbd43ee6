"""What the policy decided and on what: one JSON line a decision, and the newest few for people to see.

A line holds everything that ``scaler.sizing.size`` was given, so that ``scaler.replay`` can make the decision
again. Looks that come to the same as the look before, or wait for an operation, are not repeated.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from kernelflume.core.profile import PerformanceProfile
from kernelflume.scaler.pool_view import PoolView
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.sizing import Sizing, SizingAction, SizingReason, SizingState

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.policy import PolicySettings, Sized

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
"""History: 1 = view, state, policy, profile, token bytes and the sizing."""
_NUM_RECENT = 20

_VIEW = TypeAdapter(PoolView)
_STATE = TypeAdapter(SizingState)
_SIZING = TypeAdapter(Sizing)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision with all of its inputs."""

    time: str
    """ISO 8601, for people."""
    view: PoolView
    state: SizingState
    policy: ScalingPolicy
    profile: PerformanceProfile | None
    token_bytes: int
    sizing: Sizing

    def to_json(self) -> str:
        """Return one line; ``from_json`` reads it back."""
        fields: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "time": self.time,
            "action": str(self.sizing.action),
            "reason": str(self.sizing.reason),
            "target": self.sizing.target,
            "view": _VIEW.dump_python(self.view, mode="json"),
            "state": _STATE.dump_python(self.state, mode="json"),
            "sizing": _SIZING.dump_python(self.sizing, mode="json"),
            "policy": self.policy.model_dump(mode="json", exclude={"provider"}),
            "profile": self.profile.to_dict() if self.profile is not None else None,
            "token_bytes": self.token_bytes,
        }
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> DecisionRecord:
        """Read ``to_json``'s form.

        Raises:
            ValueError: it is another schema, or no such line.
        """
        fields = json.loads(line)
        if fields.get("schema") != SCHEMA_VERSION:
            raise ValueError(f"a decision of schema {fields.get('schema')!r}, not {SCHEMA_VERSION}")
        profile = fields["profile"]
        return cls(
            time=fields["time"],
            view=_VIEW.validate_python(fields["view"]),
            state=_STATE.validate_python(fields["state"]),
            policy=ScalingPolicy.model_validate(fields["policy"]),
            profile=PerformanceProfile.from_dict(profile) if profile is not None else None,
            token_bytes=fields["token_bytes"],
            sizing=_SIZING.validate_python(fields["sizing"]),
        )


class DecisionLog:
    """Notes each decision that differs from the one before; used by the controller alone."""

    def __init__(self, write: Callable[[str], None] = logger.info) -> None:
        """Hand each line to ``write``."""
        self._write = write
        self._last: tuple[SizingAction, str, int] | None = None
        self.recent: deque[DecisionRecord] = deque(maxlen=_NUM_RECENT)
        """The newest decisions, oldest first."""

    def note(self, sized: Sized, settings: PolicySettings) -> None:
        """Log a decision, unless it repeats the last one or an operation is only waited for."""
        sizing = sized.sizing
        if sizing.reason is SizingReason.PENDING:
            return
        key = (sizing.action, str(sizing.reason), sizing.target)
        if key == self._last:
            return
        self._last = key
        record = DecisionRecord(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            view=sized.view,
            state=sized.state,
            policy=settings.scaling,
            profile=settings.profile,
            token_bytes=settings.token_bytes,
            sizing=sizing,
        )
        self.recent.append(record)
        self._write(record.to_json())
