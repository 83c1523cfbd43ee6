"""A decode engine under the virtual clock: one batch, and the shards that hold its KV.

Every running session gains a token a step. Between two changes of the batch or of a tail the seconds of a
step are a function of the number of steps alone; it is cut where it is not straight, and each piece is summed
in closed form. So time and memory go with the changes, not with the steps.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from kernelflume.core.errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelflume.scaler.sim.measures import StepMeter
    from kernelflume.scaler.sim.shards import Residence, Shard
    from kernelflume.scaler.sim.step_model import StepModel

_STRAIGHT = 1e-4
"""Share of a step by which a piece's middle may lie off the line through its ends."""
_LONGEST = 10**9
"""Steps: more than any piece has."""


class Piece(NamedTuple):
    """Steps whose seconds lie on a line."""

    num_steps: int
    first_s: float
    slope_s: float
    """Each step takes so much longer than the one before."""

    def seconds(self, num_steps: int) -> float:
        """Return what the first so many steps take together."""
        return num_steps * self.first_s + self.slope_s * num_steps * (num_steps - 1) / 2

    def steps_for(self, seconds: float) -> int:
        """Return how many steps it takes until so many seconds have passed; at most those that there are."""
        low, high = 0, self.num_steps
        if self.seconds(high) <= seconds:
            return high
        # Steps take longer and longer, or ever shorter by little: the sum rises either way.
        while low < high:
            middle = (low + high) // 2
            if self.seconds(middle) >= seconds:
                high = middle
            else:
                low = middle + 1
        return low


class Engine:
    """One batch and its shards. A cluster owns it, changes it through these methods only, and plans after."""

    def __init__(self, number: int, model: StepModel, meter: StepMeter) -> None:
        """Begin with no shard, at step 0 and 0 seconds."""
        self.number = number
        self.shards: list[Shard] = []
        self.clock_s = 0.0
        """When the last step ended; at most one step ahead of the queue's clock."""
        self.step = 0
        self.version = 0
        """Of the plan: events of older ones are void."""
        self.running: dict[int, Residence] = {}
        self.idle: dict[int, Residence] = {}
        """Sessions between turns whose KV is kept, the longest idle first."""
        self._finishes: list[tuple[int, int]] = []
        self._plan: deque[Piece] = deque()
        self._model = model
        self._meter = meter
        self._num_joined = 0

    # --- figures -------------------------------------------------------------------------------------

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit all shards."""
        return sum(shard.capacity_tokens for shard in self.shards)

    @property
    def held_tokens(self) -> int:
        """Tokens on all shards."""
        return sum(shard.held(self.step) for shard in self.shards)

    def step_s(self, ahead: int = 0) -> float:
        """Return the seconds of the step after ``ahead`` more; 0 when nothing runs."""
        if not self.running:
            return 0.0
        step, most, num_read = self.step + ahead, 0.0, 0
        for shard in self.shards:  # as Shard.read, without a call: this is asked for most often of all
            num_tails = len(shard.tails)
            if num_tails or shard.base_read:
                num_read += 1
                most = max(most, (shard.base_read + num_tails * (step - shard.base_step)) / shard.ways)
        return self._model.step_s(len(self.running), most, max(1, num_read))

    @property
    def present_step_s(self) -> float:
        """Seconds of the next step as planned; 0 when nothing runs."""
        return self._plan[0].first_s if self._plan else self.step_s()

    def newest(self) -> Residence:
        """Return the running session that joined last."""
        return max(self.running.values(), key=lambda residence: residence.joined)

    # --- time ----------------------------------------------------------------------------------------

    def catch_up(self, now_s: float) -> None:
        """Run steps until the first boundary at or after ``now_s``, as changes take effect there."""
        if not self.running:
            self.clock_s = max(self.clock_s, now_s)
            return
        while self.clock_s < now_s and self._plan:
            self._run(self._plan[0].steps_for(now_s - self.clock_s))

    def finish_plan(self) -> None:
        """Run all planned steps: to where something changes."""
        while self._plan:
            self._run(self._plan[0].num_steps)

    def plan(self) -> float | None:
        """Cut the steps until the next change into pieces; return when that is, or None if nothing runs.

        Raises:
            LifecycleError: a tail has no room for one more token: the cluster was to see to it.
        """
        self.version += 1
        self._plan.clear()
        if not self.running:
            return None
        num_steps = self._num_steps()
        if num_steps < 1:
            raise LifecycleError(f"engine {self.number} cannot do a step: a tail is full or a turn is over")
        done, at_s = 0, self.clock_s
        while done < num_steps:
            piece = self._piece(done, num_steps - done)
            self._plan.append(piece)
            done += piece.num_steps
            at_s += piece.seconds(piece.num_steps)
        return at_s

    def _num_steps(self) -> int:
        """Return the steps until a turn ends, or a tail's shard reaches its threshold or capacity."""
        num_steps = self._finishes[0][0] - self.step if self._finishes else _LONGEST
        for shard in self.shards:
            if shard.tails:
                held = shard.held(self.step)
                limit = shard.threshold_tokens
                if held + len(shard.tails) > limit:
                    limit = shard.capacity_tokens
                num_steps = min(num_steps, (limit - held) // len(shard.tails))
        return num_steps

    def _piece(self, done: int, most: int) -> Piece:
        first_s = self.step_s(done)
        num_steps = most
        while True:
            if num_steps == 1:
                return Piece(1, first_s, 0.0)
            last_s = self.step_s(done + num_steps - 1)
            middle = (num_steps - 1) // 2
            middle_s = self.step_s(done + middle)
            line_s = first_s + (last_s - first_s) * middle / (num_steps - 1)
            if num_steps == 2 or abs(middle_s - line_s) <= _STRAIGHT * middle_s:
                return Piece(num_steps, first_s, (last_s - first_s) / (num_steps - 1))
            num_steps = (num_steps + 1) // 2

    def _run(self, num_steps: int) -> None:
        piece = self._plan.popleft()
        seconds = piece.seconds(num_steps)
        self._meter.add(num_steps, piece.first_s, piece.slope_s, rows=len(self.running))
        self.clock_s += seconds
        self.step += num_steps
        if num_steps < piece.num_steps:
            rest = Piece(
                piece.num_steps - num_steps, piece.first_s + piece.slope_s * num_steps, piece.slope_s
            )
            self._plan.appendleft(rest)

    # --- sessions ------------------------------------------------------------------------------------

    def join(self, residence: Residence, added: Mapping[Shard, int], tail: Shard) -> None:
        """Let a session run: tokens are added to its parts, and it appends to ``tail``."""
        resumed = self.idle.pop(residence.number, None) is not None
        if resumed:
            for shard, tokens in residence.parts.items():
                shard.settle(self.step)
                shard.base_read += tokens
        self._num_joined += 1
        residence.joined = self._num_joined
        for shard, tokens in added.items():
            if tokens:
                shard.settle(self.step)
                shard.base_held += tokens
                shard.base_read += tokens
                residence.parts[shard] = residence.parts.get(shard, 0) + tokens
                shard.residents[residence.number] = residence
        residence.finish_step = self.step + residence.turn.output_tokens - residence.decoded
        self.running[residence.number] = residence
        heapq.heappush(self._finishes, (residence.finish_step, residence.number))
        self._set_tail(residence, tail)

    def move_tail(self, residence: Residence, tail: Shard) -> None:
        """Let a running session append elsewhere from its next token: no bytes move."""
        self._seal(residence)
        self._set_tail(residence, tail)

    def move_part(self, residence: Residence, source: Shard, added: Mapping[Shard, int]) -> None:
        """Let other shards, which have copies, stand for a session's tokens on one; it appends elsewhere."""
        tokens = residence.parts.pop(source, 0)
        source.residents.pop(residence.number, None)
        is_read = residence.number in self.running
        for shard, count in [(source, -tokens), *added.items()]:
            shard.settle(self.step)
            shard.base_held += count
            shard.base_read += count if is_read else 0
            if count > 0:
                residence.parts[shard] = residence.parts.get(shard, 0) + count
                shard.residents[residence.number] = residence

    def finished(self) -> list[Residence]:
        """Return the sessions whose turn is over now, by number; they run no more, their KV stays."""
        if not self._finishes or self._finishes[0][0] > self.step:
            return []
        over: list[Residence] = []
        while self._finishes and self._finishes[0][0] <= self.step:
            _, number = heapq.heappop(self._finishes)
            residence = self.running.get(number)
            if residence is not None and residence.finish_step <= self.step:
                self._stop(residence)
                self.idle[number] = residence
                over.append(residence)
        return sorted(over, key=lambda residence: residence.number)

    def put_aside(self, residence: Residence) -> None:
        """Stop a running session in the middle of its turn and drop its KV."""
        remaining = residence.finish_step - self.step
        residence.decoded = residence.turn.output_tokens - remaining
        self._stop(residence)
        self._finishes = [entry for entry in self._finishes if entry[1] != residence.number]
        heapq.heapify(self._finishes)
        self._free(residence)

    def drop(self, residence: Residence) -> None:
        """Forget an idle session and its KV."""
        self.idle.pop(residence.number, None)
        self._free(residence)

    def _free(self, residence: Residence) -> None:
        for shard, tokens in residence.parts.items():
            shard.settle(self.step)
            shard.base_held -= tokens
            shard.residents.pop(residence.number, None)
        residence.parts.clear()

    def _stop(self, residence: Residence) -> None:
        self._seal(residence)
        del self.running[residence.number]
        for shard, tokens in residence.parts.items():
            shard.settle(self.step)
            shard.base_read -= tokens

    def _seal(self, residence: Residence) -> None:
        shard = residence.tail
        if shard is None:
            raise LifecycleError(f"session {residence.number} has no tail")
        shard.settle(self.step)
        del shard.tails[residence.number]
        grown = self.step - residence.tail_since_step
        if grown:
            residence.parts[shard] = residence.parts.get(shard, 0) + grown
            shard.residents[residence.number] = residence
        residence.tail = None

    def _set_tail(self, residence: Residence, tail: Shard) -> None:
        tail.settle(self.step)
        tail.tails[residence.number] = residence
        residence.tail = tail
        residence.tail_since_step = self.step
