"""Tokens and words that follow from a seed, a name and a place: the same wherever the same is asked for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernelflume.cli.bench.workload import HashedPrompt

_WORDS = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face others level office door health
person art war history party result change morning reason research girl guy moment air teacher force
education
""".split()  # noqa: SIM905 - nobody reads them one by one
"""Common enough to be one token each in most vocabularies, with the space before."""


class TokenSource:
    """Draws token ids by a counter-based generator, so that no block needs those before it."""

    def __init__(self, seed: int, low: int, high: int) -> None:
        """Take ids from ``low`` to ``high``, the latter not included: no special tokens should lie there."""
        self._seed = seed
        self._low = low
        self._span = high - low

    def prompt_ids(self, prompt: HashedPrompt) -> NDArray[np.int64]:
        """Return a prompt's ids, shape [num_tokens]."""
        keys = np.concatenate(
            [np.arange(first, first + count, dtype=np.uint64) for first, count in prompt.runs]
            or [np.zeros(0, np.uint64)]
        )
        starts = np.floor(np.arange(len(keys) + 1) * prompt.block_tokens).astype(np.int64)
        num_in_blocks = min(prompt.num_tokens, int(starts[-1]))
        positions = np.arange(num_in_blocks)
        blocks = np.searchsorted(starts, positions, side="right") - 1
        ids = self._draw(prompt.namespace, keys[blocks], positions - starts[blocks])
        tail = self.text_ids(prompt.tail, 0, prompt.num_tokens - num_in_blocks)
        return np.concatenate([ids, tail])

    def text_ids(self, name: str, part: int, num_tokens: int) -> NDArray[np.int64]:
        """Return ids of part ``part`` of what has this name, shape [num_tokens]."""
        return self._draw(name, np.full(num_tokens, part, np.uint64), np.arange(num_tokens))

    def _draw(self, name: str, keys: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        digest = hashlib.blake2b(f"{self._seed}:{name}".encode(), digest_size=8).digest()
        base = np.uint64(int.from_bytes(digest, "big"))
        mixed = _mix(_mix(keys ^ base) + offsets.astype(np.uint64))
        return (mixed % np.uint64(self._span)).astype(np.int64) + self._low


def words_of(ids: NDArray[np.int64]) -> str:
    """Return one common word for each id, for endpoints that take text only."""
    return " ".join(_WORDS[place] for place in (ids % len(_WORDS)).tolist())


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output of SplitMix64 for each state."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
