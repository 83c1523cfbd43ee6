"""The HTML report of a simulation, and its drawings."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from tests.simulated import STRATEGY, simulator_of, write_profiles

from kernelflume.scaler.sim import page, plots, report_folder
from kernelflume.scaler.sim.assumptions import assumptions
from kernelflume.scaler.sim.report import describe, swept_of
from kernelflume.scaler.sim.svg import embedded

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.simulation import Simulator

HOSTILE = '<script>alert(1)</script> & "more"'


class Elements(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulator, list[Result]]:
    folder = tmp_path_factory.mktemp("profiles")
    write_profiles(folder)
    simulator = simulator_of(
        folder,
        workload={"source": {"kind": "generator", "num_sessions": 8, "context_scale": 0.05}},
        strategies=[STRATEGY["over"], STRATEGY["kernelflume"]],
        prices={name: {"usd_per_gpu_hour": 2, "source": HOSTILE} for name in ("gpu.yaml", "other.yaml")},
    )
    return simulator, [simulator.run(strategy) for strategy in simulator.config.strategies]


def test_a_page_asks_for_nothing_and_has_all_that_it_rests_on(ran: tuple[Simulator, list[Result]]) -> None:
    simulator, results = ran
    text = page.run_page(simulator, results, plots.draw_run(results, slo_s=0.05))
    elements = Elements(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(elements.tags)
    assert elements.tags.count("svg") == 4
    assert all(
        value.startswith("#") for name, value in elements.attributes if name in {"href", "src", "xlink:href"}
    )
    assert not re.search(r"url\((?!#)|@import", text)
    identifiers = [value for name, value in elements.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert set(used) <= set(identifiers)
    assert ("content", "width=device-width, initial-scale=1") in elements.attributes
    assert "prefers-color-scheme: dark" in text
    assert "usd_per_gpu_hour: 2" in text
    words = html.unescape(text)
    assert all(one.assumption in words and one.source in words for one in assumptions())
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)" in text


def test_plots_are_drawn_twice_alike(ran: tuple[Simulator, list[Result]]) -> None:
    _, results = ran
    assert plots.draw_run(results, slo_s=0.05) == plots.draw_run(results, slo_s=0.05)


def test_scale_events_are_marked(ran: tuple[Simulator, list[Result]]) -> None:
    _, results = ran
    assert results[1].timeline.changes
    assert "node added" in plots.draw_run(results, slo_s=0.05)["timeline-kernelflume"]


def test_without_matplotlib_the_page_says_what_to_install(
    ran: tuple[Simulator, list[Result]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator, results = ran
    monkeypatch.setattr(plots, "is_available", lambda: False)
    paths = report_folder.write_report(tmp_path, simulator, results)
    assert "kernelflume[sim]" in (tmp_path / "report.html").read_text()
    assert not [path for path in paths if path.suffix == ".svg"]
    assert report_folder.missing() == "plots need matplotlib: pip install 'kernelflume[sim]'"
    monkeypatch.setattr(page, "is_available", lambda: False)
    paths = report_folder.write_report(tmp_path / "bare", simulator, results)
    assert {path.name for path in paths} >= {"results.json", "results.csv", "timeline-kernelflume.csv"}
    assert not (tmp_path / "bare" / "report.html").exists()


def test_a_sweep_has_a_page_too(ran: tuple[Simulator, list[Result]], tmp_path: Path) -> None:
    simulator, results = ran
    fields = simulator.config.model_dump(mode="json")
    fields["sweep"] = {"seed": [1, 2]}
    swept = [swept_of({"seed": seed}, describe(simulator), results) for seed in (1, 2)]
    report_folder.write_sweep(tmp_path, fields, swept)
    text = (tmp_path / "report.html").read_text()
    assert Elements(text).tags.count("svg") == 2
    assert "2 combinations of seed" in text


def test_a_drawing_takes_the_ink_of_the_page() -> None:
    use = '<use href="#a" style="stroke: #000000; clip-path: url(#a)"/>'
    svg = f'<?xml version="1.0"?><!DOCTYPE svg><svg width="9pt" height="9pt"><g id="a">{use}</g></svg>'
    drawn = embedded(svg, "x", 'A "title"')
    assert drawn.startswith('<svg role="img"')
    assert 'id="x-a"' in drawn
    assert 'href="#x-a" style="stroke: currentColor; clip-path: url(#x-a)"' in drawn
    assert "9pt" not in drawn
