"""One request as the engine runs it: its tokens, how far they are computed, and where its KV is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.errors import LifecycleError
from kernelflume.core.ranges import SequenceRoute

if TYPE_CHECKING:
    from kernelflume.core.sampling import SamplingParameters
    from kernelflume.wnode.messages import StepTrace


class SequenceState(StrEnum):
    """Life of a sequence."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class SequenceEvent(StrEnum):
    """What can happen to a sequence."""

    ADMIT = "admit"
    RESTART = "restart"
    END = "end"


TRANSITIONS: dict[tuple[SequenceState, SequenceEvent], SequenceState] = {
    (SequenceState.WAITING, SequenceEvent.ADMIT): SequenceState.RUNNING,
    (SequenceState.RUNNING, SequenceEvent.RESTART): SequenceState.WAITING,
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
    num_computed: int = 0
    route: SequenceRoute = field(default_factory=SequenceRoute)
    num_restarts: int = 0
    num_tokens_at_restart: int = 0
    """Tokens known when it last restarted: no more at the next restart means no progress."""
    output_counts: dict[int, int] = field(default_factory=dict)
    """Times each token was generated; kept only for requests with penalties."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known."""
        return len(self.prompt) + len(self.output)

    @property
    def num_pending(self) -> int:
        """Known tokens that are not computed yet; 1 while decoding."""
        return self.num_tokens - self.num_computed

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

    def apply(self, event: SequenceEvent) -> None:
        """Move to the event's state.

        Raises:
            LifecycleError: the event is illegal now; nothing was changed.
        """
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise LifecycleError(f"request {self.request_id} is {self.state}: {event} is not legal")
        self.state = state

    def take_steps(self) -> tuple[StepTrace, ...]:
        """Return the steps that no output told of yet, which one does now."""
        if not self.steps:
            return ()
        steps, self.steps = tuple(self.steps), []
        return steps

    def restart(self) -> None:
        """Forget all computed state and wait again; the tokens so far are kept and recomputed."""
        self.apply(SequenceEvent.RESTART)
        self.num_computed = 0
        self.route = SequenceRoute()
        self.num_restarts += 1
        self.num_tokens_at_restart = self.num_tokens
