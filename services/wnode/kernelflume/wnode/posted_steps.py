"""Steps computed layer by layer, each write posted by this process: prompts, and what has no graph."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from kernelflume.tensor.kv_format import round_to_format
from kernelflume.wnode.attention import SelfAttention
from kernelflume.wnode.exchange import StepExchange
from kernelflume.wnode.sampler import Sampled, sample
from kernelflume.wnode.sampling.logprobs import RawLogprobs

if TYPE_CHECKING:
    from kernelflume.core.errors import PeerLostError
    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.batch import Chunk, StepBatch
    from kernelflume.wnode.kernel_threads import KernelThreads
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.model.decoder import Decoder, StepState
    from kernelflume.wnode.step_clock import StepClock

_PROMPT_ROWS_AT_ONCE = 64
"""Rows of a prompt whose logits are computed together; at 128k tokens each they take 32 MiB."""


class PostedSteps:
    """Owned by the step loop's thread."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        kv_dtype: torch.dtype,
        links: LinkTable,
        kernel_threads: KernelThreads,
        clock: Clock,
        step_clock: StepClock,
        eos_token_ids: frozenset[int],
    ) -> None:
        """Take what computes and exchanges; ``step_clock`` is marked around every part of a layer."""
        self._decoder = decoder
        self._kv_dtype = kv_dtype
        self._links = links
        self._kernel_threads = kernel_threads
        self._clock = clock
        self._step_clock = step_clock
        self._eos_token_ids = eos_token_ids

    def run(self, batch: StepBatch, step: int) -> tuple[list[Chunk], Sampled, list[PeerLostError]]:
        """Run all layers; return the chunks that end in a new token, these, and nodes lost while storing.

        Raises:
            PeerLostError: a node is gone or did not answer; nothing was stored for this step.
        """
        decoder, config, clock = self._decoder, self._decoder.config, self._step_clock
        device = decoder.device
        exchange = StepExchange(batch, self._links, step, device)
        num_rows = batch.num_rows
        own_attention = SelfAttention(
            [chunk.num_rows for chunk in batch.chunks],
            config.num_query_heads,
            config.num_kv_heads,
            config.head_dim,
        )
        with torch.inference_mode():
            token_ids, positions = (
                torch.from_numpy(ids).to(device) for ids in (batch.token_ids(), batch.positions())
            )
            state = decoder.begin(token_ids, positions)
            keys_values = torch.empty(
                (config.num_layers, num_rows, 2, config.num_kv_heads, config.head_dim),
                dtype=decoder.dtype,
                device=device,
            )
            clock.mark()
            for layer in range(config.num_layers):
                query = decoder.project_query(layer, state)
                clock.mark()
                exchange.dispatch_query(layer, query)
                clock.mark()
                with self._kernel_threads.beside_attention() if exchange.has_readers else nullcontext():
                    key, value = decoder.project_kv(layer, state, out=keys_values[layer])
                    # What attention nodes will hold, so that it does not matter who attends to it, or when.
                    round_to_format(keys_values[layer], self._kv_dtype)
                    own = own_attention.attend(query, key, value)
                exchange.stream_kv(layer, keys_values)
                clock.mark()
                attention = exchange.collect_partials(layer, own)
                decoder.finish_layer(layer, state, attention.view(num_rows, -1))
                clock.mark()
            clock.end_layers(waited_s=self._links.waited_s)
            lost = self._dispatch_kv(exchange, keys_values)
            rows, chunks = batch.sampling_rows()
            self._tell_prompts(batch, state)
            if not rows:
                return [], Sampled([]), lost
            logits = decoder.logits(
                state, torch.tensor(rows, device=device) if len(rows) < num_rows else None
            )
            sampled = sample(logits, [chunk.sequence for chunk in chunks], self._eos_token_ids)
        return chunks, sampled, lost

    def _dispatch_kv(self, exchange: StepExchange, keys_values: torch.Tensor) -> list[PeerLostError]:
        traffic = self._links.kv_traffic
        started = self._clock.now()
        lost = exchange.dispatch_kv(keys_values)
        exposed_s = self._clock.now() - started
        if exchange.streams_kv:
            traffic.layer_exposed_s += exposed_s
        else:
            traffic.step_exposed_s += exposed_s
        return lost

    def _tell_prompts(self, batch: StepBatch, state: StepState) -> None:
        """Note how likely prompt tokens were, for the requests that asked; a few rows' logits at a time."""
        for chunk, rows in batch.prompt_rows():
            sequence = chunk.sequence
            num_top = sequence.sampling.prompt_logprobs or 0
            for first in range(0, len(rows), _PROMPT_ROWS_AT_ONCE):
                part = rows[first : first + _PROMPT_ROWS_AT_ONCE]
                logits = self._decoder.logits(state, torch.tensor(part, device=self._decoder.device))
                told = len(sequence.prompt_logprobs) + 1
                tokens = sequence.prompt[told : told + len(part)]
                sequence.prompt_logprobs += RawLogprobs(logits, [num_top] * len(part)).of(tokens)
