"""Drawing a lane's tokens in stream order, behind its captured step and while that still runs.

Nothing here waits for the device or looks at its values, so the host enqueues all of it during the step, and
the tokens are the next step's inputs without a way through the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelflume.wnode.sampling.draw import DrawTable, draw_any, draw_filtered

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from torch import Tensor

    from kernelflume.wnode.sequence import Sequence

HEAD = 1024
"""Likeliest tokens in which filters must end; a row in which they do not is drawn again, from all."""


@dataclass(frozen=True, slots=True)
class DrawRows:
    """What a step's rows ask for, on the device."""

    table: DrawTable
    """Of all rows; what it says of greedy rows is not used."""
    drawn: Tensor
    """[n] bool: the row is not greedy."""
    filtered: Tensor
    """[n] bool: the row has a top_k or top_p."""
    has_filters: bool
    """Some row has."""

    @classmethod
    def of(cls, sequences: Sequence_[Sequence], device: torch.device) -> DrawRows:
        """Upload what these sequences ask for."""
        table = DrawTable.of(sequences, torch.device("cpu"))
        drawn = table.temperature > 0.0
        table.temperature[~drawn] = 1.0
        filtered = table.has_filters & drawn
        return cls(
            table.to(device), _to(drawn, device), _to(filtered, device), has_filters=bool(filtered.any())
        )


def choose(logits: Tensor, likeliest: Tensor, positions: Tensor, rows: DrawRows) -> tuple[Tensor, Tensor]:
    """Choose each row's token, enqueueing only.

    Args:
        logits: [n, vocab] float32.
        likeliest: [n] int64, each row's largest logit.
        positions: [n] int64: place of the new token in its sequence.
        rows: what they ask for.

    Returns:
        ([n] int64 tokens, [n] bool: the row is settled).
    """
    table = rows.table.at(positions)
    tokens = draw_any(logits, table)
    settled = torch.ones_like(rows.drawn)
    if rows.has_filters:
        among, settled = draw_filtered(logits, table, head=min(HEAD, logits.shape[1]))
        tokens = torch.where(rows.filtered, among, tokens)
        settled |= ~rows.filtered
    return torch.where(rows.drawn, tokens, likeliest), settled


class LaneDraws:
    """Draws for one lane. Owned by the step loop's thread."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._device = device
        settled = torch.ones(max_rows, dtype=torch.bool)
        self._settled = settled.pin_memory() if device.type == "cuda" else settled
        self._sequences: tuple[tuple[int, bool], ...] = ()
        self._rows: DrawRows | None = None
        self._drew = False

    def enqueue(
        self, sequences: Sequence_[Sequence], logits: Tensor, token_ids: Tensor, positions: Tensor
    ) -> None:
        """Put the drawn tokens in the place of the likeliest, where all rows want no more than that.

        Args:
            sequences: of the lane's rows.
            logits: [rows or more, vocab] float32 of the step.
            token_ids: [rows or more] int64: the likeliest tokens, as the step left them; changed.
            positions: [rows or more] int64: as the step left them.
        """
        self._drew = not all(sequence.is_plain for sequence in sequences) and all(
            sequence.is_simple for sequence in sequences
        )
        if not self._drew:
            return
        count = len(sequences)
        wanted = tuple((sequence.sequence_id, sequence.sampling.is_greedy) for sequence in sequences)
        if self._rows is None or self._sequences != wanted:
            self._rows, self._sequences = DrawRows.of(sequences, self._device), wanted
        with torch.inference_mode():
            tokens, settled = choose(logits[:count], token_ids[:count], positions[:count], self._rows)
            token_ids[:count].copy_(tokens)
            self._settled[:count].copy_(settled, non_blocking=True)

    def unsettled(self, sequences: Sequence_[Sequence]) -> list[int] | None:
        """Return the rows whose token is not chosen yet, once the step is done; None where no row is."""
        if self._drew:
            return [row for row, done in enumerate(self._settled[: len(sequences)].tolist()) if not done]
        return [] if all(sequence.is_plain for sequence in sequences) else None


def _to(values: Tensor, device: torch.device) -> Tensor:
    # From pinned memory, for any other copy waits for the step under way.
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
