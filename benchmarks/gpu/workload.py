"""What a run of the GPU data plane computes: geometry, batch, contexts, and over how many nodes they lie."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelflume.checkpoint.config import ModelConfig
from kernelflume.checkpoint.rope import RopeParameters
from kernelflume.core.geometry import KvGeometry

HEAD_CONFIGURATIONS = ((32, 8), (48, 8), (64, 8), (32, 32), (40, 40), (48, 48))
"""Query and KV heads of the paper's section 6.3."""
HEAD_DIM = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One cell of the grid. Contexts are equal; each is split evenly over the attention nodes."""

    num_query_heads: int
    num_kv_heads: int
    num_layers: int
    batch: int
    context: int
    num_nodes: int = 1
    num_lanes: int = 1
    """Microbatches."""
    page_tokens: int = 64
    vocab_size: int = 32_000
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """A short name for tables."""
        return f"Q{self.num_query_heads}:KV{self.num_kv_heads} B{self.batch} {self.context // 1024}K"

    @property
    def model(self) -> ModelConfig:
        """A Llama of these heads: hidden width as the query heads give it, feed-forward 3.5 times that."""
        hidden = self.num_query_heads * HEAD_DIM
        return ModelConfig(
            architecture="LlamaForCausalLM",
            num_layers=self.num_layers,
            hidden_size=hidden,
            intermediate_size=hidden * 7 // 2,
            num_query_heads=self.num_query_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=HEAD_DIM,
            vocab_size=self.vocab_size,
            rms_norm_eps=1e-5,
            rope=RopeParameters(theta=500_000.0),
            max_position_embeddings=1 << 20,
            dtype="bfloat16",
        )

    @property
    def geometry(self) -> KvGeometry:
        """What the two sides agree on."""
        return KvGeometry(
            model_id="random",
            model_revision="0",
            num_layers=self.num_layers,
            num_query_heads=self.num_query_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=HEAD_DIM,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
        )

    @property
    def lane_rows(self) -> tuple[int, ...]:
        """Rows of each microbatch."""
        share, left = divmod(self.batch, self.num_lanes)
        return tuple(share + (index < left) for index in range(self.num_lanes))

    def with_(self, **changes: object) -> Workload:
        """Return a changed copy."""
        return replace(self, **changes)  # type: ignore[arg-type]
