"""A recorded run once more, under the virtual clock: the requests when they came, the policy in force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.core.recording import time_per_token_s
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.sim.attention_nodes import PoolKind
from kernelflume.scaler.sim.events import Event, EventKind, EventQueue
from kernelflume.scaler.sim.live_pool import LiveFacts, LivePool, uncomputed_tokens
from kernelflume.scaler.sim.measured_steps import Calibration, MeasuredSteps
from kernelflume.scaler.sim.node_spans import prewarms_s, releases_s
from kernelflume.scaler.sim.sessions import Session, Turn
from kernelflume.scaler.sim.world import World

if TYPE_CHECKING:
    from kernelflume.core.recording import RecordedRequest, Recording
    from kernelflume.scaler.sim.shards import Residence

MEASURED = Calibration()
"""The profile as it is."""
_SPREAD_TOKENS = 2048
"""Prompts of twice as many are spread over nodes, where a weight node is not told otherwise."""
_LOOK_S = 0.25
"""Between two looks of the scaler."""
_NODE = "attention node"
_LOOKED_UP = 1
"""Number of an arrival whose beginning has been looked up."""


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """One request of a replay, in seconds since the beginning."""

    first_token_s: float
    ended_s: float
    output_tokens: int

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None with fewer than two."""
        return time_per_token_s(self.first_token_s, self.ended_s, self.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay came to."""

    requests: tuple[ReplayedRequest, ...]
    """In the order of the recording's."""
    duration_s: float
    node_seconds: float
    """Of attention nodes, from launch to release."""
    most_nodes: int
    num_put_aside: int


def replay(recording: Recording, calibration: Calibration = MEASURED) -> Replay:
    """Simulate a recorded run.

    Args:
        recording: what was asked, the policy, the profile, and how long nodes took to come and go.
        calibration: of the profile.

    Raises:
        ConfigurationError: the policy cannot be read, or the run used what the simulator does not know.
    """
    return _Replayer(recording, calibration).run()


class _Replayer:
    """Drives one pool from the first request to the end of the last. Used once."""

    def __init__(self, recording: Recording, calibration: Calibration) -> None:
        if any(request.cached_tokens for request in recording.requests):
            raise ConfigurationError("prompts were in the server's cache in part: record with another --seed")
        policy = _policy(recording.policy)
        prewarms = prewarms_s(recording) or [recording.profile.prewarm_s]
        releases = releases_s(recording) or [0.0]
        steps = MeasuredSteps(recording.profile, token_bytes=recording.token_bytes, calibration=calibration)
        kind = PoolKind(
            weight_hardware="weight node",
            weight_gpus=1,
            attention_price=_NODE,
            attention_gpus=1,
            node_capacity_tokens=recording.node_capacity_tokens,
            token_bytes=recording.token_bytes,
            steps=steps,
            profile=recording.profile,
            policy=policy,
            prewarm_s=prewarms[len(prewarms) // 2],
            look_s=_LOOK_S,
            spread_tokens=_SPREAD_TOKENS,
            packs=False,
            replicas=1,
            spot=None,
            seed=0,
        )
        self._sessions = [
            _session(number, request, recording.page_tokens)
            for number, request in enumerate(recording.requests)
        ]
        self._world = World(
            queue=EventQueue(),
            slo_s=policy.tpot_slo_s or 1.0,
            keeps_kv=False,
            prefill_tokens_per_s=None,
        )
        facts = LiveFacts(
            initial_nodes=len(recording.initial_nodes),
            page_tokens=recording.page_tokens,
            release_s=releases[len(releases) // 2],
        )
        self._pool = LivePool(self._world, self._over, kind, steps=steps, facts=facts)
        self._looks_up = recording.has_prefix_cache
        self._ended: dict[int, float] = {}

    def run(self) -> Replay:
        """Let virtual time pass until the last request has ended."""
        queue, pool = self._world.queue, self._pool
        pool.start()
        for session in self._sessions:
            queue.add(Event(session.start_s, EventKind.ARRIVAL, session.number))
        queue.add(Event(_LOOK_S, EventKind.LOOK, 0))
        while len(self._ended) < len(self._sessions):
            event = queue.pop()
            if event is None:  # a look follows every look
                raise AssertionError("no event is due any more")
            self._handle(event)
        duration_s = max(self._ended.values())
        self._world.billing.end_all(duration_s)
        if self._world.refused_tokens:
            raise ConfigurationError("a request is longer than all nodes that the policy allows hold")
        return Replay(
            requests=tuple(
                ReplayedRequest(
                    pool.prefilling.first_tokens[session.number],
                    self._ended[session.number],
                    session.output_tokens,
                )
                for session in self._sessions
            ),
            duration_s=duration_s,
            node_seconds=3600 * self._world.billing.gpu_hours().get(_NODE, 0.0),
            most_nodes=self._world.billing.most_gpus,
            num_put_aside=self._world.num_put_aside,
        )

    def _handle(self, event: Event) -> None:
        pool = self._pool
        match event.kind:
            case EventKind.ENGINE:
                pool.on_engine(event)
            case EventKind.CAPACITY:
                pool.on_capacity(event)
            case EventKind.ARRIVAL if event.number < 0:
                pool.on_return(event)
            case EventKind.ARRIVAL:
                answered_s = pool.answered_s() if self._looks_up and event.number != _LOOKED_UP else None
                if answered_s is None:
                    pool.ask(self._sessions[event.subject], 0, event.time_s)
                else:
                    self._world.queue.add(Event(answered_s, EventKind.ARRIVAL, event.subject, _LOOKED_UP))
            case EventKind.LOOK:
                pool.on_look()
                self._world.queue.add(Event(event.time_s + _LOOK_S, EventKind.LOOK, 0))

    def _over(self, residence: Residence, at_s: float) -> bool:
        self._ended[residence.number] = at_s
        return False


def _session(number: int, request: RecordedRequest, page_tokens: int) -> Session:
    """Return a request as a session of one turn."""
    context = max(1, request.prompt_tokens + uncomputed_tokens(page_tokens))
    return Session(number, (Turn(context, request.output_tokens),), request.sent_s)


def _policy(text: str) -> ScalingPolicy:
    try:
        policy = ScalingPolicy.parse(text)
    except InvalidRequestError as error:
        raise ConfigurationError(str(error)) from error
    if not policy.automatic:
        raise ConfigurationError("policy: automatic is false: there is no policy to replay")
    return policy
