"""What the shell and the engine say to each other over their pipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.core.resumption import FROM_THE_START
from kernelflume.core.retention import Retention
from kernelflume.wnode.hand_over_counts import HandOverCounts
from kernelflume.wnode.kv_traffic import KvTraffic

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.core.handshake import Handshake
    from kernelflume.core.profile import StepTimes
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.core.regions import DeviceLanes, MemoryRegion
    from kernelflume.core.resumption import Resumption
    from kernelflume.core.routing import RoutingSnapshot
    from kernelflume.core.sampling import SamplingParameters, TokenLogprobs
    from kernelflume.wnode.settings import WeightNodeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """What the spawned process is told."""

    settings: WeightNodeSettings
    name: str
    """node_id#incarnation, the transport agent's name."""
    geometry: KvGeometry
    """Head geometry in the resolved dtype."""
    max_model_len: int
    """Most tokens of a sequence."""
    parent_pid: int
    """The shell's process; the engine ends with it."""


# --- shell to engine ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a request; its tokens come back in ``StepOutput``."""

    request_id: str
    prompt: list[int]
    sampling: SamplingParameters
    grammar: bytes = b""
    """The compiled grammar of ``sampling.grammar``, where there is one."""
    traced: bool = False
    """Tell with its tokens what its steps took."""
    cache_salt: str = ""
    """Only requests with the same one share keys and values."""
    resumption: Resumption = FROM_THE_START
    """How far another run of the request came."""
    hands_over: bool = False
    """Hold it after its first token."""
    retention: Retention = Retention.UNCHANGED
    """What becomes of the pins of its prompt's blocks."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a request and free its pages; unknown ids are ignored, for it may just have ended."""

    request_id: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Hold a request between two tokens, with all of its blocks named; unknown ids are ignored.

    Answered by an output that is ``held``, unless the request ends first.
    """

    request_id: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Run a held request again; others are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class OpenLink:
    """Allocate and register buffers for an attention node; answered by ``LinkOffer`` or ``LinkFailed``."""

    node_name: str


@dataclass(frozen=True, slots=True)
class CompleteLink:
    """Connect to the attention node that answered and warm the path.

    It ends in ``LinkReady`` or ``LinkFailed``.
    """

    node_name: str
    answer: LinkAnswer


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Forget an attention node that is out of the table; refused by ``LinkFailed`` while ranges are there."""

    node_name: str


@dataclass(frozen=True, slots=True)
class ForgetLink:
    """Give an attention node up, with the ranges there: it answers no more, or has dropped this node."""

    node_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Use this snapshot from the next step on; a node in it is not used before its link is ready."""

    snapshot: RoutingSnapshot


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine."""


Command = Submit | Cancel | HandOver | GoOn | OpenLink | CompleteLink | CloseLink | ForgetLink | Adopt | Stop

# --- engine to shell ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The model is loaded and warmed."""

    load_seconds: float


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step that a traced request was part of."""

    seconds: float
    num_rows: int
    """Rows of the request itself: 1 while decoding, more of a prompt."""
    batch_rows: int
    """Rows of the whole step."""
    waits: tuple[tuple[str, float], ...]
    """Attention nodes of the request that the step waited for, each with the seconds, over all layers, until
    its partials had come. Waits for several nodes overlap; inside a captured graph nobody can tell."""


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """New tokens of one request."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str = ""
    stop_token_id: int | None = None
    error: str = ""
    """Why the request failed; the finish reason is then ``abort``."""
    invalid: bool = False
    """The request itself is at fault."""
    queue_s: float | None = None
    """With the first token: seconds from the request's arrival at the engine to its first step."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each of ``token_ids``, where the request asked for it."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """With the first token: of the prompt's tokens but the first, where the request asked for it."""
    num_cached_tokens: int = 0
    """With the first token: prompt tokens that were found in the pool and not computed."""
    steps: tuple[StepTrace, ...] = ()
    """Of a traced request: its steps since the output before."""
    held: SequenceRoute | None = None
    """Without tokens: the request is held, and its keys and values are there; empty where none are."""
    random_key: int | None = None
    """With the first token of a request that draws and brought no seed: the key of its random numbers."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Everything one step produced."""

    outputs: tuple[TokenOutput, ...]


@dataclass(frozen=True, slots=True)
class LinkOffer:
    """This side of a link: what goes into ``ConnectRequest``."""

    node_name: str
    handshake: Handshake
    metadata: bytes
    num_lanes: int
    max_rows: int
    partial_regions: tuple[MemoryRegion, ...]
    doorbell_address: str
    device_lanes: DeviceLanes | None = None
    """This side of the lanes that kernels exchange through, where the engine has any."""


@dataclass(frozen=True, slots=True)
class LinkAnswer:
    """The attention node's side: what ``ConnectResponse`` brought."""

    handshake: Handshake
    metadata: bytes
    query_regions: tuple[MemoryRegion, ...]
    append_regions: tuple[MemoryRegion, ...]
    page_tokens: int
    num_pages: int
    num_free_pages: int
    doorbell_address: str
    device_lanes: DeviceLanes | None = None


@dataclass(frozen=True, slots=True)
class LinkReady:
    """The path is warm."""

    node_name: str
    warm_seconds: float


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """A link could not be made or closed."""

    node_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """A link was closed on request."""

    node_name: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """A ready link broke; its sequences are being recomputed elsewhere."""

    node_name: str
    reason: str
    num_sequences: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """A snapshot took effect between two steps."""

    epoch: int
    install_seconds: float
    """Time in the step loop to swap the table."""
    rebalance_seconds: float
    """Time in the step loop to decide and apply the tail moves."""
    num_tails_moved: int


@dataclass(frozen=True, slots=True)
class RoutesChanged:
    """Routes to publish by sequence id, and sequences that ended."""

    routes: dict[int, SequenceRoute]
    ended: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """One sequence for status displays."""

    sequence_id: int
    request_id: str
    state: str
    num_prompt_tokens: int
    num_output_tokens: int
    route: SequenceRoute


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Figures sent a few times a second while steps run and once when they stop."""

    num_steps: int
    num_running: int
    num_waiting: int
    num_tokens: int
    num_restarts: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    """Prompt tokens of the requests that looked theirs up, since the start."""
    prefix_hits: int
    """Those of them that were found and not computed."""
    step_seconds: tuple[float, ...]
    """Durations of the steps since the last report."""
    exposed_wait_seconds: float
    """Time of those steps spent waiting for partials."""
    sequences: tuple[SequenceReport, ...]
    num_waiting_tokens: int
    """Tokens accepted whose keys and values are not computed yet, the newest of each sequence aside."""
    decode_step_s: float
    """Median duration of the latest steps that only decoded; 0 while there are none."""
    num_decode_rows: int
    """Rows of the latest such step."""
    step_times: StepTimes | None
    """Where the time of such steps goes."""
    num_graph_steps: int = 0
    """Steps that ran as a captured graph, since the start."""
    num_graph_captures: int = 0
    """Graphs captured since the start."""
    num_microbatches: int = 0
    """Of the latest step that ran as a captured graph; 0 before the first."""
    kv_usage: float = 0.0
    """Share of the active attention nodes' pages that are taken or promised, by whomever; 0 without nodes."""
    kv_traffic: KvTraffic = field(default_factory=KvTraffic)
    hand_overs: HandOverCounts = field(default_factory=HandOverCounts)


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine ends because of this error."""

    reason: str


Event = (
    EngineReady
    | StepOutput
    | LinkOffer
    | LinkReady
    | LinkFailed
    | LinkClosed
    | LinkLost
    | Adopted
    | RoutesChanged
    | EngineReport
    | EngineFailed
)
