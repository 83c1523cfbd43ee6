"""Where KV lies: shards with a capacity, and what each session holds on them. Grown in closed form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.scaler.sim.sessions import Session, Turn


@dataclass(eq=False, slots=True)
class Shard:
    """An attention node, or all ranks of an instance together. Its engine alone changes it."""

    number: int
    capacity_tokens: int
    threshold_tokens: int
    """What it is planned with; the capacity where there is no plan."""
    ways: int = 1
    """Ranks that its tokens lie on evenly."""
    accepts: bool = True
    """Takes new ranges; false while it drains."""
    is_doomed: bool = False
    """Will be taken away, whatever it holds: it cannot be resumed."""
    tails: dict[int, Residence] = field(default_factory=dict)
    """Running sessions that append here, by number."""
    residents: dict[int, Residence] = field(default_factory=dict)
    """All sessions that hold tokens here."""
    base_held: int = 0
    """Tokens held at step ``base_step``; since then each tail has added one a step."""
    base_read: int = 0
    """As ``base_held``, of running sessions alone: idle ones are not read."""
    base_step: int = 0

    def held(self, step: int) -> int:
        """Return the tokens held after so many steps of the engine."""
        return self.base_held + len(self.tails) * (step - self.base_step)

    def read(self, step: int) -> int:
        """Return the tokens that a step reads."""
        return self.base_read + len(self.tails) * (step - self.base_step)

    def room(self, step: int) -> int:
        """Return the tokens that still fit."""
        return self.capacity_tokens - self.held(step)

    def settle(self, step: int) -> None:
        """Make ``step`` the base, before the number of tails changes."""
        grown = len(self.tails) * (step - self.base_step)
        self.base_held += grown
        self.base_read += grown
        self.base_step = step


@dataclass(eq=False, slots=True)
class Residence:
    """A session in an engine. The engine alone changes it."""

    session: Session
    turn_index: int
    asked_at_s: float
    """When the present turn asked; waiting counts from here."""
    parts: dict[Shard, int] = field(default_factory=dict)
    """Tokens on each shard, the tail's growth since ``tail_since_step`` not included."""
    tail: Shard | None = None
    """Where it appends; None unless it runs."""
    tail_since_step: int = 0
    finish_step: int = 0
    """The engine's step that decodes the turn's last token."""
    decoded: int = 0
    """Tokens of the turn that were decoded before it was last put aside."""
    joined: int = 0
    """Order of joining its engine: the newest gives way first."""
    idle_since_s: float = 0.0
    num_returns: int = 0
    """Times that it was put aside or moved."""

    @property
    def turn(self) -> Turn:
        """The present turn."""
        return self.session.turns[self.turn_index]

    @property
    def context_tokens(self) -> int:
        """Tokens that must be held before the next one can be decoded."""
        return self.turn.context_tokens + self.decoded

    @property
    def number(self) -> int:
        """The session's."""
        return self.session.number

    def held(self, step: int) -> int:
        """Return the tokens it holds on all shards."""
        return sum(self.parts.values()) + (step - self.tail_since_step if self.tail is not None else 0)
