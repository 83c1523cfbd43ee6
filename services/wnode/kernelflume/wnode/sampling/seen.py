"""The tokens that penalties count, kept as arrays so that a step only has to join them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


class SeenTokens:
    """Each token of a prompt and its output once, with how often the output has it. Owned by one sequence."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._tokens: Integers = np.unique(np.fromiter(prompt, np.int64))
        self._counts: Integers = np.zeros_like(self._tokens)
        self._places = {int(token): place for place, token in enumerate(self._tokens)}

    def add(self, token: int) -> None:
        """Take note of a token of the output."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            room = max(8, place)
            self._tokens = np.concatenate((self._tokens, np.zeros(room, np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(room, np.int64)))
        self._tokens[place] = token
        self._counts[place] += 1

    @property
    def tokens(self) -> Integers:
        """The tokens, [n]; a view."""
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> Integers:
        """How often the output has each, [n]; a view."""
        return self._counts[: len(self._places)]
