"""The decode step as a fixed program of kernels over one or more lanes (paper sections 5.1 and 5.2).

Nothing here knows a node, a range or a route: an ``AttentionStage`` sends queries off and brings the merged
attention back. With several lanes one computes while the attention of the others is under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name every PyTorch program uses

from kernelflume.wnode.gpu.kernels import gate, rms_norm, rotate_keys, rotate_queries
from kernelflume.wnode.model.linear import PlainLinear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernelflume.wnode.gpu.lane import LaneBuffers
    from kernelflume.wnode.model.decoder import Decoder
    from kernelflume.wnode.model.layer import DecoderLayer


class AttentionStage(Protocol):
    """Where the attention of one lane's rows is computed. Methods only enqueue on the current stream."""

    @property
    def query_first(self) -> bool:
        """Project and dispatch queries before keys and values are projected."""
        ...

    def dispatch_query(self, layer: int, num_rows: int, *, beside: bool) -> None:
        """Send ``lane.query`` of ``layer`` off; ``beside`` other lanes' work, where there are some.

        A lane alone has only its own keys and values to project then, and gains nothing: measured, kernels
        that compete with a put cost a layer 6 us.
        """
        ...

    def dispatch_keys_values(self, layer: int, num_rows: int) -> None:
        """Take note that ``lane.keys_values[layer]`` and ``lane.own_keys_values`` are complete."""
        ...

    def collect(self, layer: int, num_rows: int) -> None:
        """Bring the merged attention into ``lane.attention``."""
        ...

    def end(self, num_rows: int) -> None:
        """Finish the step: whatever travels once a step, and the counters."""
        ...


class StepProgram:
    """Enqueues one decode step of every lane. Owned by the thread that captures."""

    def __init__(
        self, decoder: Decoder, lanes: Sequence[LaneBuffers], stages: Sequence[AttentionStage]
    ) -> None:
        """Take a decoder on the GPU, and a stage for each lane."""
        self._decoder = decoder
        self._lanes = tuple(lanes)
        self._stages = tuple(stages)
        inverse = decoder.config.rope.inverse_frequencies(decoder.config.head_dim)
        self._inverse_frequencies = torch.from_numpy(inverse).to(decoder.device)

    def enqueue(self, num_rows: Sequence[int]) -> list[Tensor]:
        """Enqueue a step of ``num_rows`` rows a lane; return the lanes' logits, float32 [rows, vocab]."""
        config = self._decoder.config
        runs = [
            _LaneRun(self, lane, stage, rows, is_alone=sum(map(bool, num_rows)) == 1)
            for lane, stage, rows in zip(self._lanes, self._stages, num_rows, strict=True)
            if rows
        ]
        for layer in range(config.num_layers):
            for run in runs:
                run.project(layer)
        return [run.finish() for run in runs]

    def enqueue_ends(self, num_rows: int) -> None:
        """Enqueue, for the first lane, what a step has outside the layers; to be timed by itself."""
        _LaneRun(self, self._lanes[0], self._stages[0], num_rows, is_alone=True).choose()

    def enqueue_projections(self, num_rows: int) -> None:
        """Enqueue, for the first lane, all layers' projections of queries, keys and values; to be timed."""
        run = _LaneRun(self, self._lanes[0], self._stages[0], num_rows, is_alone=True)
        for layer in range(self._decoder.config.num_layers):
            run.dispatch(layer)
        self._stages[0].end(num_rows)  # what was forked off must come back within a capture

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of each row's angles: float32 [n, head_dim / 2]."""
        angles = positions.to(torch.float32).unsqueeze(-1) * self._inverse_frequencies
        return angles.cos(), angles.sin()

    @property
    def decoder(self) -> Decoder:
        """The model."""
        return self._decoder


class _LaneRun:
    """One lane's way through a step."""

    def __init__(
        self, program: StepProgram, lane: LaneBuffers, stage: AttentionStage, num_rows: int, *, is_alone: bool
    ) -> None:
        self._is_alone = is_alone
        self._decoder = program.decoder
        self._lane = lane
        self._stage = stage
        self._num_rows = num_rows
        self._hidden = F.embedding(lane.token_ids[:num_rows], self._decoder.embedding).to(self._decoder.dtype)
        self._cos, self._sin = program.rotation(lane.positions[:num_rows])
        self._delta: Tensor | None = None

    def project(self, layer: int) -> None:
        """Finish the layer before, and send off this layer's query, key and value."""
        if layer:
            self._finish_layer(layer - 1)
        self.dispatch(layer)

    def dispatch(self, layer: int) -> None:
        """Project a layer's query, key and value, and send them off."""
        weights, num_rows, lane = self._decoder.layers[layer], self._num_rows, self._lane
        normed = rms_norm(self._hidden, self._delta, weights.input_norm)
        if self._stage.query_first:
            self._rotate_query(weights, weights.query(normed))
            self._stage.dispatch_query(layer, num_rows, beside=not self._is_alone)
            key_value = weights.key_value(normed)
        else:
            query, key_value = project_together(weights, normed)
            self._rotate_query(weights, query)
        rotate_keys(
            key_value,
            self._cos,
            self._sin,
            weights.key_norm,
            lane.own_keys_values[:num_rows],
            lane.keys_values[layer, :num_rows],
        )
        if not self._stage.query_first:
            self._stage.dispatch_query(layer, num_rows, beside=not self._is_alone)
        self._stage.dispatch_keys_values(layer, num_rows)

    def finish(self) -> Tensor:
        """Finish the last layer; choose each row's next token; return the logits."""
        self._finish_layer(self._decoder.config.num_layers - 1)
        self._stage.end(self._num_rows)
        return self.choose()

    def choose(self) -> Tensor:
        """Choose each row's next token; return the logits."""
        normed = rms_norm(self._hidden, self._delta, self._decoder.final_norm)
        logits: Tensor = self._decoder.head(normed).float()
        torch.argmax(logits, -1, out=self._lane.token_ids[: self._num_rows])
        self._lane.positions[: self._num_rows].add_(1)
        return logits

    def _rotate_query(self, weights: DecoderLayer, projected: Tensor) -> None:
        out = self._lane.query[: self._num_rows]
        rotate_queries(projected, self._cos, self._sin, weights.query_norm, out)

    def _finish_layer(self, layer: int) -> None:
        weights, num_rows = self._decoder.layers[layer], self._num_rows
        self._stage.collect(layer, num_rows)
        attention = self._lane.attention[:num_rows].flatten(1)
        projected: Tensor = weights.output(attention)
        if weights.output_bias is not None:
            projected = projected + weights.output_bias
        normed = rms_norm(self._hidden, projected, weights.post_norm)
        down: Tensor = weights.down(gate(weights.gate_up(normed)))
        self._delta = down if weights.down_bias is None else down + weights.down_bias


def project_together(weights: DecoderLayer, normed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the projected queries and keys with values of ``normed`` [n, hidden], by one product.

    ``build_decoder`` has put their weights side by side, on a GPU.
    """
    query, key_value = weights.query, weights.key_value
    if not isinstance(query, PlainLinear) or not isinstance(key_value, PlainLinear):
        raise TypeError("weights on a GPU are not packed")
    width, hidden = query.weight.shape
    total = width + key_value.weight.shape[0]
    together = query.weight.as_strided((total, hidden), (hidden, 1))
    first, rest = F.linear(normed, together).split((width, total - width), dim=1)
    if query.bias is not None and key_value.bias is not None:
        first, rest = first + query.bias, rest + key_value.bias
    return first, rest
