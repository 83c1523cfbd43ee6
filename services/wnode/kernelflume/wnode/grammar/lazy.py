"""Matchers for an engine that may never need one."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.grammar.matcher import Matcher, MatcherSource


logger = logging.getLogger(__name__)


class LazyMatcherSource:
    """A ``MatcherSource`` that is made at its first use, if not before: its libraries take long to import."""

    def __init__(self, folder: Path, *, vocab_size: int, eos_token_ids: frozenset[int], clock: Clock) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._source: MatcherSource | None = None
        self._making = threading.Lock()

    def prepare(self) -> None:
        """Begin to make the source in a thread of its own."""
        threading.Thread(target=self._prepare, name="matchers", daemon=True).start()

    def open(self, content: bytes) -> Matcher:
        """Return a matcher at the start of a text; see ``MatcherSource.open``."""
        return self._made().open(content)

    def _prepare(self) -> None:
        try:
            self._made()
        except ImportError as error:
            # Without the library no grammar is compiled, so none comes here.
            logger.info("grammars are not prepared for: %s", error)

    def _made(self) -> MatcherSource:
        with self._making:
            if self._source is None:
                self._source = self._make()
            return self._source

    def _make(self) -> MatcherSource:
        # Imported here, for it is this that takes the time.
        from kernelflume.checkpoint.vocabulary import load_vocabulary  # noqa: PLC0415 - see above
        from kernelflume.wnode.grammar.matcher import MatcherSource  # noqa: PLC0415 - see above
        from kernelflume.wnode.grammar.toolkit import GrammarToolkit  # noqa: PLC0415 - see above

        toolkit = GrammarToolkit(
            load_vocabulary(self._folder), vocab_size=self._vocab_size, eos_token_ids=self._eos_token_ids
        )
        return MatcherSource(toolkit, vocab_size=self._vocab_size, clock=self._clock)
