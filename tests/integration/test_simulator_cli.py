"""`kernelflume sim` as a person runs it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.simulated import STRATEGY, simulator_of, write_profiles

from kernelflume.scaler.sim.config import parse_config
from kernelflume.scaler.sim.sweep import combinations

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "simulation.yaml"

WAIT_S = 250.0
"""Bound of one command; a good run needs seconds."""
pytestmark = pytest.mark.timeout(600)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernelflume.cli.entry", "sim", *arguments],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_profiles(tmp_path)
    fields = simulator_of(
        tmp_path,
        workload={"source": {"kind": "generator", "num_sessions": 6, "context_scale": 0.01}},
        strategies=[STRATEGY["over"], STRATEGY["current"], STRATEGY["kernelflume"]],
    ).config.model_dump(mode="json", exclude_unset=True)
    fields["sweep"] = {"seed": [1, 2]}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def test_a_run_writes_its_report(config: Path, tmp_path: Path) -> None:
    setting = ("--set", "strategies.current.startup_s=3")
    done = command("run", str(config), "--output", str(tmp_path / "report"), *setting)
    assert done.returncode == 0, done.stderr
    assert "kernelflume" in done.stdout
    report = json.loads((tmp_path / "report" / "results.json").read_text())
    names = ["over", "current", "kernelflume"]
    assert report["config"]["strategies"][1]["startup_s"] == 3
    assert [result["strategy"] for result in report["results"]] == names
    made = {result["output_tokens"] + result["refused_tokens"] for result in report["results"]}
    assert made == {report["facts"]["output_tokens"]}
    assert report["facts"]["prices"]["gpu.yaml"]["source"] == "a test"
    assert (tmp_path / "report" / "report.html").read_text().startswith("<!doctype html>")
    for name in names:
        rows = rows_of(tmp_path / "report" / f"timeline-{name}.csv")
        assert all(int(row["held_tokens"]) <= int(row["capacity_tokens"]) for row in rows)
        assert (tmp_path / "report" / f"timeline-{name}.svg").read_text().startswith("<?xml")


def test_a_sweep_writes_one_table(config: Path, tmp_path: Path) -> None:
    done = command("sweep", str(config), "--output", str(tmp_path / "swept"))
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "swept" / "sweep.csv")
    assert [row["seed"] for row in rows] == ["1"] * 3 + ["2"] * 3
    runs = json.loads((tmp_path / "swept" / "sweep.json").read_text())["runs"]
    assert [run["settings"] for run in runs] == [{"seed": 1}, {"seed": 2}]
    assert {path.name for path in (tmp_path / "swept").iterdir()} >= {
        "report.html",
        "cost.svg",
        "cost-slo.svg",
    }


def test_a_bad_configuration_is_one_line_and_code_2(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: a\nsped: 2\n")
    done = command("run", str(path))
    assert done.returncode == 2
    assert "sped" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("path", sorted(EXAMPLE.parent.glob("paper/*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_of_the_paper_is_good(path: Path) -> None:
    fields = yaml.safe_load(path.read_text())
    assert len(list(combinations(fields))) > 1


def test_the_example_is_good() -> None:
    assert {strategy.kind for strategy in parse_config(EXAMPLE.read_text()).strategies} == {
        "fixed", "instances", "kernelflume",
    }  # fmt: skip
