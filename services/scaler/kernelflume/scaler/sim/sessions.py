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
    reused_tokens: int | None = None
    """Leading tokens that earlier turns of the session had as well; None: as many as those held."""
    blocks: tuple[int, ...] = ()
    """What the context consists of, where other sessions may begin with the same: names of its blocks."""
    block_tokens: int = 512

    @property
    def reusable_tokens(self) -> int:
        """Leading tokens that may have been computed before."""
        return self.context_tokens if self.reused_tokens is None else self.reused_tokens

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
