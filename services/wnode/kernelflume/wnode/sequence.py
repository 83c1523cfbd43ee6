"""One request as the engine runs it: its tokens, how far they are computed, and where its KV is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.blocks import BlockKeys
from kernelflume.core.errors import LifecycleError
from kernelflume.core.ranges import SequenceRoute
from kernelflume.core.retention import Pinning, Retention
from kernelflume.wnode.sampling.seen import SeenTokens

if TYPE_CHECKING:
    from kernelflume.core.sampling import SamplingParameters, TokenLogprobs
    from kernelflume.wnode.grammar.matcher import Matcher
    from kernelflume.wnode.leads import Lead
    from kernelflume.wnode.messages import StepTrace


class SequenceState(StrEnum):
    """Life of a sequence."""

    WAITING = "waiting"
    RUNNING = "running"
    HELD = "held"
    ENDED = "ended"


class LookupPhase(StrEnum):
    """How far a waiting sequence is in looking its beginning up in the pool."""

    DUE = "due"
    UNDER_WAY = "under_way"
    DONE = "done"


class SequenceEvent(StrEnum):
    """What can happen to a sequence."""

    ADMIT = "admit"
    RESTART = "restart"
    HOLD = "hold"
    GO_ON = "go_on"
    END = "end"


TRANSITIONS: dict[tuple[SequenceState, SequenceEvent], SequenceState] = {
    (SequenceState.WAITING, SequenceEvent.ADMIT): SequenceState.RUNNING,
    (SequenceState.RUNNING, SequenceEvent.RESTART): SequenceState.WAITING,
    (SequenceState.WAITING, SequenceEvent.HOLD): SequenceState.HELD,
    (SequenceState.RUNNING, SequenceEvent.HOLD): SequenceState.HELD,
    (SequenceState.HELD, SequenceEvent.GO_ON): SequenceState.RUNNING,
    (SequenceState.HELD, SequenceEvent.RESTART): SequenceState.WAITING,
    (SequenceState.HELD, SequenceEvent.END): SequenceState.ENDED,
    (SequenceState.WAITING, SequenceEvent.END): SequenceState.ENDED,
    (SequenceState.RUNNING, SequenceEvent.END): SequenceState.ENDED,
}


@dataclass(slots=True)
class Sequence:
    """Mutable state of one request; owned by the engine's thread.

    Tokens [0, num_computed) have their keys and values on attention nodes, by ``route``. The last known
    token is never computed before it is needed as an input, so num_computed < num_tokens while running.
    """

    request_id: str
    prompt: list[int]
    sampling: SamplingParameters
    random_key: int
    """Key of the sequence's own random numbers."""
    submitted_at_s: float = 0.0
    """When the engine got it, by the engine's clock."""
    queue_s: float | None = None
    """Seconds from then to its first step."""
    traced: bool = False
    steps: list[StepTrace] = field(default_factory=list)
    """Of a traced request: its steps that no output told of yet."""
    sequence_id: int = 0
    """Name on attention nodes; a restarted sequence gets a new one, so that a late free hits nothing."""
    state: SequenceState = SequenceState.WAITING
    output: list[int] = field(default_factory=list)
    num_resumed: int = field(init=False)
    """Output tokens that another run of the request generated and told."""
    num_computed: int = 0
    route: SequenceRoute = field(default_factory=SequenceRoute)
    """Of a waiting sequence: what it shares of the pool until it runs."""
    cache_salt: str = ""
    """Only requests with the same one share keys and values."""
    retention: Retention = Retention.UNCHANGED
    """What becomes of the pins of its prompt's blocks."""
    lookup: LookupPhase = LookupPhase.DUE
    lookup_after_s: float = 0.0
    """Time before which it does not look up unless there is room for all of it."""
    lookup_after: int = 0
    """Names that must have been settled before it looks up, as it may ask for them."""
    gives_back_at_s: float = 0.0
    """Until when it keeps what it shares while it waits."""
    num_pauses: int = 0
    """Times that it gave back what it shared, or gave way."""
    num_shared: int = 0
    """Tokens whose keys and values it found in the pool when it began, whole blocks from the first on."""
    copies_last: bool = False
    """Its last block, less than full, may be others' too: what is added goes into a copy, a page more."""
    lead: Lead | None = None
    """One ahead of it that is about to compute what it did not find, and that it waits for."""
    num_followed: int = 0
    """How often it waited for another."""
    num_named: int = 0
    """Tokens whose blocks have names in the pool."""
    is_prompt_named: bool = False
    """True once what it had to compute before its next token has names."""
    num_cached: int | None = None
    """Prompt tokens that it never computed; None before it ran."""
    keys: BlockKeys | None = None
    """Names of its blocks, as far as they were asked for."""
    handed: SequenceRoute = field(default_factory=SequenceRoute)
    """Where another run of the request holds its blocks, until they were asked for."""
    num_handed: int = 0
    """Tokens that lay there."""
    hands_over: bool = False
    """Hold it for another weight node after its next token."""
    num_restarts: int = 0
    num_tokens_at_restart: int = 0
    """Tokens known when it last restarted: no more at the next restart means no progress."""
    matcher: Matcher | None = None
    """How far the output has come in its grammar, where it has one."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens from the second on, as far as they are computed; kept until the first token."""
    seen: SeenTokens | None = field(init=False)
    """What penalties count, where there are any."""
    _simple_from: int | None = field(init=False)
    """Tokens after which only temperature and filters bear on each next one; None: never."""
    _plain_from: int | None = field(init=False)
    """Tokens after which each next one is the likeliest and nothing else is told of it; None: never."""

    def __post_init__(self) -> None:
        sampling = self.sampling
        self.num_resumed = len(self.output)
        self.num_handed = self.handed.num_tokens
        self.seen = SeenTokens(self.prompt) if sampling.has_penalties else None
        if self.seen is not None:
            for token in self.output:
                self.seen.add(token)
        has_rules = sampling.has_rules or self.matcher is not None
        is_simple = not has_rules and sampling.logprobs is None
        self._simple_from = sampling.min_tokens if is_simple else None
        self._plain_from = sampling.min_tokens if is_simple and sampling.is_greedy else None

    @property
    def is_plain(self) -> bool:
        """True when the next token is the one with the largest logit, and nothing else is told of it."""
        return self._plain_from is not None and len(self.output) >= self._plain_from

    @property
    def is_simple(self) -> bool:
        """True when only temperature and filters bear on the next token, and nothing else is told of it."""
        return self._simple_from is not None and len(self.output) >= self._simple_from

    @property
    def has_rules(self) -> bool:
        """True when something changes the next token's logits, besides temperature and filters."""
        return (
            self.sampling.has_rules or self.matcher is not None or len(self.output) < self.sampling.min_tokens
        )

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True while log probabilities of prompt tokens are to be computed."""
        return (
            self.sampling.prompt_logprobs is not None
            and not self.output
            and len(self.prompt_logprobs) < len(self.prompt) - 1
        )

    @property
    def has_told(self) -> bool:
        """True once a token of this run was told."""
        return len(self.output) > self.num_resumed

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known."""
        return len(self.prompt) + len(self.output)

    @property
    def num_pending(self) -> int:
        """Known tokens that are not computed yet; 1 while decoding."""
        return self.num_tokens - self.num_computed

    @property
    def pinning(self) -> Pinning:
        """What becomes of the pins of its blocks: those of its output are none of the request's."""
        return Pinning(self.retention, len(self.prompt))

    @property
    def is_on_its_way(self) -> bool:
        """True while it has still to compute, and name, what its next token takes."""
        return self.state in {SequenceState.WAITING, SequenceState.RUNNING} and not self.is_prompt_named

    @property
    def is_decoding(self) -> bool:
        """True when one row a step is all it takes."""
        return bool(self.output) and self.num_pending == 1

    def tokens(self, start: int, end: int) -> list[int]:
        """Return the known tokens [start, end)."""
        num_prompt = len(self.prompt)
        if end <= num_prompt:
            return self.prompt[start:end]
        if start >= num_prompt:
            return self.output[start - num_prompt : end - num_prompt]
        return self.prompt[start:] + self.output[: end - num_prompt]

    def append(self, token: int) -> None:
        """Take in a generated token."""
        self.output.append(token)
        if self.seen is not None:
            self.seen.add(token)

    def apply(self, event: SequenceEvent) -> None:
        """Move to the event's state.

        Raises:
            LifecycleError: the event is illegal now; nothing was changed.
        """
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise LifecycleError(f"request {self.request_id} is {self.state}: {event} is not legal")
        self.state = state

    def block_keys(self, num_tokens: int, page_tokens: int) -> BlockKeys:
        """Return the keys of the first ``num_tokens`` known tokens at least."""
        if self.keys is None or self.keys.block_tokens != page_tokens:
            self.keys = BlockKeys(page_tokens, salt=self.cache_salt)
        if self.keys.num_tokens < num_tokens:
            self.keys.extend(self.tokens(self.keys.num_tokens, num_tokens))
        return self.keys

    def share(self, sequence_id: int, route: SequenceRoute, page_tokens: int) -> None:
        """Begin with what was found in the pool, under the id that it was shared by."""
        self.sequence_id = sequence_id
        self.route = route
        self.num_computed = self.num_shared = self.num_named = route.num_tokens
        self.copies_last = bool(route.num_tokens % page_tokens)

    def admit(self) -> None:
        """Run, with what was found in the pool.

        Raises:
            LifecycleError: it runs already, or has ended; nothing was changed.
        """
        self.apply(SequenceEvent.ADMIT)
        if not self.output:
            # What it computed itself before a restart was not saved by the pool.
            before = self.num_shared if self.num_cached is None else self.num_cached
            self.num_cached = min(self.num_shared, before)

    def give_back(self) -> None:
        """Begin with nothing again; the caller frees what it shares."""
        self.route = SequenceRoute()
        self.num_computed = self.num_shared = self.num_named = 0
        self.copies_last = self.is_prompt_named = False
        self.lookup = LookupPhase.DUE
        self.lead = None

    def take_steps(self) -> tuple[StepTrace, ...]:
        """Return the steps that no output told of yet, which one does now."""
        if not self.steps:
            return ()
        steps, self.steps = tuple(self.steps), []
        return steps

    def restart(self) -> None:
        """Forget all computed state and wait again; the tokens so far are kept and recomputed."""
        self.apply(SequenceEvent.RESTART)
        self.give_back()
        self.num_restarts += 1
        self.num_tokens_at_restart = self.num_tokens
