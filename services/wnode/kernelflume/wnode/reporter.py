"""What the engine tells the shell: tokens at once, figures a few times a second."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from kernelflume.core.profile import StepTimes
from kernelflume.wnode.hand_over_counts import HandOverCounts
from kernelflume.wnode.kv_traffic import KvTraffic
from kernelflume.wnode.messages import EngineReport, SequenceReport, StepOutput

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from multiprocessing.connection import Connection

    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.ledger import Ledger
    from kernelflume.wnode.messages import Event, TokenOutput
    from kernelflume.wnode.scheduler import Scheduler

_REPORT_INTERVAL_S = 0.25
_SEQUENCES_INTERVAL_S = 1.0
_NUM_DECODE_STEPS = 16
"""Steps whose median is reported: enough to hide one that was disturbed, few enough to follow growth."""
_MIN_ALIKE_STEPS = 4
"""Fewer steps of as many rows say nothing of where their time goes."""


class Reporter:
    """Sends events; ``send`` may be called from the command thread too, the rest from the engine's."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._lock = threading.Lock()
        self._is_idle_reported = False
        self._reported_at = -_REPORT_INTERVAL_S
        self._step_seconds: list[float] = []
        self._decode_seconds: deque[float] = deque(maxlen=_NUM_DECODE_STEPS)
        self._num_decode_rows = 0
        self._decode_times: deque[StepTimes] = deque(maxlen=_NUM_DECODE_STEPS)
        self._waited_s = 0.0
        self._num_steps = 0
        self._num_graph_steps = 0
        self._num_microbatches = 0
        self.num_graph_captures = 0
        """As told by whoever captures."""
        self._num_restarts = 0
        self._kv_traffic = KvTraffic()
        self._hand_overs = HandOverCounts()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._prefix_queries = 0
        self._prefix_hits = 0

    def send(self, event: Event) -> None:
        """Send one event; a shell that is gone is noticed by the command thread."""
        with self._lock:
            try:
                self._connection.send(event)
            except OSError:
                return

    def send_tokens(self, outputs: Sequence[TokenOutput]) -> None:
        """Send new tokens, if there are any."""
        if outputs:
            self.send(StepOutput(tuple(outputs)))

    def count_restart(self) -> None:
        """Count a sequence that will be recomputed."""
        self._num_restarts += 1

    def count_prefix(self, num_tokens: int, num_cached: int) -> None:
        """Count the prompt of a request that looked its beginning up, and what it did not have to compute."""
        self._prefix_queries += num_tokens
        self._prefix_hits += num_cached

    def report_step(
        self,
        scheduler: Scheduler,
        ledger: Ledger,
        *,
        num_rows: int,
        num_tokens: int,
        seconds: float,
        waited_s: float,
        times: StepTimes | None,
        num_microbatches: int,
        kv_traffic: KvTraffic,
        hand_overs: HandOverCounts,
    ) -> None:
        """Note a step, and report when it is time.

        Args:
            scheduler: what runs and waits.
            ledger: where tokens are.
            num_rows: rows of the step.
            num_tokens: tokens that it chose.
            seconds: its duration.
            waited_s: the part of it that was spent waiting for partials.
            times: where its time went, where that is known.
            num_microbatches: of a step that ran as one captured graph; 0 for one that did not.
            kv_traffic: sums of all steps so far.
            hand_overs: sums so far.
        """
        self._is_idle_reported = False
        self._num_steps += 1
        self._num_graph_steps += num_microbatches > 0
        self._num_microbatches = num_microbatches or self._num_microbatches
        self._prompt_tokens += num_rows - num_tokens
        self._generation_tokens += num_tokens
        self._step_seconds.append(seconds)
        self._waited_s += waited_s
        self._kv_traffic = kv_traffic
        self._hand_overs = hand_overs
        if num_rows == num_tokens:
            self._decode_seconds.append(seconds)
            self._num_decode_rows = num_rows
            if times is not None:
                self._decode_times.append(times)
        if self._clock.now() - self._reported_at >= _REPORT_INTERVAL_S:
            self._report(scheduler, ledger)

    def report_idle(self, scheduler: Scheduler, ledger: Ledger, *, hand_overs: HandOverCounts) -> None:
        """Report now and then while no step runs, at once when steps stop."""
        self._hand_overs = hand_overs
        if not self._is_idle_reported or self._clock.now() - self._reported_at >= _SEQUENCES_INTERVAL_S:
            self._is_idle_reported = True
            self._decode_seconds.clear()
            self._decode_times.clear()
            self._num_decode_rows = 0
            self._report(scheduler, ledger)

    def _report(self, scheduler: Scheduler, ledger: Ledger) -> None:
        self._reported_at = self._clock.now()
        steps, self._step_seconds = tuple(self._step_seconds), []
        waited_s, self._waited_s = self._waited_s, 0.0
        sequences = scheduler.all
        ledger.begin_step(())
        self.send(
            EngineReport(
                num_steps=self._num_steps,
                num_running=len(scheduler.running),
                num_waiting=len(scheduler.waiting),
                num_tokens=sum(sequence.num_computed for sequence in scheduler.running),
                num_restarts=self._num_restarts,
                prompt_tokens=self._prompt_tokens,
                generation_tokens=self._generation_tokens,
                prefix_queries=self._prefix_queries,
                prefix_hits=self._prefix_hits,
                step_seconds=steps,
                exposed_wait_seconds=waited_s,
                sequences=tuple(
                    SequenceReport(
                        sequence.sequence_id,
                        sequence.request_id,
                        str(sequence.state),
                        len(sequence.prompt),
                        len(sequence.output),
                        sequence.route,
                    )
                    for sequence in sequences
                ),
                num_waiting_tokens=sum(max(0, sequence.num_pending - 1) for sequence in sequences),
                decode_step_s=median(self._decode_seconds) if self._decode_seconds else 0.0,
                num_decode_rows=self._num_decode_rows,
                step_times=typical(self._decode_times),
                num_graph_steps=self._num_graph_steps,
                num_graph_captures=self.num_graph_captures,
                num_microbatches=self._num_microbatches,
                kv_traffic=replace(self._kv_traffic),
                hand_overs=replace(self._hand_overs),
                kv_usage=1 - ledger.num_usable_pages / ledger.num_pages if ledger.num_pages else 0.0,
            )
        )


def typical(latest: Collection[StepTimes]) -> StepTimes | None:
    """Return the medians of those steps, oldest first, that have as many rows as the newest."""
    rows = [times.rows for times in latest][-1:]
    alike = [times for times in latest if [times.rows] == rows]
    if len(alike) < _MIN_ALIKE_STEPS:
        return None
    return StepTimes(
        rows=alike[0].rows,
        step_s=median(times.step_s for times in alike),
        projection_s=median(times.projection_s for times in alike),
        attention_s=median(times.attention_s for times in alike),
        post_attention_s=median(times.post_attention_s for times in alike),
        overhead_s=median(times.overhead_s for times in alike),
    )
