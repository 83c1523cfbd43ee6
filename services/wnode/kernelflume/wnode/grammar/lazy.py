"""Matchers for an engine that may never need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.grammar.matcher import Matcher, MatcherSource


class LazyMatcherSource:
    """A ``MatcherSource`` that is made at its first use: its libraries take a second to import."""

    def __init__(self, folder: Path, *, vocab_size: int, eos_token_ids: frozenset[int], clock: Clock) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._source: MatcherSource | None = None

    def open(self, content: bytes) -> Matcher:
        """Return a matcher at the start of a text; see ``MatcherSource.open``."""
        if self._source is None:
            self._source = self._make()
        return self._source.open(content)

    def _make(self) -> MatcherSource:
        # Imported here, for it is this that takes the time.
        from kernelflume.checkpoint.vocabulary import load_vocabulary  # noqa: PLC0415 - see above
        from kernelflume.wnode.grammar.matcher import MatcherSource  # noqa: PLC0415 - see above
        from kernelflume.wnode.grammar.toolkit import GrammarToolkit  # noqa: PLC0415 - see above

        toolkit = GrammarToolkit(
            load_vocabulary(self._folder), vocab_size=self._vocab_size, eos_token_ids=self._eos_token_ids
        )
        return MatcherSource(toolkit, vocab_size=self._vocab_size, clock=self._clock)
