"""Decode rows for tests of the weight node."""

from __future__ import annotations

from kernelflume.core.ranges import SequenceRoute
from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.batch import Chunk, KvWrite
from kernelflume.wnode.sequence import Sequence


def chunk(sequence_id: int, held: dict[str, int], tail: str, *, new_pages: int = 0) -> Chunk:
    """A decode row whose sequence holds so many tokens on each node, in order, and writes to ``tail``."""
    route = SequenceRoute()
    for node_id, num_tokens in held.items():
        route = route.with_tail(node_id).extended(num_tokens)
    num_held = sum(held.values())
    sequence = Sequence(f"r{sequence_id}", [1] * (num_held + 1), SamplingParameters(), 0)
    sequence.sequence_id, sequence.num_computed, sequence.route = sequence_id, num_held, route
    opens = not held or list(held)[-1] != tail
    return Chunk.of(sequence, 1, (KvWrite(tail, 1, new_pages, opens),))
