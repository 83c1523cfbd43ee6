"""Settings of the router."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from kernelflume.router.tools.registry import ToolParserName  # noqa: TC001 - pydantic reads it
from kernelflume.runtime.settings import ByteSize, ServiceSettings


def _split(value: object) -> object:
    """Read ``a,b`` as two items; a list stays one, its items split too (a flag given twice)."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(part.strip() for item in value for part in item.split(",") if part.strip())
    return value


NameList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""Names, separated by commas or given by a flag more than once."""


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
    max_concurrent_requests: int = Field(default=256, ge=1)
    """Requests in progress at once; one more is refused with 429."""
    max_choices: int = Field(default=128, ge=1)
    """Choices one request may ask for: `n` times its prompts. OpenAI's own limit for `n` is 128."""
    max_body_size: ByteSize = 16 * 1024 * 1024
    """Largest request body in bytes; two million token ids fit."""
    body_timeout: float = Field(default=60.0, gt=0.0)
    """Seconds in which a request's body must have arrived."""
    request_timeout: float = Field(default=3600.0, gt=0.0)
    """Seconds in which a request must have ended, its time in queues included."""
    stall_timeout: float = Field(default=300.0, gt=0.0)
    """Seconds to wait for the next token, the first one included."""
    write_timeout: float = Field(default=60.0, gt=0.0)
    """Seconds in which a client must take some of what is sent to it."""
    shutdown_timeout: float = Field(default=30.0, ge=0.0)
    """Seconds that running requests have to end after SIGTERM."""
    tokenizer_threads: int = Field(default=2, ge=1)
    """Threads for long prompts; short ones are tokenized in place, faster than they could be handed over."""

    @property
    def dummy_seed(self) -> int | None:
        """Seed of random weights, or None where the checkpoint has its own."""
        return self.seed if self.load_format == "dummy" else None

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names the model is served under, the first one being what answers say by default."""
        return self.served_model_name or (self.model,)
