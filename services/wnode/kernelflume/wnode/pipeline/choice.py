"""The number of microbatches of the next step: predicted, tried, and checked against one microbatch. Pure.

Steps count, not seconds. A step may be chosen before the one ahead of it is observed. All times are compared
as shares of what one microbatch was predicted to take at the load of each step, so that a load that moves
meanwhile does no harm.

- From one microbatch: the model says that a split gains ``LEAST_GAIN``, and the latest ``NUM_RECENT`` steps
  were of one microbatch at nearly this load. ``NUM_TRIED`` steps are split; the split stays if their median
  is not above that of the steps before.
- While steps are split: as soon as the model prefers one microbatch by ``LEAST_GAIN``, that is taken. From
  time to time, and when the load has changed, ``NUM_CHECKED`` steps of one microbatch check it: a split that
  is slower by more than ``TOLERANCE`` ends. Checks become rarer as they go well.
- A split that was given up is not tried again for some steps, twice as many each time, unless the load has
  changed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from statistics import median
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelflume.wnode.pipeline.live_profile import LiveProfile
    from kernelflume.wnode.pipeline.load import Load

LEAST_GAIN = 0.02
"""Predicted share by which another number must be faster."""
TOLERANCE = 0.01
"""Share by which a split may seem slower in a check: the noise of a few steps."""
LOAD_CHANGE = 0.1
"""Share by which rows or tokens differ at another load."""
NUM_RECENT = 8
NUM_TRIED = 4
NUM_CHECKED = 3
FIRST_CHECK = 64
"""Steps from a trial to its first check, and least between two; twice as many after each that went well."""
LAST_CHECK = 1024
FIRST_PAUSE = 64
"""Steps until a split that was given up is tried again."""
LAST_PAUSE = 16384
LEAST_PAUSE = 32
"""The same after the load has changed."""


class Microbatches(Protocol):
    """Says how many microbatches each step has."""

    def choose(self, load: Load) -> int:
        """Choose for the step that comes next."""
        ...

    def observe(self, num_microbatches: int, load: Load, seconds: float) -> None:
        """Note how long a step's graph ran."""
        ...


@dataclass(frozen=True, slots=True)
class FixedMicrobatches:
    """Always the same number."""

    num_microbatches: int

    def choose(self, load: Load) -> int:
        """See ``Microbatches``."""
        del load
        return self.num_microbatches

    def observe(self, num_microbatches: int, load: Load, seconds: float) -> None:
        """See ``Microbatches``."""


class _Phase(Enum):
    SETTLED = auto()
    TRIAL = auto()
    CHECK = auto()


@dataclass(frozen=True, slots=True)
class _Sample:
    load: Load
    seconds: float


@dataclass(frozen=True, slots=True)
class _Bar:
    """A split that was given up."""

    load: Load
    since: int
    pause: int


class LiveMicrobatches:
    """Never stays slower than one microbatch. Owned by the step loop's thread."""

    def __init__(self, profile: LiveProfile) -> None:
        """Begin with one microbatch; ``profile`` is fed by ``observe``, and has graphs of one."""
        self._profile = profile
        self._step = 0
        self._settled = 1
        self._phase = _Phase.SETTLED
        self._tried = 1
        self._begun_at: Load | None = None
        """Load at which the trial or check began."""
        self._samples: list[_Sample] = []
        """Of the trial or check."""
        self._recent: deque[_Sample] = deque(maxlen=NUM_RECENT)
        """Latest steps of the number that is settled on."""
        self._bars: dict[int, _Bar] = {}
        self._checked_at = 0
        self._checked_load: Load | None = None
        self._interval = FIRST_CHECK

    def choose(self, load: Load) -> int:
        """See ``Microbatches``."""
        self._step += 1
        if self._begun_at is not None and not load.is_like(self._begun_at, LOAD_CHANGE):
            self._abandon(load)
        if max(self._settled, self._tried) > load.num_rows:
            self._settle(1)
        if self._phase is _Phase.SETTLED:
            if self._settled == 1:
                self._look_for_a_split(load)
            else:
                self._doubt_the_split(load)
        match self._phase:
            case _Phase.TRIAL:
                return self._tried
            case _Phase.CHECK:
                return 1
            case _Phase.SETTLED:
                return self._settled

    def observe(self, num_microbatches: int, load: Load, seconds: float) -> None:
        """See ``Microbatches``."""
        self._profile.observe(num_microbatches, load, seconds)
        sample = _Sample(load, seconds)
        wanted = {_Phase.TRIAL: self._tried, _Phase.CHECK: 1}.get(self._phase)
        if num_microbatches != wanted:  # also a step that was launched before the trial or check began
            if num_microbatches == self._settled:
                self._recent.append(sample)
            return
        self._samples.append(sample)
        if self._phase is _Phase.TRIAL and len(self._samples) == NUM_TRIED:
            self._end_trial(load)
        elif self._phase is _Phase.CHECK and len(self._samples) == NUM_CHECKED:
            self._end_check(load)

    # --- from one microbatch --------------------------------------------------------------------------

    def _look_for_a_split(self, load: Load) -> None:
        alike = [sample for sample in self._recent if sample.load.is_like(load, LOAD_CHANGE)]
        serial_s = self._profile.predict(1, load)
        if len(alike) < NUM_RECENT or serial_s is None:
            return
        best, best_s = 1, serial_s * (1 - LEAST_GAIN)
        for count in self._profile.counts:
            split_s = self._profile.predict(count, load) if 1 < count <= load.num_rows else None
            if split_s is not None and split_s < best_s and not self._is_barred(count, load):
                best, best_s = count, split_s
        if best > 1:
            self._begin(_Phase.TRIAL, load)
            self._tried = best

    def _end_trial(self, load: Load) -> None:
        if self._relative(self._samples) > self._relative(self._recent):
            self._give_up(self._tried, load)
            return
        tried, samples = self._tried, self._samples
        self._settle(tried)
        self._recent.extend(samples)
        self._note_check(load, FIRST_CHECK)

    # --- from several ---------------------------------------------------------------------------------

    def _doubt_the_split(self, load: Load) -> None:
        serial_s, split_s = self._profile.predict(1, load), self._profile.predict(self._settled, load)
        if serial_s is None or split_s is None or serial_s < split_s * (1 - LEAST_GAIN):
            self._give_up(self._settled, load)
            return
        since = self._step - self._checked_at
        is_new = self._checked_load is None or not load.is_like(self._checked_load, LOAD_CHANGE)
        if len(self._recent) >= NUM_TRIED and since >= (FIRST_CHECK if is_new else self._interval):
            self._begin(_Phase.CHECK, load)

    def _end_check(self, load: Load) -> None:
        if self._relative(self._recent) > self._relative(self._samples) * (1 + TOLERANCE):
            self._give_up(self._settled, load)
            return
        is_new = self._checked_load is None or not load.is_like(self._checked_load, LOAD_CHANGE)
        self._note_check(load, FIRST_CHECK if is_new else min(2 * self._interval, LAST_CHECK))
        self._bars.pop(self._settled, None)
        self._end_phase()

    # --- both -----------------------------------------------------------------------------------------

    def _begin(self, phase: _Phase, load: Load) -> None:
        self._phase, self._begun_at = phase, load
        self._samples = []

    def _end_phase(self) -> None:
        self._phase, self._begun_at, self._tried = _Phase.SETTLED, None, 1
        self._samples = []

    def _settle(self, count: int) -> None:
        if count != self._settled:
            self._recent.clear()
        self._settled = count
        self._end_phase()

    def _note_check(self, load: Load, interval: int) -> None:
        self._checked_at, self._checked_load, self._interval = self._step, load, interval

    def _abandon(self, load: Load) -> None:
        """The load moved while something was compared: that tells nothing."""
        if self._phase is _Phase.TRIAL:
            self._bars[self._tried] = _Bar(load, self._step, LEAST_PAUSE)
        elif self._phase is _Phase.CHECK:
            self._note_check(load, self._interval)
        self._end_phase()

    def _give_up(self, count: int, load: Load) -> None:
        bar = self._bars.get(count)
        again = bar is not None and load.is_like(bar.load, LOAD_CHANGE)
        pause = min(2 * bar.pause, LAST_PAUSE) if bar is not None and again else FIRST_PAUSE
        self._bars[count] = _Bar(load, self._step, pause)
        self._settle(1)

    def _is_barred(self, count: int, load: Load) -> bool:
        bar = self._bars.get(count)
        if bar is None:
            return False
        pause = bar.pause if load.is_like(bar.load, LOAD_CHANGE) else min(bar.pause, LEAST_PAUSE)
        return self._step < bar.since + pause

    def _relative(self, samples: Iterable[_Sample]) -> float:
        """Return the median of steps as shares of what one microbatch was predicted to take."""
        return median(
            sample.seconds / max(self._profile.predict(1, sample.load) or 1.0, 1e-9) for sample in samples
        )
