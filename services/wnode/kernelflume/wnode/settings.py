"""Settings of a weight node."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations at run time
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from kernelflume.core.roles import WeightNodeRole
from kernelflume.runtime.settings import ServiceSettings


class WeightNodeSettings(ServiceSettings):
    """A weight node: holds the model, runs everything but attention over the KV pool."""

    model_config = SettingsConfigDict(env_prefix="KERNELFLUME_WNODE_")

    node_id: str = Field(default="w-1", pattern="^[A-Za-z0-9_.-]+$")
    """Name of this weight node, unique in the cluster."""
    address: str = "127.0.0.1:8200"
    """host:port of the gRPC service; port 0 picks a free one."""
    admin_token_file: Path | None = None
    """File with one token, the scaler's own, that `kernelflume move` must bring as `authorization: Bearer
    TOKEN`; other calls need none. Without it whoever reaches the address may have requests moved."""
    role: WeightNodeRole = WeightNodeRole.BOTH
    """What routers send it: `both`, whole requests and parts of divided ones; `prefill`, prompts, which
    another node goes on with after the first token; `decode`, only that rest. It is a wish: where no other
    node serves, this one gets everything."""
    model: str
    """Hugging Face folder, .gguf file, or `smollm2`."""
    served_model_id: str = ""
    """Model name in the handshake with attention nodes; the name of the model's folder by default."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` draws random weights from `seed`, on the device, and reads none: the model's folder needs only
    config.json and, for the router, a tokenizer. For benchmarks: what such a model answers is meaningless."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Format of weights and activations; auto is float32 on a CPU, where others are slower, and the
    checkpoint's own on a GPU."""
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "float32", "bfloat16", "float16"] = "auto"
    """Format that keys and values travel and are kept in: auto is as dtype; fp8 (fp8_e4m3) takes half
    the memory of 16-bit formats. All nodes need the same: `kernelflume geometry` takes it too."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Where the model lies and is computed: `cpu`, `cuda`, or `cuda:N` for one of several GPUs."""
    data_path: Literal["auto", "device", "host", "posted"] = "auto"
    """How decode steps reach attention nodes on GPUs. `device`: kernels of one captured graph exchange by
    themselves; it needs peer access and kernelflume[gpu]. `host`: captured graphs too, but this process posts
    what they say is ready. `posted`: no graphs, layer by layer. auto is `device` where that is possible, else
    `posted`."""
    query_first: Literal["off", "paper", "local"] = "local"
    """With graphs, when queries leave and who attends to a row's own key. `local`: queries first, own
    key on the weight node; `paper`: queries first, the tail's node waits for the key; `off`: all together."""
    microbatches: Literal["auto", "1", "2", "4"] = "auto"
    """With graphs, microbatches of a decode step: one computes while another is attended to. auto
    takes one or two, whichever the steps so far show to be faster."""
    async_scheduling: bool = False
    """On the device path, launch a decode step before the one ahead of it is settled, where its rows are
    certain, so that GPUs do not wait for this process. Tokens are the same. Off until it is measured."""
    max_model_len: int = Field(default=0, ge=0)
    """Most tokens of prompt and output together; 0 takes the model's own limit."""
    max_num_seqs: int = Field(default=64, ge=1, le=1024)
    """Most sequences that run at once."""
    max_num_batched_tokens: int = Field(default=256, ge=1, le=8192)
    """Most rows of one step, decode rows first: longer prompts are prefilled in chunks, so that running
    streams are not held up for long. It sizes the buffers shared with each attention node."""
    max_num_waiting: int = Field(default=256, ge=0)
    """Most requests that wait; more are refused with RESOURCE_EXHAUSTED."""
    max_range_tokens: int = Field(default=0, ge=0)
    """Seal a token range at this length and open the next on another node; 0 leaves ranges whole.
    For tests, which force short sequences to split."""
    spread_tokens: int = Field(default=2048, ge=0)
    """Prompts of at least twice as many tokens are spread over the attention nodes, in ranges of at least so
    many, so that several nodes scan a long context and fill alike; 0 keeps each prompt on one node."""
    stream_kv_rows: int = Field(default=9, ge=0)
    """Keys and values of at least so many tokens for one attention node are sent layer by layer, while the
    next layer is computed; those of fewer, as in decode steps, in one write once all layers are done. 0 sends
    all so. On a GPU they always are: a layer's write would make the step wait for the layer."""
    enable_prefix_caching: bool = True
    """Look the beginnings of prompts up in the pool before computing them, and leave what was computed there
    for others to find."""
    seed: int = 0
    """Seed of requests that bring none; each then draws its own from it. Also of `dummy` weights."""
    threads: int = Field(default=0, ge=0)
    """Threads of the model's kernels; 0 takes all cores."""
    threads_beside_attention: int = Field(default=0, ge=0)
    """Threads of the model's kernels while attention nodes compute, where those share this machine's cores;
    0 takes as many as `threads`."""
    transport_error_handling: Literal["peer", "none"] = "peer"
    """`peer` notices a dead attention node at the next post; `none` is faster on one host, where a dead
    process is noticed by its closed doorbell; of a dead host only deadlines tell. All nodes need the same."""
    exchange_timeout_s: float = Field(default=20.0, gt=0)
    """Longest wait for an attention node's partials before the node counts as lost."""
    hold_timeout_s: float = Field(default=15.0, gt=0)
    """Longest time that a sequence stands still for another weight node before it fails. A router that has
    none lets it go on much earlier, and one that is gone ends it with its stream."""
    drain_timeout_s: float = Field(default=2.0, ge=0)
    """How long requests may still run once the node is to end: routers hand them over to other weight nodes,
    which takes a step; where there is none, they end here or are cut off."""
    prepare_timeout_s: float = Field(default=20.0, gt=0)
    """Longest time that connecting to an attention node may take."""
    grammar_timeout_s: float = Field(default=10.0, gt=0)
    """Longest time that compiling one request's grammar or JSON schema may take; one that takes longer is
    refused, and others wait meanwhile."""
    prepare_grammars: bool = True
    """Start what compiles grammars once the node is ready, in the background; otherwise the first request
    that needs it waits for that, several seconds. It takes some hundred MiB of memory."""
    lease_ttl_s: float = Field(default=6.0, gt=0)
    """The node counts as dead this long after its last sign of life; it renews three times as often."""
    load_interval_s: float = Field(default=0.5, gt=0)
    """How often the load is told with the lease: the scaler predicts from it, so it should be well below the
    time that an attention node takes to start."""
    poll_interval_s: float = Field(default=1.0, gt=0)
    """How often the routing table is read when no notice comes."""
    doorbell_host: str = "127.0.0.1"
    """Interface on which attention nodes ring."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of the Prometheus endpoint; 0 for none."""

    @property
    def dummy_seed(self) -> int | None:
        """Seed of random weights, or None where the checkpoint's own are read."""
        return self.seed if self.load_format == "dummy" else None
