"""Telling a person how the start of a stack goes: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.console import Console, RenderableType

_DETAIL_CHARACTERS = 40


class StartReporter(Protocol):
    """Where the start of a stack is told, part by part. A context manager: leaving it ends the view."""

    def __enter__(self) -> Self:
        """Begin the view."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the view."""
        ...

    def working(self, name: str, title: str, detail: str = "") -> None:
        """The part ``name`` is on its way; ``detail`` says how far."""
        ...

    def fraction(self, name: str, title: str, done: float) -> None:
        """The part ``name`` has done this share of its work, 0 to 1."""
        ...

    def ready(self, name: str, title: str, seconds: float) -> None:
        """The part ``name`` is ready."""
        ...


class PlainReporter:
    """One line a part when it is ready, for a log or a pipe."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._announced: set[str] = set()

    def __enter__(self) -> Self:
        """Begin the view."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the view: nothing to do."""

    def working(self, name: str, title: str, detail: str = "") -> None:
        """Announce the part once; how far it is would be a line each time."""
        del detail
        if name not in self._announced:
            self._announced.add(name)
            self._write(f"{title} ...")

    def fraction(self, name: str, title: str, done: float) -> None:
        """Announce work that takes long once."""
        del done
        if name not in self._announced:
            self._announced.add(name)
            self._write(f"{title} ...")

    def ready(self, name: str, title: str, seconds: float) -> None:
        """Write that the part is ready."""
        self._announced.add(name)
        self._write(f"{title} ready after {seconds:.1f} s")


class _MeasuredBar(ProgressColumn):
    """A bar for work whose share is known, nothing for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = BarColumn(bar_width=20)

    def render(self, task: Task) -> RenderableType:
        """Return what stands in this column."""
        return self._bar.render(task) if task.fields["measured"] else ""


class LiveReporter:
    """A line with a spinner for each part, on a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            _MeasuredBar(),
            TextColumn("{task.fields[detail]}", style="dim", markup=False),
            console=console,
            transient=False,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        """Begin the view."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the view; what was drawn stays."""
        self._progress.stop()

    def _task(self, name: str, title: str) -> TaskID:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(title, total=None, detail="", measured=False)
        return self._tasks[name]

    def working(self, name: str, title: str, detail: str = "") -> None:
        """Show how far the part is."""
        self._progress.update(self._task(name, title), detail=shorten(detail))

    def fraction(self, name: str, title: str, done: float) -> None:
        """Show a bar."""
        self._progress.update(self._task(name, title), total=1.0, completed=done, measured=True)

    def ready(self, name: str, title: str, seconds: float) -> None:
        """Tick the part off."""
        del seconds
        self._progress.update(self._task(name, title), total=1.0, completed=1.0, detail="", measured=False)


def shorten(detail: str) -> str:
    """Return a detail that leaves room for the rest of its line."""
    return detail if len(detail) <= _DETAIL_CHARACTERS else f"{detail[: _DETAIL_CHARACTERS - 1]}…"


def reporter_for(console: Console) -> StartReporter:
    """Return the live view on a terminal, plain lines elsewhere."""
    if console.is_terminal:
        return LiveReporter(console)
    return PlainReporter(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
