"""One decoder layer, cut where attention happens elsewhere."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name every PyTorch program uses
from torch import Tensor, nn

from kernelflume.wnode.model.layers import rotate, rotate_into

if TYPE_CHECKING:
    from kernelflume.wnode.model.layers import RmsNorm
    from kernelflume.wnode.model.linear import Linear


class DecoderLayer(nn.Module):
    """Weights of one layer and the three phases that use them.

    The norms in front of projections carry 1 / gain of those projections (``PackedLinear``); for the two
    projections that end in the residual stream the addition does.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        input_norm: RmsNorm,
        query: Linear,
        key_value: Linear,
        query_norm: RmsNorm | None,
        key_norm: RmsNorm | None,
        output: Linear,
        output_bias: Tensor | None,
        post_norm: RmsNorm,
        gate_up: Linear,
        down: Linear,
        down_bias: Tensor | None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.input_norm = input_norm
        self.query = query
        self.key_value = key_value
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.output = output
        self.output_bias = output_bias
        self.post_norm = post_norm
        self.gate_up = gate_up
        self.down = down
        self.down_bias = down_bias

    @torch.jit.export
    def project_query(self, hidden: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotated queries [n, Hq, D] and the normed rows [n, hidden] for ``project_kv``."""
        normed: Tensor = self.input_norm(hidden)
        query: Tensor = self.query(normed).view(hidden.size(0), -1, self.head_dim)
        if self.query_norm is not None:
            query = self.query_norm(query)
        return rotate(query, turn), normed

    @torch.jit.export
    def project_kv(self, normed: Tensor, turn: Tensor, out: Tensor) -> None:
        """Write the rotated keys and the values to ``out`` [n, 2, Hkv, D]."""
        projected: Tensor = self.key_value(normed).view(normed.size(0), 2, -1, self.head_dim)
        key = projected.select(1, 0)
        if self.key_norm is not None:
            key = self.key_norm(key)
        rotate_into(key, turn, out.select(1, 0))
        out.select(1, 1).copy_(projected.select(1, 1))

    @torch.jit.export
    def finish(self, hidden: Tensor, attention: Tensor) -> None:
        """Add the projected ``attention`` [n, Hq * D] and the feed-forward network to ``hidden``."""
        hidden.add_(self.output(attention), alpha=1.0 / self.output.gain)
        if self.output_bias is not None:
            hidden.add_(self.output_bias)
        gate_up = self.gate_up(self.post_norm(hidden)).view(hidden.size(0), 2, -1)
        gated = F.silu(gate_up.select(1, 0)).mul_(gate_up.select(1, 1))
        hidden.add_(self.down(gated), alpha=1.0 / self.down.gain)
        if self.down_bias is not None:
            hidden.add_(self.down_bias)


def scripted(layer: DecoderLayer) -> DecoderLayer:
    """Return ``layer`` as TorchScript.

    A step of one row is some thousand small operations, and calling them from Python takes as long as a third
    of the projections. TorchScript calls them from C++, without a compiler on the machine, and hands over a
    packed matrix without the 14 us conversion that the same call from Python pays.
    """
    with warnings.catch_warnings():
        # Frozen, not broken: the range of torch versions is pinned to ones that this is tested with.
        warnings.simplefilter("ignore", DeprecationWarning)
        return cast("DecoderLayer", torch.jit.script(layer))
