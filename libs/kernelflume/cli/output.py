"""Where the commands print what they show."""

from __future__ import annotations

from rich.console import Console

_PIPE_COLUMNS = 200
"""A pipe has no width of its own, and a reader there wants a line a node."""


def output_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or wide enough for a line a node."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)
