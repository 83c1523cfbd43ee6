"""Logits of given inputs in float32, by plain products: what both bfloat16 programs approximate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernelflume.wnode.model.decoder import Decoder


@torch.inference_mode()
def exact_logits(
    decoder: Decoder, histories: Sequence[Tensor], token_ids: Tensor, positions: Tensor
) -> list[Tensor]:
    """Return each step's logits, float32 [rows, vocab].

    Args:
        decoder: the model in float32.
        histories: keys and values of each row before the first step, [layers, tokens, 2, KV heads, head dim].
        token_ids: int64 [steps, rows], given: no step depends on what another one would have chosen.
        positions: int64 [steps, rows].
    """
    config = decoder.config
    num_steps, num_rows = token_ids.shape
    shape = (config.num_layers, num_steps, num_rows, 2, config.num_kv_heads, config.head_dim)
    new = torch.zeros(shape, dtype=decoder.dtype, device=decoder.device)
    logits = []
    for step in range(num_steps):
        state = decoder.begin(token_ids[step], positions[step])
        for layer in range(config.num_layers):
            query = decoder.project_query(layer, state)
            decoder.project_kv(layer, state, new[layer, step])
            attention = torch.empty_like(query)
            for row, history in enumerate(histories):
                known = torch.cat((history[layer].to(decoder.dtype), new[layer, : step + 1, row]))
                attention[row] = attend(query[row], *known.unbind(1))
            decoder.finish_layer(layer, state, attention.flatten(1))
        logits.append(decoder.logits(state))
    return logits


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the attention of ``query`` [heads, dim] over ``keys`` and ``values`` [tokens, KV heads, dim]."""
    groups = query.unflatten(0, (keys.shape[1], -1))  # [KV heads, group, dim]
    scores = groups @ keys.permute(1, 2, 0) * query.shape[-1] ** -0.5
    attention: Tensor = scores.softmax(-1) @ values.transpose(0, 1)
    return attention.flatten(0, 1)
