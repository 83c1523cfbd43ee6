"""The tokens of one lane: which inputs lie on the device, and what the host reads of those chosen there."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.wnode.gpu.captured_steps import MAX_UNDER_WAY
from kernelflume.wnode.gpu.lane_draws import LaneDraws

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from kernelflume.wnode.batch import Chunk
    from kernelflume.wnode.gpu.lane import LaneBuffers
    from kernelflume.wnode.gpu.step_stream import StepStream

    InputKey = tuple[int, int]
    """A sequence and its number of tokens, the input itself among them."""


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    """One step's tokens of a lane, on their way to the host."""

    tokens: Tensor
    """[max_rows] int64, pinned."""
    draws: LaneDraws


class LaneTokens:
    """Owned by the step loop's thread. Two steps may be under way: what the host reads is kept twice."""

    def __init__(self, lane: LaneBuffers, stream: StepStream) -> None:
        """Allocate the host's side."""
        self._lane = lane
        self._stream = stream
        device = lane.token_ids.device
        self._outputs = deque(
            ChosenTokens(
                stream.pinned(torch.zeros(lane.max_rows, dtype=torch.int64)), LaneDraws(lane.max_rows, device)
            )
            for _ in range(MAX_UNDER_WAY)
        )
        self._inputs: tuple[InputKey, ...] = ()

    @property
    def token_ids(self) -> Tensor:
        """[max_rows] int64 on the device."""
        return self._lane.token_ids

    @property
    def inputs(self) -> tuple[InputKey, ...]:
        """What lies there, row by row, once all that was enqueued is done."""
        return self._inputs

    def has(self, chunks: Sequence[Chunk]) -> bool:
        """True when the inputs of these rows are there, in their order."""
        return self._inputs == input_keys(chunks)

    def upload(self, chunks: Sequence[Chunk]) -> None:
        """Bring tokens that the host knows to the device."""
        known = [chunk.sequence.tokens(chunk.start, chunk.end)[0] for chunk in chunks]
        self._copy(self._lane.token_ids, known)
        self._put_positions(chunks)

    def gather(self, chunks: Sequence[Chunk], pool: Tensor, places: Mapping[InputKey, int]) -> None:
        """Bring tokens that only the device knows, or will know, to these rows; enqueues only.

        Args:
            chunks: the rows.
            pool: int64 tokens on the device, complete by then.
            places: where in the pool each input is.
        """
        index = self._pinned([places[key] for key in input_keys(chunks)])
        self._stream.enqueue(partial(_take, self._lane.token_ids[: len(chunks)], pool, index))
        self._put_positions(chunks)

    def warm(self, pool: Tensor) -> None:
        """Do once what ``gather`` does: the first launch of a kernel may wait for a step under way."""
        self._stream.enqueue(partial(_take, self._lane.token_ids[:1], pool, self._pinned([0])))

    def forget(self) -> None:
        """Take note that nothing there is what was planned."""
        self._inputs = ()

    def choose(self, chunks: Sequence[Chunk], logits: Tensor, *, draws: bool) -> ChosenTokens:
        """Enqueue, behind a step of these rows, what the host reads of it.

        Args:
            chunks: the rows.
            logits: [rows or more, vocab] float32, as the step leaves them.
            draws: draw where requests want that; else the likeliest tokens stay.
        """
        lane, output = self._lane, self._outputs[0]
        self._outputs.rotate(-1)
        if draws:
            sequences = [chunk.sequence for chunk in chunks]
            self._stream.enqueue(
                partial(output.draws.enqueue, sequences, logits, lane.token_ids, lane.positions)
            )
        self._stream.enqueue(partial(output.tokens.copy_, lane.token_ids, non_blocking=True))
        self._inputs = tuple((sequence_id, num_tokens + 1) for sequence_id, num_tokens in input_keys(chunks))
        return output

    def _put_positions(self, chunks: Sequence[Chunk]) -> None:
        self._copy(self._lane.positions, [chunk.start for chunk in chunks])

    def _copy(self, target: Tensor, values: Sequence[int]) -> None:
        self._stream.enqueue(partial(target[: len(values)].copy_, self._pinned(values), non_blocking=True))

    def _pinned(self, values: Sequence[int]) -> Tensor:
        return self._stream.pinned(torch.from_numpy(np.array(values, np.int64)))


def input_keys(chunks: Sequence[Chunk]) -> tuple[InputKey, ...]:
    """Name the input of each row."""
    return tuple((chunk.sequence.sequence_id, chunk.end) for chunk in chunks)


def _take(target: Tensor, pool: Tensor, index: Tensor) -> None:
    target.copy_(pool[index.to(pool.device, non_blocking=True)])
