"""How a run goes, while it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from kernelflume.cli.bench.outcome import Outcome
    from kernelflume.runtime.clock import Clock

_LINE_INTERVAL_S = 10.0


class RunProgress:
    """A bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, console: Console, total: int, clock: Clock) -> None:
        self._console = console
        self._total = total
        self._clock = clock
        self._num_running = self._num_ended = self._num_failed = 0
        self._next_line_s = clock.now() + _LINE_INTERVAL_S
        self._bar = Progress(
            TextColumn("requests"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim", markup=False),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("requests", total=total, detail="")

    def __enter__(self) -> Self:
        """Begin."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; what was drawn stays."""
        self._bar.stop()

    def sent(self) -> None:
        """A request was sent."""
        self._num_running += 1
        self._bar.update(self._task, detail=self._detail())

    def ended(self, outcome: Outcome) -> None:
        """A request ended."""
        self._num_running -= 1
        self._num_ended += 1
        self._num_failed += not outcome.ok
        self._bar.update(self._task, completed=self._num_ended, detail=self._detail())
        if self._bar.disable and self._clock.now() >= self._next_line_s:
            self._next_line_s = self._clock.now() + _LINE_INTERVAL_S
            self._console.print(
                f"{self._num_ended} of {self._total} requests ended, {self._detail()}", highlight=False
            )

    def _detail(self) -> str:
        failed = f", {self._num_failed} failed" if self._num_failed else ""
        return f"{self._num_running} running{failed}"
