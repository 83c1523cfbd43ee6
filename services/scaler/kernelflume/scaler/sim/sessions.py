"""What is asked of a decoder: sessions of turns. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Turn:
    """One call: a context that is there when decoding begins, and the tokens decoded."""

    context_tokens: int
    """Tokens of the prompt, earlier turns included."""
    output_tokens: int
    think_s: float = 0.0
    """Seconds that the client waits before it, counted from the end of the turn before."""

    @property
    def peak_tokens(self) -> int:
        """Tokens held when its last token is decoded."""
        return self.context_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow each other."""

    number: int
    """Its place in the workload, by which equal times are ordered."""
    turns: tuple[Turn, ...]
    start_s: float = 0.0
    """Arrival, where the trace has one."""
    peak_tokens: int = field(init=False)
    """The most tokens that it ever holds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_tokens", max(turn.peak_tokens for turn in self.turns))

    @property
    def output_tokens(self) -> int:
        """Tokens decoded in all turns."""
        return sum(turn.output_tokens for turn in self.turns)
