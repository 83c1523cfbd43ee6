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

from kernelflume.checkpoint.dummy import DummyWeights
from kernelflume.wnode.model.layer import DecoderLayer, scripted
from kernelflume.wnode.model.layers import RmsNorm, interleave_halves, rotation
from kernelflume.wnode.model.linear import gain_exponent, make_linear
from kernelflume.wnode.model.weights import RandomWeights, StoredWeights

if TYPE_CHECKING:
    from kernelflume.checkpoint.config import ModelConfig
    from kernelflume.checkpoint.source import Checkpoint
    from kernelflume.wnode.model.linear import Linear
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


class Decoder:
    """The model in phases. Every method runs on the engine's thread; none keeps a reference to its inputs."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: Tensor,
        layers: tuple[DecoderLayer, ...],
        final_norm: RmsNorm,
        head: Linear,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = embedding
        self.layers = layers
        self.final_norm = final_norm
        self.head = head
        self._inverse_frequencies = torch.from_numpy(config.rope.inverse_frequencies(config.head_dim)).to(
            device
        )

    @torch.inference_mode()
    def begin(self, token_ids: Tensor, positions: Tensor) -> StepState:
        """Look up the embeddings of ``token_ids`` [n] int64 at ``positions`` [n] int64."""
        hidden = F.embedding(token_ids, self.embedding).to(self.dtype)
        return StepState(hidden, rotation(positions, self._inverse_frequencies))

    @torch.inference_mode()
    def project_query(self, layer: int, state: StepState) -> Tensor:
        """Return the rotated queries [n, Hq, D]."""
        query, state.normed = self.layers[layer].project_query(state.hidden, state.turn)
        return query

    @torch.inference_mode()
    def project_kv(self, layer: int, state: StepState, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the rotated keys and the values, each [n, Hkv, D]: views of ``out`` where given.

        ``out`` [n, 2, Hkv, D] may itself be a view whose last dimension is contiguous. Call this after
        ``project_query`` of the same layer, once.
        """
        if state.normed is None:
            raise RuntimeError("project_kv comes once after project_query of the same layer")
        if out is None:
            shape = (state.hidden.shape[0], 2, self.config.num_kv_heads, self.config.head_dim)
            out = torch.empty(shape, dtype=self.dtype, device=self.device)
        self.layers[layer].project_kv(state.normed, state.turn, out)
        state.normed = None
        key, value = out.unbind(1)
        return key, value

    @torch.inference_mode()
    def finish_layer(self, layer: int, state: StepState, attention: Tensor) -> None:
        """Project ``attention`` [n, Hq * D] back, run the feed-forward network; update ``state.hidden``."""
        self.layers[layer].finish(state.hidden, attention)

    @torch.inference_mode()
    def logits(self, state: StepState, rows: Tensor | None = None) -> Tensor:
        """Return float32 logits [m, vocab] of the rows named by index [m] int64, or of all rows."""
        hidden = state.hidden if rows is None else state.hidden.index_select(0, rows)
        logits: Tensor = self.head(self.final_norm(hidden))
        return logits.float()


def load_decoder(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    pack_weights: bool = True,
) -> Decoder:
    """Read ``checkpoint`` into a decoder, or draw its weights where they are dummies.

    ``pack_weights`` allows the packed storage of ``Linear`` where it loses nothing.

    Raises:
        ConfigurationError: a tensor is missing, left over, of the wrong shape, or cannot be read.
    """
    stored = checkpoint.weights
    if isinstance(stored, DummyWeights):
        return random_decoder(
            checkpoint.config, dtype=dtype, device=device, seed=stored.seed, pack_weights=pack_weights
        )
    with StoredWeights(stored) as weights:
        decoder = build_decoder(
            checkpoint.config, weights, dtype=dtype, device=torch.device(device), pack_weights=pack_weights
        )
        weights.check_all_taken(unused=("lm_head.weight",) if checkpoint.config.tie_word_embeddings else ())
    return decoder


def random_decoder(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    pack_weights: bool = True,
) -> Decoder:
    """Return a decoder of ``config``'s shape with weights drawn from ``seed`` on ``device``.

    They are equal for equal seeds on the same kind of device.
    """
    place = torch.device(device)
    weights = RandomWeights(seed, place)
    return build_decoder(config, weights, dtype=dtype, device=place, pack_weights=pack_weights)


@torch.inference_mode()
def build_decoder(
    config: ModelConfig,
    weights: WeightSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    pack_weights: bool = True,
) -> Decoder:
    """Take every tensor of ``config``'s architecture from ``weights``.

    Raises:
        ConfigurationError: a tensor is missing or of the wrong shape.
    """
    loader = _Loader(config, weights, dtype, device, pack_weights)
    stored_embedding = weights.take("embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = tuple(loader.layer(index) for index in range(config.num_layers))
    final_norm = loader.tensor("norm.weight", config.hidden_size)
    if config.tie_word_embeddings:
        table = stored_embedding.to(device, dtype)
    else:
        table = loader.tensor("lm_head.weight", config.vocab_size, config.hidden_size)
    head = make_linear(table, exponent=loader.gain_exponent(table))
    return Decoder(
        config,
        # Kept in the format it is stored in: only the rows looked up are ever widened.
        embedding=stored_embedding.clone().to(device),
        layers=layers,
        final_norm=RmsNorm(final_norm, config.rms_norm_eps, divisor=head.gain),
        head=head,
        dtype=dtype,
        device=device,
    )


class _Loader:
    """Builds layers out of named tensors."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        pack_weights: bool,
    ) -> None:
        self._config = config
        self._weights = weights
        self._dtype = dtype
        self._device = device
        self._pack_weights = pack_weights

    def gain_exponent(self, *weights: Tensor) -> int | None:
        return gain_exponent(*weights) if self._pack_weights else None

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
        if self._device.type != "cpu":
            # Side by side in memory, so that one product can serve all three where nothing leaves early.
            query, key_value = torch.cat((query, key_value)).split((query_width, 2 * kv_width))
        projections = self.gain_exponent(query, key_value)
        query_linear = make_linear(query, query_bias, exponent=projections)
        key_value_linear = make_linear(key_value, _concatenated(key_bias, value_bias), exponent=projections)

        output, output_bias = self._projection(f"{attention}.o_proj", hidden, query_width, config.output_bias)
        post_norm = self.tensor(f"{name}.post_attention_layernorm.weight", hidden)
        gate, gate_bias = self._projection(f"{mlp}.gate_proj", ffn, hidden, config.mlp_bias)
        up, up_bias = self._projection(f"{mlp}.up_proj", ffn, hidden, config.mlp_bias)
        down, down_bias = self._projection(f"{mlp}.down_proj", hidden, ffn, config.mlp_bias)
        gate_up = torch.cat((gate, up))
        gate_up_linear = make_linear(
            gate_up, _concatenated(gate_bias, up_bias), exponent=self.gain_exponent(gate_up)
        )
        layer = DecoderLayer(
            head_dim=head_dim,
            input_norm=RmsNorm(input_norm, config.rms_norm_eps, divisor=query_linear.gain),
            query=query_linear,
            key_value=key_value_linear,
            query_norm=self._head_norm(f"{attention}.q_norm.weight"),
            key_norm=self._head_norm(f"{attention}.k_norm.weight"),
            output=make_linear(output, exponent=self.gain_exponent(output)),
            output_bias=output_bias,
            post_norm=RmsNorm(post_norm, config.rms_norm_eps, divisor=gate_up_linear.gain),
            gate_up=gate_up_linear,
            down=make_linear(down, exponent=self.gain_exponent(down)),
            down_bias=down_bias,
        )
        # On a GPU the calls are captured in a graph once, so there is nothing to win.
        return scripted(layer) if self._device.type == "cpu" else layer

    def _head_norm(self, name: str) -> RmsNorm | None:
        if not self._config.qk_norm:
            return None
        weight = interleave_halves(self.tensor(name, self._config.head_dim), 1)
        return RmsNorm(weight, self._config.rms_norm_eps)

    def _projection(self, name: str, rows: int, columns: int, bias: bool) -> tuple[Tensor, Tensor | None]:
        return self.tensor(f"{name}.weight", rows, columns), self.optional(bias, f"{name}.bias", rows)

    @staticmethod
    def _interleaved(weight: Tensor, bias: Tensor | None, num_heads: int) -> tuple[Tensor, Tensor | None]:
        turned_bias = None if bias is None else interleave_halves(bias, num_heads)
        return interleave_halves(weight, num_heads), turned_bias


def _concatenated(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat((first, second))
