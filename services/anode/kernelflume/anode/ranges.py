"""Which token positions of a sequence are held here: another node may hold those in between."""

from __future__ import annotations

from kernelflume.core.errors import LifecycleError
from kernelflume.core.ranges import TokenRange


class HeldRanges:
    """Ascending token ranges of one sequence on this node. Owned by its ``HeldSequence``."""

    def __init__(self) -> None:
        self._ranges: list[TokenRange] = []
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Positions held."""
        return self._num_tokens

    @property
    def end(self) -> int:
        """Position behind the last one held; 0 when none is."""
        return self._ranges[-1].end if self._ranges else 0

    @property
    def ranges(self) -> tuple[TokenRange, ...]:
        """The ranges, ascending; two of them never touch."""
        return tuple(self._ranges)

    def index(self, start: int, num_tokens: int) -> int | None:
        """Return how many positions are held before ``start``; None if not all ``num_tokens`` from it are."""
        num_before = 0
        for held in self._ranges:
            if held.start <= start and start + num_tokens <= held.end:
                return num_before + start - held.start
            num_before += held.num_tokens
        return None

    def append(self, start: int, num_tokens: int) -> None:
        """Add positions [start, start + num_tokens); they may leave a gap, never go back.

        Raises:
            LifecycleError: a position is held already or lies before one that is; nothing was changed.
        """
        if num_tokens < 1 or start < self.end:
            raise LifecycleError(
                f"positions [{start}, {start + num_tokens}) cannot follow those up to {self.end}"
            )
        if self._ranges and start == self.end:
            self._ranges[-1] = TokenRange(self._ranges[-1].start, start + num_tokens)
        else:
            self._ranges.append(TokenRange(start, start + num_tokens))
        self._num_tokens += num_tokens

    def retract(self) -> None:
        """Take the last position away.

        Raises:
            LifecycleError: none is held.
        """
        if not self._ranges:
            raise LifecycleError("no position is held that could be taken away")
        last = self._ranges.pop()
        if last.end - last.start > 1:
            self._ranges.append(TokenRange(last.start, last.end - 1))
        self._num_tokens -= 1
