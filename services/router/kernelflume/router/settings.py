"""Settings of the router."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations at run time
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from kernelflume.core.apikeys import KeyLimits
from kernelflume.core.request_class import HEAVY_TOKENS, WARM_TOKENS, ClassBounds
from kernelflume.router.placement.balance import BalanceParameters
from kernelflume.router.placement.policies import PolicyName, PolicyParameters
from kernelflume.router.tools.registry import ToolParserName  # noqa: TC001 - pydantic reads it
from kernelflume.runtime.settings import ByteSize, ServiceSettings
from kernelflume.runtime.tls import TlsSettings


def _split(value: object) -> object:
    """Read ``a,b`` as two items; a list stays one, its items split too (a flag given twice)."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(part.strip() for item in value for part in item.split(",") if part.strip())
    return value


NameList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""Names, separated by commas or given by a flag more than once."""


class AuthSettings(BaseModel):
    """API keys; without a place for them everybody may ask."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    keys_file: Path | None = None
    """File of keys, which `kernelflume keys` writes; it is read again when it has changed."""
    keys_in_store: bool = False
    """Use the keys that `kernelflume keys` keeps in the routing-table store, for all routers."""
    refresh_interval: float = Field(default=1.0, gt=0.0)
    """Seconds between two looks at the keys: so long a revoked one may still be used."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests a minute of a key that has no such limit of its own; default: any number."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Prompt and generated tokens a minute of a key without such a limit of its own; default: any number."""
    concurrent_requests: int | None = Field(default=None, ge=1)
    """Requests in progress of a key that has no such limit of its own; default: any number."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.keys_file is not None and self.keys_in_store:
            raise ValueError("auth.keys-file and auth.keys-in-store are two places for keys; give one")
        if not self.enabled and self.default_limits != KeyLimits():
            raise ValueError("auth: limits of keys need auth.keys-file or auth.keys-in-store")
        return self

    @property
    def enabled(self) -> bool:
        """True when a request needs a key."""
        return self.keys_file is not None or self.keys_in_store

    @property
    def default_limits(self) -> KeyLimits:
        """Limits of a key that has none of its own."""
        return KeyLimits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            concurrent_requests=self.concurrent_requests,
        )


class PlacementSettings(BaseModel):
    """Where requests run, where there are several weight nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    policy: PolicyName = PolicyName.LEAST_LOADED
    """`least_loaded`: fewest requests. `lmetric`: prompt tokens to compute times requests. `sticky`: a
    session stays on its node until that is overloaded. `unified`: sticky where most of the prompt is cached,
    else lmetric. `ps_always`: sticky, and a heavy prompt is computed on a prefill node. `cache_gate`: the
    same, for heavy prompts of which enough is cached."""
    overload_factor: float = Field(default=2.0, ge=1.0)
    """A session leaves its node when that has more than so many times the average ongoing tokens."""
    gate_share: float = Field(default=0.3, ge=0.0, le=1.0)
    """`cache_gate` has a heavy prompt computed apart when at least this share of it is cached."""
    affinity_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """`unified` keeps a session on its node when more than this share of the prompt is cached."""
    balance_factor: float = Field(default=0.0, ge=0.0)
    """A running choice moves to another weight node when its own has more than so many times the work of the
    one with the least, in requests and prompt tokens to compute; at least 1. 0: none moves for balance."""
    balance_moves: int = Field(default=2, ge=1)
    """Most choices that move for balance at once."""
    balance_cooldown: float = Field(default=30.0, ge=0.0)
    """Seconds that a choice stays where it is after a move, or after one that failed."""
    warm_tokens: int = Field(default=WARM_TOKENS, ge=0)
    """A request with at most so many tokens to compute is WARM."""
    heavy_tokens: int = Field(default=HEAVY_TOKENS, ge=0)
    """A request with more than so many tokens to compute is HEAVY; those between are MEDIUM."""
    sessions: int = Field(default=65_536, ge=1)
    """Most sessions that are remembered; the one that was used longest ago gives way."""
    session_ttl: float = Field(default=3600.0, gt=0.0)
    """Seconds after its last request that a session is remembered."""
    prefix_keys: int = Field(default=262_144, ge=1)
    """Most keys of prompts and answers that are remembered, of 16 bytes and some 130 of bookkeeping each. One
    of 100,000 tokens has about 800 of them."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.heavy_tokens < self.warm_tokens:
            raise ValueError("placement.heavy-tokens is below placement.warm-tokens")
        if 0.0 < self.balance_factor < 1.0:
            raise ValueError("placement.balance-factor is below 1: it is at least 1, or 0 for no moves")
        return self

    @property
    def parameters(self) -> PolicyParameters:
        """The numbers that policies go by."""
        return PolicyParameters(
            overload_factor=self.overload_factor,
            gate_share=self.gate_share,
            affinity_share=self.affinity_share,
            bounds=ClassBounds(self.warm_tokens, self.heavy_tokens),
        )

    @property
    def balance(self) -> BalanceParameters:
        """When running choices move to another node."""
        return BalanceParameters(
            factor=self.balance_factor, max_moves=self.balance_moves, cooldown_s=self.balance_cooldown
        )


class RouterSettings(ServiceSettings):
    """The OpenAI gateway of a KernelFlume cluster."""

    model_config = SettingsConfigDict(env_prefix="KERNELFLUME_ROUTER_")

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """TCP port to listen on; 0 takes any free one."""
    model: str = Field(min_length=1)
    """Model whose tokenizer and chat template are used: a Hugging Face folder, a .gguf file, or `smollm2`."""
    load_format: Literal["auto", "dummy"] = "auto"
    """As the weight nodes': with `dummy` the model's folder needs no weights."""
    seed: int = 0
    """With `load_format` dummy, the weight nodes' seed: there it is part of what the model is."""
    tool_call_parser: ToolParserName = "auto"
    """Format in which the model writes tool calls: `hermes` (Qwen too), `llama3` or `smollm2`; default: what
    its chat template shows."""
    served_model_name: NameList = ()
    """Names the model is served under; default: what `model` says."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Longest context in tokens; default: what the weight nodes say, which also bounds it."""
    weight_nodes: NameList = ()
    """Addresses (host:port) of the weight nodes; default: found through their leases in the store."""
    refresh_interval: float = Field(default=1.0, gt=0.0)
    """Seconds between two looks at the weight nodes: who lives, and each one's load."""
    placement: PlacementSettings = PlacementSettings()
    """Where requests run."""
    resume_timeout: float = Field(default=10.0, ge=0.0)
    """Seconds in which a request whose weight node was lost must have found another; 0: it fails at once
    where none can take it."""
    hand_over_timeout: float = Field(default=5.0, gt=0.0)
    """Seconds that a request which moves to another weight node waits for a token there; then it goes on
    where it was. Below the weight nodes' `hold_timeout_s`."""
    auth: AuthSettings = AuthSettings()
    """API keys."""
    open_paths: NameList = ("/health", "/ready", "/metrics", "/version")
    """Paths that need no key, with everything below them; say `/health,/ready` to keep metrics to keys."""
    http_tls: TlsSettings = TlsSettings()
    """HTTPS for clients; `tls` is for gRPC. Files are read again when they have changed."""
    cors_origins: NameList = ()
    """Origins like https://chat.example.org whose pages may call; `*` is all of them. Default: none."""
    max_concurrent_requests: int = Field(default=256, ge=1)
    """Requests in progress at once; more wait. Near what the weight nodes run at once, so that the fair
    queue is here and not theirs."""
    max_waiting_requests: int = Field(default=256, ge=0)
    """Requests that wait for others to end, fair among keys; one more is refused with 429."""
    queue_timeout: float = Field(default=30.0, gt=0.0)
    """Seconds that a request may wait for others to end; then it is refused with 429."""
    max_connections: int = Field(default=4096, ge=1)
    """HTTP connections open at once; one more is closed."""
    head_timeout: float = Field(default=10.0, gt=0.0)
    """Seconds in which a request's line and headers must have arrived."""
    max_head_size: ByteSize = 64 * 1024
    """Largest request line and headers in bytes."""
    max_choices: int = Field(default=128, ge=1)
    """Choices one request may ask for: `n` times its prompts. OpenAI's own limit for `n` is 128."""
    max_body_size: ByteSize = 16 * 1024 * 1024
    """Largest request body in bytes; two million token ids fit."""
    max_bodies_size: ByteSize = 64 * 1024 * 1024
    """Bytes of all bodies over 64 KiB that are read, checked and tokenized at once, of which a key may have
    half; more wait unread, for half of `body_timeout`. What is read from a body takes up to some 20 times
    its size."""
    body_timeout: float = Field(default=60.0, gt=0.0)
    """Seconds in which a request's body must have arrived; and a large one be parsed, and a long text of it
    be tokenized, each."""
    request_timeout: float = Field(default=3600.0, gt=0.0)
    """Seconds in which a request must have ended, its time in queues included."""
    stall_timeout: float = Field(default=300.0, gt=0.0)
    """Seconds to wait for the next token, the first one included."""
    write_timeout: float = Field(default=60.0, gt=0.0)
    """Seconds in which a client must take some of what is sent to it."""
    slow_reader_timeout: float = Field(default=120.0, gt=0.0)
    """Seconds in all that a stream may wait for its client to read; then it is ended."""
    progress_timeout: float = Field(default=30.0, gt=0.0)
    """Seconds without a step after which a weight node that has requests is not used, nor called ready."""
    shutdown_timeout: float = Field(default=30.0, ge=0.0)
    """Seconds that running requests have to end after SIGTERM."""
    ui: bool = True
    """Serve the live page at /ui, which shows what the router knows of the cluster, and a chat box."""
    ui_max_viewers: int = Field(default=32, ge=1)
    """Live pages that may be open at once; all share one look at the cluster."""
    tokenizer_threads: int = Field(default=2, ge=1)
    """Threads for long prompts; short ones are tokenized in place, faster than they could be handed over."""

    @model_validator(mode="after")
    def _check_body_sizes(self) -> Self:
        if self.max_bodies_size < self.max_body_size:
            raise ValueError("max-bodies-size is below max-body-size: the largest body would never be read")
        return self

    @property
    def key_bodies_size(self) -> int:
        """Bytes of large bodies that one key may have read at once: half of all, and the largest body."""
        return max(self.max_body_size, self.max_bodies_size // 2)

    @property
    def dummy_seed(self) -> int | None:
        """Seed of random weights, or None where the checkpoint has its own."""
        return self.seed if self.load_format == "dummy" else None

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names the model is served under, the first one being what answers say by default."""
        return self.served_model_name or (self.model,)
