"""One choice on weight nodes: tokens are received as they come and wait until they are taken.

A run that is lost with its weight node goes on elsewhere; whoever takes the tokens does not notice.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kernelflume.core.errors import DeadlineError, KernelFlumeError, UnavailableError
from kernelflume.core.sampling import FinishReason
from kernelflume.router.hand_over import MoveAct, MoveNews, MovePhase, MoveState
from kernelflume.router.runs import Run
from kernelflume.rpc.codec import logprobs_from_proto

if TYPE_CHECKING:
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.router.moves import EndedMove
    from kernelflume.router.placer import Decision
    from kernelflume.router.runs import RunSite, StartRun
    from kernelflume.rpc.v1 import wnode_pb2

_MAX_UNTAKEN = 1 << 18
"""Tokens that may wait for their client. A sound weight node stops at max_tokens."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All that came since the last take."""

    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_token_id: int | None
    """The eos or stop token that ended the choice; not among ``token_ids``."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of each of ``token_ids``, where the request asked for it."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens but the first; in the first batch, where the request asked for it."""


class GenerationObserver(Protocol):
    """Told of a choice's progress, in the event loop."""

    def placed(self, decision: Decision, *, node_id: str, is_resumed: bool) -> None:
        """Take note of a run that begins on a node, or goes on there where another was lost."""
        ...

    def moved(self, move: EndedMove) -> None:
        """Take note of a move that is over."""
        ...

    def started(self, num_tokens: int) -> None:
        """Take note of the first event."""
        ...

    def received(self, num_tokens: int, seconds: float) -> None:
        """Take note of a later event, ``seconds`` after the one before."""
        ...

    def ended(self, *, was_started: bool) -> None:
        """Take note of the end, whatever it was."""
        ...


class GenerationOwner(Protocol):
    """Decides what becomes of a choice beyond one run. Called in the event loop."""

    def started(self, generation: Generation) -> None:
        """Take note of the first token; called once."""
        ...

    def held(self, generation: Generation, route: SequenceRoute) -> None:
        """Move a choice that stands still, its keys and values on ``route``, or let it stay."""
        ...

    def asked_away(self, generation: Generation, *, again: bool) -> None:
        """Take note that the run's weight node is to end, or be reminded of it."""
        ...

    def moved(self, generation: Generation, *, has_moved: bool) -> None:
        """Take note of the end of a move: the choice goes on at the target, or where it was."""
        ...

    def lost(self, generation: Generation, error: KernelFlumeError) -> asyncio.Task[None] | None:
        """Go on after a run that ended before its time, of which a token was told already.

        Returns the task that begins another run or fails the generation, or None where it must end so.
        """
        ...

    def ended(self, generation: Generation) -> None:
        """Take note of the end of a choice that had started; called once, after the last run."""
        ...


class Generation:
    """Receives the news of a choice's runs, one after another, and keeps them.

    While the choice moves there are two: the source, which stands still, and the target on another node.
    A slow client holds nothing up on the weight node, nor another client; what is kept are token ids, at most
    the request's max_tokens. Owned by one request, used in one event loop.
    """

    def __init__(
        self, owner: GenerationOwner, *, arrived: asyncio.Event, observer: GenerationObserver
    ) -> None:
        """Make a generation of which nothing runs yet.

        Args:
            owner: decides what becomes of it.
            arrived: set at every event and at the end; may be shared by the choices of one request.
            observer: told of progress.
        """
        self._owner = owner
        self._arrived = arrived
        self._observer = observer
        self._started = asyncio.Event()
        self._num_taken = 0
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._finish_reason: FinishReason | None = None
        self._stop_token_id: int | None = None
        self._error: KernelFlumeError | None = None
        self._was_started = False
        self._is_over = False
        self._last_at = 0.0
        self.is_run_silent = True
        """True until the latest run tells a token."""
        self._run: Run | None = None
        """The latest, whose tokens count."""
        self._source: Run | None = None
        """The one before, while it stands still for the latest."""
        self._move = MoveState()
        self._resuming: asyncio.Task[None] | None = None
        self.token_ids: list[int] = []
        """All tokens so far, but for the eos or stop token that ended the choice."""
        self.random_key: int | None = None
        """Key of the random numbers, where the weight node told one."""
        self.num_cached_tokens = 0
        """Prompt tokens whose keys and values the first weight node did not have to compute."""

    @property
    def site(self) -> RunSite | None:
        """Where the latest run is or was."""
        return None if self._run is None else self._run.site

    def begin(self, start: StartRun, site: RunSite) -> None:
        """Begin a run; the one before, if there was one, has ended.

        Args:
            start: starts the run, whose news go to what it is given; returns what controls it.
            site: where it is; its load is released when it ends.
        """
        self._resuming = None
        self._move.reset()
        self._begin(start, site)

    @property
    def is_settled(self) -> bool:
        """True while the choice runs, and nobody wants it elsewhere."""
        return self._can_be_asked and self._move.phase is MovePhase.SETTLED

    @property
    def is_moving(self) -> bool:
        """True while a run waits for its first token that goes on for one that stands still."""
        return self._move.is_under_way

    @property
    def _can_be_asked(self) -> bool:
        return not self._is_over and self._run is not None and not self._run.is_over

    def hand_over(self) -> bool:
        """Have the choice stand still between two tokens, so that it can move; True if that is news to it."""
        if self._run is None or not self._can_be_asked:
            return False
        if self._move.take(MoveNews.ORDERED) is not MoveAct.ASK:
            return False
        self._run.hand_over()
        return True

    def move(self, start: StartRun, site: RunSite) -> None:
        """Begin the run that goes on for the one that stands still."""
        self._move.take(MoveNews.HELD)
        self._source = self._run
        self._begin(start, site)

    def stay(self) -> None:
        """Let the run that stands still go on: there is no place to move to."""
        self._move.reset()
        if self._run is not None:
            self._run.go_on()

    def give_move_up(self, site: RunSite) -> None:
        """End the run at a target that has told nothing yet: it took too long."""
        if self._run is not None and self._run.site is site and self._move.is_under_way:
            self._run.cancel()

    def _begin(self, start: StartRun, site: RunSite) -> None:
        self.is_run_silent = True
        self._run = run = Run(self, site)
        run.start(start)

    async def wait_started(self, *, timeout_s: float) -> None:
        """Wait for the first event, which stays to be taken.

        Raises:
            DeadlineError: none came in time.
            KernelFlumeError: the call failed before it.
        """
        late = DeadlineError(f"no token came within {timeout_s:g} s")
        # A third of the cost of a timeout, before every first token.
        timer = asyncio.get_running_loop().call_later(timeout_s, self.fail, late)
        try:
            await self._started.wait()
        finally:
            timer.cancel()
        if not self._was_started and self._error is not None:
            raise self._error

    def take(self) -> Batch | None:
        """Return what came since the last take, or None when that is nothing.

        Raises:
            KernelFlumeError: the call failed, and all that came before was taken.
        """
        token_ids = self.token_ids[self._num_taken :] if self._num_taken else self.token_ids.copy()
        if token_ids or self._finish_reason is not None:
            batch = Batch(
                token_ids,
                self._finish_reason,
                self._stop_token_id,
                self._logprobs,
                self._prompt_logprobs,
            )
            self._num_taken += len(token_ids)
            self._finish_reason = None
            if self.site is not None:
                self.site.load.grew(len(token_ids))
            self._logprobs, self._prompt_logprobs = [], []
            if self._error is not None:
                self._arrived.set()  # there is more to take
            return batch
        if self._error is not None:
            raise self._error
        return None

    def fail(self, error: KernelFlumeError) -> None:
        """End the run, and the choice, with this error for whoever takes next."""
        self._error = self._error or error
        self.close()
        self._started.set()
        self._arrived.set()

    def close(self) -> None:
        """End what runs; the weight nodes then free all they hold for it."""
        self._is_over = True
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
            self._end()
        self._release_source()
        if self._run is not None:
            self._run.cancel()

    def token(self, token_id: int, now: float) -> None:
        """Take a token that came at ``now``, with nothing else to tell."""
        self.token_ids.append(token_id)
        self._progressed(1, now)

    def event(self, event: wnode_pb2.GenerateEvent, now: float) -> None:
        """Take an event that came at ``now``."""
        num_tokens = len(event.token_ids) + event.HasField("stop_token_id")
        self._prompt_logprobs += map(logprobs_from_proto, event.prompt_logprobs)
        if not num_tokens and not event.finish_reason:
            return  # it came before the first token
        self.token_ids += event.token_ids
        self._logprobs += map(logprobs_from_proto, event.logprobs)
        if event.HasField("random_key"):
            self.random_key = event.random_key
        if not self._was_started:
            self.num_cached_tokens = event.num_cached_tokens
        if event.finish_reason:
            self._finish(event)
        self._progressed(num_tokens, now)

    def run_held(self, run: Run, route: SequenceRoute) -> None:
        """Move a run that stands still."""
        if run is self._run and not self._is_over:
            self._owner.held(self, route)

    def run_asked_away(self, run: Run, *, again: bool) -> None:
        """Take note that a run's weight node is to end, or be reminded of it."""
        if run is self._run and not self._is_over:
            self._owner.asked_away(self, again=again)

    def run_ended(self, run: Run, error: KernelFlumeError | None) -> None:
        """Take note that a run has ended: the choice too, unless another run goes on."""
        if run is not self._run:
            if run is self._source:
                self._source = None
                self._move.take(MoveNews.SOURCE_ENDED)
            return
        if self._move.is_under_way and not self._is_over:
            if self._move.take(MoveNews.TARGET_ENDED) is MoveAct.GO_ON and self._source is not None:
                self._run, self._source = self._source, None
                self.is_run_silent = not self._was_started
                self._run.go_on()
                self._owner.moved(self, has_moved=False)
                return
            # Both are lost, whatever the target says.
            error = UnavailableError(f"the weight nodes of a move are lost: {error}")
        if error is not None and self._was_started and not self._is_over:
            self._resuming = self._owner.lost(self, error)
            if self._resuming is not None:
                return
        self._error = self._error or error
        if self._error is None and not self._was_started:
            self._error = UnavailableError("the weight node ended the request without a token")
        self._end()

    def _release_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.cancel()

    def _end(self) -> None:
        self._is_over = True
        self._observer.ended(was_started=self._was_started)
        if self._was_started:
            self._owner.ended(self)
        self._started.set()
        self._arrived.set()

    def _progressed(self, num_tokens: int, now: float) -> None:
        if self.is_run_silent:
            self._run_began()
        if self._was_started:
            self._observer.received(num_tokens, now - self._last_at)
        else:
            self._was_started = True
            self._owner.started(self)
            self._observer.started(num_tokens)
            self._started.set()
        self._last_at = now
        self._arrived.set()
        if len(self.token_ids) - self._num_taken > _MAX_UNTAKEN:
            self.fail(UnavailableError("the weight node sent more tokens than were asked for"))

    def _run_began(self) -> None:
        self.is_run_silent = False
        if self.site is not None:
            self.site.load.computed()
        if self._move.is_under_way:
            self._move.take(MoveNews.TARGET_TOLD)
            self._release_source()
            self._owner.moved(self, has_moved=True)

    def _finish(self, event: wnode_pb2.GenerateEvent) -> None:
        self._is_over = True
        if event.finish_reason not in {FinishReason.STOP, FinishReason.LENGTH}:
            self._error = UnavailableError("the weight node gave the request up")
            return
        self._finish_reason = FinishReason(event.finish_reason)
        if event.HasField("stop_token_id"):
            self._stop_token_id = event.stop_token_id
