"""Runs a decoder with plain dense attention, as an oracle for the split model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor

    from kernelflume.wnode.model.decoder import Decoder


class DenseSequence:
    """One sequence and all its keys and values."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        config = decoder.config
        shape = (0, 2, config.num_kv_heads, config.head_dim)
        self._kv = [torch.empty(shape, dtype=decoder.dtype) for _ in range(config.num_layers)]
        self.num_tokens = 0

    def extend(self, token_ids: list[int]) -> Tensor:
        """Run ``token_ids`` after what came before; return the logits of each [n, vocab]."""
        decoder, n = self._decoder, len(token_ids)
        positions = torch.arange(self.num_tokens, self.num_tokens + n)
        state = decoder.begin(torch.tensor(token_ids), positions)
        for layer in range(decoder.config.num_layers):
            query = decoder.project_query(layer, state)
            new = torch.empty(n, 2, decoder.config.num_kv_heads, decoder.config.head_dim, dtype=decoder.dtype)
            decoder.project_kv(layer, state, new)
            self._kv[layer] = torch.cat((self._kv[layer], new))
            key, value = self._kv[layer].unbind(1)
            visible = torch.arange(len(key)) <= positions.unsqueeze(1)  # [n, tokens]
            attention = scaled_dot_product_attention(
                query.transpose(0, 1).unsqueeze(0),
                key.transpose(0, 1).unsqueeze(0),
                value.transpose(0, 1).unsqueeze(0),
                attn_mask=visible,
                enable_gqa=True,
            )
            decoder.finish_layer(layer, state, attention.squeeze(0).transpose(0, 1).flatten(1))
        self.num_tokens += n
        return decoder.logits(state)


def greedy(decoder: Decoder, prompt: list[int], num_tokens: int) -> list[int]:
    """Return the next ``num_tokens`` tokens, each the most likely one."""
    sequence = DenseSequence(decoder)
    logits = sequence.extend(prompt)
    found: list[int] = []
    for _ in range(num_tokens):
        found.append(int(logits[-1].argmax()))
        logits = sequence.extend(found[-1:])
    return found
