"""Log probabilities of tokens by the model alone: natural, before anything a request changes about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelflume.core.sampling import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_


class RawLogprobs:
    """Keeps the logits of some rows as they are now."""

    def __init__(self, logits: torch.Tensor, num_top: Sequence_[int]) -> None:
        """Take the rows.

        Args:
            logits: [n, vocab] float32; kept, so it must not change.
            num_top: likeliest tokens to tell for each row.
        """
        self._logits = logits
        self._num_top = num_top

    def of(self, tokens: Sequence_[int]) -> list[TokenLogprobs]:
        """Return how likely each row's token was, and the row's likeliest tokens."""
        logits = self._logits
        norms = logits.logsumexp(-1, keepdim=True)
        index = torch.tensor(tokens, dtype=torch.int64, device=logits.device).unsqueeze(1)
        chosen = (logits.gather(1, index) - norms).squeeze(1).tolist()
        most = max(self._num_top, default=0)
        if not most:
            return [TokenLogprobs(value) for value in chosen]
        values, places = logits.topk(min(most, logits.shape[1]), sorted=True)
        tops = zip(places.tolist(), (values - norms).tolist(), strict=True)
        return [
            TokenLogprobs(value, tuple(zip(top_tokens[:count], top_values[:count], strict=True)))
            for value, count, (top_tokens, top_values) in zip(chosen, self._num_top, tops, strict=True)
        ]
