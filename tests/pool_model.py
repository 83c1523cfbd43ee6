"""A pool of attention nodes under a virtual clock, sized by the real policy: for tests of its behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.scaler.pool_view import NodeUse, PendingKind, PoolView
from kernelflume.scaler.sizing import (
    Sizing,
    SizingAction,
    SizingState,
    after_change,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.scaling_policy import ScalingPolicy

TOKEN_BYTES = 100
LOOK_S = 0.5


@dataclass
class Load:
    """What clients do at one moment."""

    held_tokens: int
    num_tails: int
    waiting_tokens: int = 0


@dataclass
class PoolModel:
    """Tokens are spread evenly; a scale-up takes ``prewarm_s``, a drain ``drain_s``."""

    policy: ScalingPolicy
    capacity_tokens: int = 10_000
    step_s: float = 0.05
    prewarm_s: float = 2.0
    drain_s: float = 5.0
    fails: Callable[[int], bool] = lambda _: False
    """Told the number of a scale-up, says whether it fails."""
    num_nodes: int = 1
    now_s: float = 0.0
    state: SizingState = field(default_factory=SizingState)
    changes: list[tuple[float, int, str]] = field(default_factory=list)
    """(time, nodes, reason) of each change that was begun."""
    inputs: list[tuple[PoolView, SizingState]] = field(default_factory=list)
    decisions: list[Sizing] = field(default_factory=list)
    overfull_s: float = 0.0
    """Time for which the load did not fit the capacity."""
    _target: int | None = None
    _begun_at: float = 0.0
    _at_once: bool = False
    _is_ready: bool = False
    _num_attempts: int = 0

    def run(self, load: Callable[[float], Load], seconds: float) -> None:
        end = self.now_s + seconds
        while self.now_s < end:
            self.look(load(self.now_s))
            self.now_s += LOOK_S

    def look(self, load: Load) -> None:
        if load.held_tokens > self.num_nodes * self.capacity_tokens:
            self.overfull_s += LOOK_S
        self._proceed()
        view = self.view(load)
        self.inputs.append((view, self.state))
        sizing, self.state = size(view, self.state, self.policy, profile=None, token_bytes=TOKEN_BYTES)
        self.decisions.append(sizing)
        if sizing.action is SizingAction.SCALE:
            assert sizing.target != self.num_nodes
            assert self._target is None
            self.changes.append((self.now_s, sizing.target, str(sizing.reason)))
            self._target, self._begun_at = sizing.target, self.now_s
            self._at_once, self._is_ready = sizing.at_once, False
        elif sizing.action is SizingAction.PUBLISH:
            assert self._target is not None
            self._end(self._target)
        elif sizing.action is SizingAction.CANCEL:
            self.changes.append((self.now_s, self.num_nodes, str(sizing.reason)))
            self._end(self.num_nodes)

    def view(self, load: Load) -> PoolView:
        # Nodes that drain are not active: their tails have left, what they hold stays.
        num_active = min(self.num_nodes, self._target or self.num_nodes)
        share = [load.num_tails // num_active] * num_active
        share[0] += load.num_tails % num_active
        return PoolView(
            now_s=self.now_s,
            nodes=tuple(
                NodeUse(
                    node_id=f"a-{number}",
                    capacity_tokens=self.capacity_tokens,
                    held_tokens=load.held_tokens // self.num_nodes,
                    num_tails=tails,
                    growth_tokens_per_s=tails / self.step_s,
                )
                for number, tails in enumerate(share)
            ),
            num_requests=load.num_tails + bool(load.waiting_tokens),
            waiting_tokens=load.waiting_tokens,
            rows=load.num_tails,
            pending=self._pending(),
            is_pending_own=True,
            staleness_s=2 * LOOK_S,
        )

    def _pending(self) -> PendingKind | None:
        if self._target is None:
            return None
        if self._target < self.num_nodes:
            return PendingKind.DRAINING
        return PendingKind.READY if self._is_ready else PendingKind.GROWING

    def _proceed(self) -> None:
        if self._target is None:
            return
        age_s = self.now_s - self._begun_at
        if self._target < self.num_nodes:
            if age_s >= self.drain_s:
                self._end(self._target)
        elif age_s >= self.prewarm_s and not self._is_ready:
            self._num_attempts += 1
            if self.fails(self._num_attempts):
                self._end(self.num_nodes)
            elif self._at_once:
                self._end(self._target)
            else:
                self._is_ready = True

    def _end(self, num_nodes: int) -> None:
        grew = num_nodes > self.num_nodes
        self.num_nodes, self._target = num_nodes, None
        self.state = after_change(self.state, now_s=self.now_s, prewarm_s=self.prewarm_s if grew else None)
