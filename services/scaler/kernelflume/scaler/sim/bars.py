"""How far a simulation is, on a terminal's standard error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.simulation import Simulator


class Bars:
    """A bar for all simulations of a command, and one for the strategy under way."""

    def __init__(self, progress: Progress, title: str, num_simulations: int) -> None:
        """Show on ``progress``."""
        self._progress = progress
        self._all = progress.add_task(title, total=float(num_simulations))
        self._one = progress.add_task("", total=1.0, visible=False)

    def advance(self) -> None:
        """One more simulation is over."""
        self._progress.advance(self._all)

    def run_all(self, simulator: Simulator) -> list[Result]:
        """Run all strategies of a simulation."""
        strategies = simulator.config.strategies
        results = []
        for strategy in strategies:
            results.append(simulator.run(strategy, self._told(strategy.name)))
            self._progress.advance(self._all, 1 / len(strategies))
        return results

    def _told(self, name: str) -> Callable[[float], None]:
        self._progress.reset(self._one, description=name, visible=True)

        def told(share: float) -> None:
            self._progress.update(self._one, completed=share)

        return told


@contextmanager
def bars(title: str, num_simulations: int) -> Iterator[Bars]:
    """Show bars while the context lasts; where standard error is no terminal, nothing."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, redirect_stdout=False
    ) as progress:
        yield Bars(progress, title, num_simulations)
