"""How the start of a stack is told."""

from __future__ import annotations

import io

from rich.console import Console

from kernelflume.cli.progress import LiveReporter, PlainReporter, reporter_for


def test_plain_lines_are_few() -> None:
    lines: list[str] = []
    with PlainReporter(lines.append) as reporter:
        reporter.working("wnode", "weight node")
        reporter.working("wnode", "weight node", "loading")
        reporter.fraction("model", "converting", 0.1)
        reporter.fraction("model", "converting", 0.2)
        reporter.ready("wnode", "weight node", 1.25)
    assert lines == ["weight node ...", "converting ...", "weight node ready after 1.2 s"]


def test_a_terminal_gets_a_live_view_and_a_pipe_gets_lines() -> None:
    assert isinstance(reporter_for(Console(file=io.StringIO(), force_terminal=True)), LiveReporter)
    stream = io.StringIO()
    with reporter_for(Console(file=stream)) as reporter:
        reporter.ready("x", "part [a]", 2.0)
    assert stream.getvalue() == "part [a] ready after 2.0 s\n"


def test_the_live_view_shows_each_part_and_ticks_it_off() -> None:
    stream = io.StringIO()
    with LiveReporter(Console(file=stream, force_terminal=True, width=100)) as reporter:
        reporter.working("wnode", "weight node", "no answer yet")
        reporter.fraction("model", "converting model", 0.5)
        reporter.ready("wnode", "weight node", 1.0)
    shown = stream.getvalue()
    assert "weight node" in shown
    assert "converting model" in shown
    assert "✓" in shown
