"""Which sequence of this weight node is about to compute what a waiting one needs as well. Pure.

Nobody who waits loses by it: the one it would wait for is ahead of it, and what steps have room for goes to
prompts in that order. It is told of, and its blocks found, some steps later.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Items

    from kernelflume.wnode.sequence import Sequence

MAX_FOLLOWED = 4
"""How often a sequence waits for another: each may be cancelled before it has computed anything."""


@dataclass(frozen=True, slots=True)
class Lead:
    """What a sequence has in common with one ahead of it."""

    sequence: Sequence
    num_tokens: int
    """Of the beginning that both have, in whole blocks."""


def find_lead(sequence: Sequence, ahead: Iterable[Sequence]) -> Lead | None:
    """Return the one that has most in common with a sequence, the first of several; None where none has.

    Args:
        sequence: one whose blocks have their keys.
        ahead: those that are about to compute their prompts before it runs.
    """
    keys = sequence.keys
    if keys is None:
        return None
    lead, most = None, 0
    for other in ahead:
        if most == len(keys.keys):
            break
        if other.keys is None or other.keys.block_tokens != keys.block_tokens:
            continue
        num_blocks = num_common(keys.keys, other.keys.keys)
        if num_blocks > most:
            lead, most = other, num_blocks
    return None if lead is None else Lead(lead, most * keys.block_tokens)


def num_common(keys: Items[bytes], others: Items[bytes]) -> int:
    """Return how many blocks two contexts begin with alike: where keys are equal all before is."""
    if keys[:1] != others[:1]:  # as of most
        return 0
    num_both = min(len(keys), len(others))
    return bisect_left(range(num_both), True, key=lambda block: keys[block] != others[block])
