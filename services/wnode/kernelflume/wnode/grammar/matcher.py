"""How far one text has come in its grammar, and which tokens may follow."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.wnode.grammar.toolkit import new_matcher

if TYPE_CHECKING:
    from collections.abc import Collection

    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.grammar.toolkit import CompiledGrammar, GrammarMatcher, GrammarToolkit

logger = logging.getLogger(__name__)

_FREE_S = 0.01
"""Processor time that a matcher may take for a token; most take a hundredth of it."""
_ALLOWANCE_S = 1.0
"""Processor time beyond that which one text may take in all: every other request waits meanwhile."""
_MAX_CACHED = 64
_MAX_CACHED_BYTES = 64 * 1024 * 1024


class Matcher:
    """Follows one text. Used by the step loop alone; whatever happens in it concerns its own request only."""

    def __init__(self, matcher: GrammarMatcher, *, vocab_size: int, clock: Clock) -> None:
        self._matcher = matcher
        self._clock = clock
        self._words = np.zeros((1, -(-vocab_size // 32)), np.int32)
        self._view = torch.from_numpy(self._words)
        self._overspent_s = 0.0
        self.failure = ""
        """Why the text cannot go on; empty while it can."""

    def allowed_words(self) -> np.ndarray:
        """Return which tokens may come next, one bit each: int32 [vocab / 32], valid until the next call.

        All may once the text cannot go on: ``accept`` then says so.
        """
        started = self._clock.now()
        if not self.failure:
            try:
                self._matcher.fill_next_token_bitmask(self._view, 0)
            except RuntimeError as error:
                self._fail(f"the grammar cannot be followed any more: {error}")
            if not self._words.any():
                self._fail("the grammar allows no token here")
            self._spend(started)
        words: np.ndarray = self._words[0]
        return words

    def allows_only(self, tokens: Collection[int]) -> bool:
        """Tell whether all that ``allowed_words`` found last is among these."""
        words = self._words[0].copy()
        for token in tokens:
            words[token // 32] &= ~np.int32(np.uint32(1 << token % 32).astype(np.int32))
        return not words.any()

    def accept(self, token: int) -> bool:
        """Go on by a token; False, with the ``failure`` set, where the text cannot go on."""
        started = self._clock.now()
        if not self.failure:
            try:
                if not self._matcher.accept_token(token):
                    self._fail(f"the grammar does not allow token {token} here")
            except RuntimeError as error:
                self._fail(f"the grammar cannot be followed any more: {error}")
            self._spend(started)
        return not self.failure

    def _spend(self, started_at_s: float) -> None:
        self._overspent_s += max(0.0, self._clock.now() - started_at_s - _FREE_S)
        if self._overspent_s > _ALLOWANCE_S:
            self._fail("the grammar takes too long to follow")

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._words.fill(-1)


class MatcherSource:
    """Makes matchers from compiled grammars, and keeps the latest of these. Used by one thread."""

    def __init__(self, toolkit: GrammarToolkit, *, vocab_size: int, clock: Clock) -> None:
        self._toolkit = toolkit
        self._vocab_size = vocab_size
        self._clock = clock
        self._compiled: OrderedDict[bytes, tuple[CompiledGrammar, int]] = OrderedDict()
        self._num_bytes = 0

    def open(self, content: bytes) -> Matcher:
        """Return a matcher at the start of a text.

        Args:
            content: what ``GrammarToolkit.compile`` gave.
        """
        key = hashlib.sha256(content).digest()
        found = self._compiled.pop(key, None)
        if found is None:
            found = (self._toolkit.load(content), len(content))
            self._num_bytes += len(content)
        self._compiled[key] = found
        while len(self._compiled) > _MAX_CACHED or (
            self._num_bytes > _MAX_CACHED_BYTES and len(self._compiled) > 1
        ):
            _, (_, size) = self._compiled.popitem(last=False)
            self._num_bytes -= size
        return Matcher(new_matcher(found[0]), vocab_size=self._vocab_size, clock=self._clock)
