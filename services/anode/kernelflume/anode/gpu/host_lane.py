"""What the CPU does for one lane's steps on the host path: notices become flags, flags become posts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.errors import HandshakeError
from kernelflume.cuda.flags import FlagKind
from kernelflume.transport.wire import Kind, LaneData

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.cuda.flags import StepFlags

_FLAG_OF = {Kind.LANE_QUERY: FlagKind.QUERY, Kind.LANE_APPEND: FlagKind.KEYS_VALUES}
MAX_EARLY = 4
"""Notices of steps not launched yet: the first layer's query, and keys and values with it."""


@dataclass(slots=True)
class _Turn:
    """A launched step of which partials are to be posted."""

    step: int
    num_rows: int
    layer: int = 0
    """The next to be posted."""


class HostLane:
    """One lane's progress. It knows no GPU: a graph is whoever sets and awaits the flags."""

    def __init__(
        self,
        index: int,
        flags: Sequence[StepFlags],
        *,
        num_layers: int,
        in_layer: bool,
        post: Callable[[int, LaneData], None],
    ) -> None:
        """Make a lane without a step.

        Args:
            index: the lane's number.
            flags: those of each parity: of steps that may be under way at a time.
            num_layers: the model's layers.
            in_layer: keys and values come in every layer (query first off and paper).
            post: sends the partial of so many rows with its notice.
        """
        self._index = index
        self._flags = flags
        self._num_layers = num_layers
        self._in_layer = in_layer
        self._post = post
        self._steps = [0] * len(flags)
        """The step of each parity; steps count from 1."""
        self._turns: deque[_Turn] = deque()
        self._early: deque[LaneData] = deque()

    @property
    def is_answered(self) -> bool:
        """True when every partial of the steps begun was posted."""
        return not self._turns

    @property
    def waits_for(self) -> str:
        """What the step under way waits for, for errors."""
        if not self._turns:
            return f"keys and values of step {max(self._steps)}"
        turn = self._turns[0]
        missing = [
            kind.name.lower()
            for kind in (FlagKind.QUERY, FlagKind.KEYS_VALUES)
            if (kind is FlagKind.QUERY or self._in_layer)
            and not self._flags[turn.step % len(self._flags)].is_set(kind, turn.layer)
        ]
        what = " and ".join(missing) or "own attention"
        return f"{what} of layer {turn.layer} of step {turn.step}, lane {self._index}"

    def begin(self, step: int, *, num_rows: int, stores: bool) -> None:
        """Begin a step, before its graph is launched; the last one of its parity must be done."""
        flags = self._flags[step % len(self._flags)]
        flags.clear()
        self._steps[step % len(self._flags)] = step
        if num_rows:
            self._turns.append(_Turn(step, num_rows))
        else:  # the graph may run all the same, for another lane
            flags.set_all(FlagKind.QUERY)
        if not stores:
            flags.set_all(FlagKind.KEYS_VALUES)
        early, self._early = self._early, deque()
        for notice in early:
            self.receive(notice)

    def receive(self, notice: LaneData) -> None:
        """Set the flag of what has arrived; a notice may come before its step.

        Raises:
            HandshakeError: the lane has no such layer, or too many steps are announced by their data.
        """
        if notice.kind not in _FLAG_OF or notice.layer >= self._num_layers:
            raise HandshakeError(f"{notice.kind.name} of layer {notice.layer}")
        parity = notice.step % len(self._flags)
        if self._steps[parity] == notice.step:
            self._flags[parity].set(_FLAG_OF[notice.kind], notice.layer)
        elif notice.step > max(self._steps):
            if len(self._early) == MAX_EARLY:
                raise HandshakeError(f"data of step {notice.step} before it was announced")
            self._early.append(notice)

    def drive(self) -> bool:
        """Post the next partial if it is computed; False when it is not.

        Raises:
            PeerLostError: the weight node is gone.
        """
        if not self._turns:
            return False
        turn = self._turns[0]
        if not self._flags[turn.step % len(self._flags)].is_set(FlagKind.ATTENTION, turn.layer):
            return False
        self._post(turn.num_rows, LaneData(Kind.LANE_PARTIAL, self._index, turn.layer, turn.step))
        turn.layer += 1
        if turn.layer == self._num_layers:
            self._turns.popleft()
        return True

    def release(self, step: int | None = None) -> None:
        """Set all that the graph of a step (None: of any) may wait for, and post nothing more of it."""
        for parity, begun in enumerate(self._steps):
            if step is None or begun == step:
                self._flags[parity].set_all(FlagKind.QUERY, FlagKind.KEYS_VALUES)
        self._turns = deque(turn for turn in self._turns if step is not None and turn.step != step)
