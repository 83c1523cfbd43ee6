"""The clock of one simulation, and all that is measured on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.scaler.sim.measures import Billing, Histogram, StepMeter, Timeline

if TYPE_CHECKING:
    from kernelflume.scaler.sim.events import EventQueue
    from kernelflume.scaler.sim.prefix_cache import PrefixCache
    from kernelflume.scaler.sim.sessions import Session, Turn


@dataclass(kw_only=True)
class World:
    """What one simulation measures, and its clock. Clusters write to it, the simulation reads."""

    queue: EventQueue
    slo_s: float
    keeps_kv: bool
    """Between turns."""
    prefill_tokens_per_s: float | None
    token_bytes: int = 1
    cache: PrefixCache | None = None
    fetch_bytes_per_s: float | None = None
    """Of the cache; None for at once."""
    prefilled_tokens: int = 0
    fetched_tokens: int = 0
    """Of the cache, in place of prefilling them."""
    meter: StepMeter = field(init=False)
    billing: Billing = field(default_factory=Billing)
    timeline: Timeline = field(default_factory=Timeline)
    turns: Histogram = field(default_factory=Histogram)
    """Seconds a token of whole turns, waiting included, a token each."""
    num_tokens_within: int = 0
    """Tokens of turns within the objective."""
    num_turns: int = 0
    refused_tokens: int = 0
    """Of sessions that no engine could ever hold."""
    num_put_aside: int = 0
    """Times that a running session gave way in a full pool."""
    num_preempted: int = 0
    """Nodes that their provider took away."""
    recomputed_tokens: int = 0
    """Of sessions that gave way or lost their KV: to be prefilled once more."""
    num_moved: int = 0
    """Times that a session moved to another instance."""
    num_waits: int = 0
    """Turns that found no room when they asked."""

    def __post_init__(self) -> None:
        self.meter = StepMeter(self.slo_s)

    def prefill_s(self, session: Session, turn: Turn, context_tokens: int, missing_tokens: int) -> float:
        """Return how long a context takes to be there, and count what is prefilled and fetched.

        Args:
            session: whose.
            turn: whose.
            context_tokens: of the turn now: more than at its beginning once it has been put aside.
            missing_tokens: of them that no node holds.
        """
        hit = self.cache.hit_tokens(session, turn) if self.cache is not None else 0
        fetched = min(missing_tokens, max(0, hit - (context_tokens - missing_tokens)))
        self.fetched_tokens += fetched
        self.prefilled_tokens += missing_tokens - fetched
        seconds = 0.0
        if self.fetch_bytes_per_s:
            seconds += fetched * self.token_bytes / self.fetch_bytes_per_s
        if self.prefill_tokens_per_s:
            seconds += (missing_tokens - fetched) / self.prefill_tokens_per_s
        return seconds
