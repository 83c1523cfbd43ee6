"""A Llama-family decoder whose attention is computed elsewhere.

The engine drives it layer by layer: project the query and send it off, project key and value, and once the
merged attention is back, finish the layer. A row is one token of one sequence; a step may mix decode rows and
rows of prefill chunks freely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the name every PyTorch program uses
from torch import Tensor

from kernelflume.wnode.model.layers import interleave_halves, rms_norm, rotate, rotation
from kernelflume.wnode.model.linear import Linear, gain_exponent
from kernelflume.wnode.model.weights import RandomWeights, StoredWeights

if TYPE_CHECKING:
    from kernelflume.checkpoint.config import ModelConfig
    from kernelflume.checkpoint.source import Checkpoint
    from kernelflume.wnode.model.weights import WeightSource


@dataclass(slots=True)
class StepState:
    """The residual stream of one step; owned by the engine, changed by ``Decoder`` alone."""

    hidden: Tensor
    """[n, hidden]"""
    turn: Tensor
    """Rotary embedding of the rows' positions: complex64 [n, 1, head_dim / 2]."""
    normed: Tensor | None = None
    """Input of the present layer's projections [n, hidden], between project_query and project_kv."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Weights of one layer; norm weights carry 1 / gain of the projections behind them."""

    input_norm: Tensor
    query: Linear
    key_value: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    output_bias: Tensor | None
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    down_bias: Tensor | None


class Decoder:
    """The model in phases. Every method runs on the engine's thread; none keeps a reference to its inputs."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: Tensor,
        layers: tuple[DecoderLayer, ...],
        final_norm: Tensor,
        head: Linear,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self._head = head
        self._inverse_frequencies = torch.from_numpy(config.rope.inverse_frequencies(config.head_dim)).to(device)

    @torch.inference_mode()
    def begin(self, token_ids: Tensor, positions: Tensor) -> StepState:
        """Look up the embeddings of ``token_ids`` [n] int64 at ``positions`` [n] int64."""
        hidden = F.embedding(token_ids, self._embedding).to(self.dtype)
        return StepState(hidden, rotation(positions, self._inverse_frequencies))

    @torch.inference_mode()
    def project_query(self, layer: int, state: StepState) -> Tensor:
        """Return the rotated queries [n, Hq, D]."""
        weights = self._layers[layer]
        state.normed = rms_norm(state.hidden, weights.input_norm, self.config.rms_norm_eps)
        query = weights.query(state.normed).unflatten(-1, (self.config.num_query_heads, self.config.head_dim))
        if weights.query_norm is not None:
            query = rms_norm(query, weights.query_norm, self.config.rms_norm_eps)
        return rotate(query, state.turn)

    @torch.inference_mode()
    def project_kv(self, layer: int, state: StepState, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the rotated keys and the values, each [n, Hkv, D].

        ``out`` [n, 2, Hkv, D] receives both where given, and the tensors returned are views of it. Call it
        after ``project_query`` of the same layer.
        """
        weights = self._layers[layer]
        if state.normed is None:
            raise RuntimeError("project_kv comes after project_query of the same layer")
        heads = (2, self.config.num_kv_heads, self.config.head_dim)
        projected = weights.key_value(state.normed).unflatten(-1, heads)  # [n, 2, Hkv, D]
        state.normed = None
        key, value = projected.unbind(1)
        if weights.key_norm is not None:
            key = rms_norm(key, weights.key_norm, self.config.rms_norm_eps)
        if out is None:
            return rotate(key, state.turn), value
        out_key, out_value = out.unbind(1)
        rotate(key, state.turn, out_key)
        out_value.copy_(value)
        return out_key, out_value

    @torch.inference_mode()
    def finish_layer(self, layer: int, state: StepState, attention: Tensor) -> None:
        """Project ``attention`` [n, Hq * D] back, run the feed-forward network; update ``state.hidden``."""
        weights = self._layers[layer]
        hidden = state.hidden
        hidden.add_(weights.output(attention), alpha=1.0 / weights.output.gain)
        if weights.output_bias is not None:
            hidden.add_(weights.output_bias)
        normed = rms_norm(hidden, weights.post_norm, self.config.rms_norm_eps)
        gate, up = weights.gate_up(normed).chunk(2, dim=-1)
        hidden.add_(weights.down(F.silu(gate).mul_(up)), alpha=1.0 / weights.down.gain)
        if weights.down_bias is not None:
            hidden.add_(weights.down_bias)

    @torch.inference_mode()
    def logits(self, state: StepState, rows: Tensor | None = None) -> Tensor:
        """Return float32 logits [m, vocab] of the rows named by index [m] int64, or of all rows."""
        hidden = state.hidden if rows is None else state.hidden.index_select(0, rows)
        return self._head(rms_norm(hidden, self._final_norm, self.config.rms_norm_eps)).float()


def load_decoder(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device | str, random_seed: int | None = None
) -> Decoder:
    """Read ``checkpoint`` into a decoder; with ``random_seed`` only its configuration is used.

    Raises:
        ConfigurationError: a tensor is missing, left over, of the wrong shape, or cannot be read.
    """
    if random_seed is not None:
        return random_decoder(checkpoint.config, dtype=dtype, device=device, seed=random_seed)
    with StoredWeights(checkpoint.weights) as weights:
        decoder = build_decoder(checkpoint.config, weights, dtype=dtype, device=torch.device(device))
        weights.check_all_taken(unused=("lm_head.weight",) if checkpoint.config.tie_word_embeddings else ())
    return decoder


def random_decoder(
    config: ModelConfig, *, dtype: torch.dtype, device: torch.device | str, seed: int
) -> Decoder:
    """Return a decoder of ``config``'s shape with weights drawn from ``seed``: equal for equal seeds."""
    return build_decoder(config, RandomWeights(seed), dtype=dtype, device=torch.device(device))


@torch.inference_mode()
def build_decoder(
    config: ModelConfig, weights: WeightSource, *, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """Take every tensor of ``config``'s architecture from ``weights``.

    Raises:
        ConfigurationError: a tensor is missing or of the wrong shape.
    """
    loader = _Loader(config, weights, dtype, device)
    stored_embedding = weights.take("embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = tuple(loader.layer(index) for index in range(config.num_layers))
    final_norm = loader.tensor("norm.weight", config.hidden_size)
    if config.tie_word_embeddings:
        table = stored_embedding.to(device, dtype)
    else:
        table = loader.tensor("lm_head.weight", config.vocab_size, config.hidden_size)
    head = Linear(table, gain_exponent=gain_exponent(table))
    return Decoder(
        config,
        # Kept in the format it is stored in: only the rows looked up are ever widened.
        embedding=stored_embedding.clone().to(device),
        layers=layers,
        final_norm=final_norm / head.gain,
        head=head,
        dtype=dtype,
        device=device,
    )


class _Loader:
    """Builds layers out of named tensors."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._weights = weights
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, *shape: int) -> Tensor:
        return self._weights.take(name, *shape).to(self._device, self._dtype)

    def optional(self, wanted: bool, name: str, *shape: int) -> Tensor | None:
        return self.tensor(name, *shape) if wanted else None

    def layer(self, index: int) -> DecoderLayer:
        config, name = self._config, f"layers.{index}"
        hidden, ffn, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        query_width, kv_width = config.num_query_heads * head_dim, config.num_kv_heads * head_dim
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"

        input_norm = self.tensor(f"{name}.input_layernorm.weight", hidden)
        query, query_bias = self._projection(f"{attention}.q_proj", query_width, hidden, config.qkv_bias)
        key, key_bias = self._projection(f"{attention}.k_proj", kv_width, hidden, config.qkv_bias)
        value, value_bias = self._projection(f"{attention}.v_proj", kv_width, hidden, config.qkv_bias)
        query, query_bias = self._interleaved(query, query_bias, config.num_query_heads)
        key, key_bias = self._interleaved(key, key_bias, config.num_kv_heads)
        key_value = torch.cat((key, value))
        projections = gain_exponent(query, key_value)
        query_linear = Linear(query, query_bias, gain_exponent=projections)
        key_value_linear = Linear(key_value, _concatenated(key_bias, value_bias), gain_exponent=projections)

        output, output_bias = self._projection(f"{attention}.o_proj", hidden, query_width, config.output_bias)
        post_norm = self.tensor(f"{name}.post_attention_layernorm.weight", hidden)
        gate, gate_bias = self._projection(f"{mlp}.gate_proj", ffn, hidden, config.mlp_bias)
        up, up_bias = self._projection(f"{mlp}.up_proj", ffn, hidden, config.mlp_bias)
        down, down_bias = self._projection(f"{mlp}.down_proj", hidden, ffn, config.mlp_bias)
        gate_up = torch.cat((gate, up))
        gate_up_linear = Linear(
            gate_up, _concatenated(gate_bias, up_bias), gain_exponent=gain_exponent(gate_up)
        )
        query_norm = self.optional(config.qk_norm, f"{attention}.q_norm.weight", head_dim)
        key_norm = self.optional(config.qk_norm, f"{attention}.k_norm.weight", head_dim)
        return DecoderLayer(
            input_norm=input_norm / query_linear.gain,
            query=query_linear,
            key_value=key_value_linear,
            query_norm=None if query_norm is None else interleave_halves(query_norm, 1),
            key_norm=None if key_norm is None else interleave_halves(key_norm, 1),
            output=Linear(output, gain_exponent=gain_exponent(output)),
            output_bias=output_bias,
            post_norm=post_norm / gate_up_linear.gain,
            gate_up=gate_up_linear,
            down=Linear(down, gain_exponent=gain_exponent(down)),
            down_bias=down_bias,
        )

    def _projection(self, name: str, rows: int, columns: int, bias: bool) -> tuple[Tensor, Tensor | None]:
        return self.tensor(f"{name}.weight", rows, columns), self.optional(bias, f"{name}.bias", rows)

    @staticmethod
    def _interleaved(weight: Tensor, bias: Tensor | None, num_heads: int) -> tuple[Tensor, Tensor | None]:
        turned_bias = None if bias is None else interleave_halves(bias, num_heads)
        return interleave_halves(weight, num_heads), turned_bias


def _concatenated(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat((first, second))
