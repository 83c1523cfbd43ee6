"""What one step computes: rows of running sequences, and where each row's keys and values will go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.wnode.sequence import Sequence


@dataclass(frozen=True, slots=True)
class KvWrite:
    """Consecutive rows of one chunk whose keys and values go to one node."""

    node_id: str
    num_rows: int
    num_new_pages: int
    """Pages that the node will take for them."""
    opens_range: bool
    """True when the rows start a new token range, so that the range before is sealed."""

    def joined(self, other: KvWrite) -> KvWrite:
        """Return this write with the rows of one that goes on in the same range."""
        return KvWrite(
            self.node_id,
            self.num_rows + other.num_rows,
            self.num_new_pages + other.num_new_pages,
            self.opens_range,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence: one row while decoding, many while prefilling.

    It says where the sequence stands when the step begins, which may be a token further than is known yet.
    """

    sequence: Sequence
    start: int
    """Position of the first row's token."""
    num_rows: int
    route: SequenceRoute
    """Where the tokens before ``start`` are."""
    writes: tuple[KvWrite, ...]
    samples: bool
    """True when the last row is the sequence's last token, so that the next one is chosen."""

    @classmethod
    def of(cls, sequence: Sequence, num_rows: int, writes: tuple[KvWrite, ...]) -> Self:
        """Compute a sequence's next known tokens."""
        start = sequence.num_computed
        samples = start + num_rows == sequence.num_tokens
        return cls(sequence, start, num_rows, sequence.route, writes, samples)

    def next(self, writes: tuple[KvWrite, ...]) -> Chunk:
        """Return the decode row behind this one: its token is the one that this chunk chooses."""
        return Chunk(self.sequence, self.end, 1, self.route_after(), writes, samples=True)

    @property
    def end(self) -> int:
        """Position behind the last row's token."""
        return self.start + self.num_rows

    @property
    def is_known(self) -> bool:
        """True when the rows' tokens are known, and not yet to be chosen by the step under way."""
        return self.end <= self.sequence.num_tokens

    def route_after(self) -> SequenceRoute:
        """Return where the tokens up to ``end`` are once the step is done."""
        return extended(self.route, self.writes)


def extended(route: SequenceRoute, writes: Iterable[KvWrite]) -> SequenceRoute:
    """Return a route with the rows that were written behind its tokens."""
    for write in writes:
        if write.opens_range:
            route = route.with_tail(write.node_id)
        route = route.extended(write.num_rows)
    return route


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one step, chunk after chunk."""

    chunks: tuple[Chunk, ...]

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> StepBatch:
        """Order chunks so that the rows of one attention node lie side by side as far as possible.

        Rows side by side are sent and merged where they lie; scattered ones are gathered in every layer.
        """
        return cls(tuple(sorted(chunks, key=lambda chunk: sorted(chunk.route.node_ids))))

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return sum(chunk.num_rows for chunk in self.chunks)

    def token_ids(self) -> np.ndarray:
        """Return [num_rows] int64 input tokens."""
        return np.fromiter(
            (token for chunk in self.chunks for token in chunk.sequence.tokens(chunk.start, chunk.end)),
            np.int64,
            self.num_rows,
        )

    def positions(self) -> np.ndarray:
        """Return [num_rows] int64 token positions."""
        return np.concatenate([np.arange(chunk.start, chunk.end, dtype=np.int64) for chunk in self.chunks])

    def prompt_rows(self) -> list[tuple[Chunk, list[int]]]:
        """Return the rows that tell how likely the next token of a prompt was, by chunk, where wanted."""
        found: list[tuple[Chunk, list[int]]] = []
        end = 0
        for chunk in self.chunks:
            begin, end = end, end + chunk.num_rows
            sequence = chunk.sequence
            if not sequence.wants_prompt_logprobs:
                continue
            # Rows from before a restart were told already; the prompt's last row is about the first output.
            first = max(chunk.start, len(sequence.prompt_logprobs))
            last = min(chunk.end, len(sequence.prompt) - 1)
            if first < last:
                found.append((chunk, list(range(begin + first - chunk.start, begin + last - chunk.start))))
        return found

    def sampling_rows(self) -> tuple[list[int], list[Chunk]]:
        """Return the rows whose logits are needed and their chunks."""
        rows: list[int] = []
        chunks: list[Chunk] = []
        end = 0
        for chunk in self.chunks:
            end += chunk.num_rows
            if chunk.samples:
                rows.append(end - 1)
                chunks.append(chunk)
        return rows, chunks
