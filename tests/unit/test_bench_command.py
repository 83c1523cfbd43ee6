"""What `kernelflume bench` refuses before it asks any endpoint, and results side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kernelflume.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a trace file"),
        (("none.jsonl",), "none.jsonl: No such file"),
        (("generated", "--base-url", "localhost"), "--base-url localhost: not of the form"),
        (("generated", "--turns", "x"), "none of N, LOW-HIGH"),
        (("generated", "--max-think-time", "inf"), "no finite number"),
        (("generated", "--request-rate", "nan"), "--request-rate"),
        (("generated", "--length-scale", "inf"), "--length-scale"),
        (("generated", "--heavy-tokens", "nan"), "--heavy-tokens"),
        (("generated", "--token-ids", "9-3"), "not of the form LOW-HIGH"),
        (("generated", "--extra-body", "[1]"), "no JSON object"),
        (("generated", "--extra-body", "[" * 100_000), "nested too deeply"),
        (("generated", "--system-tokens", "9" * 400), "--system-tokens"),
        (("generated", "--header", "x"), "not of the form NAME:VALUE"),
        (("generated", "--warm-tokens", "9", "--heavy-tokens", "1"), "--warm-tokens is more"),
        (("--compare", "a.json", "b.json"), "a.json: it cannot be read"),
    ],
)
def test_what_is_no_good_ends_with_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["bench", *arguments])
    assert found.exit_code == 2, found.output
    assert message in " ".join(found.output.split())


def test_two_results_of_vllm_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, ttft in (("a.json", 40.0), ("b.json", 50.0)):
        (tmp_path / name).write_text(json.dumps({"completed": 3, "mean_ttft_ms": ttft}))
    found = CliRunner().invoke(app, ["bench", "--compare", "a.json", "b.json"])
    assert found.exit_code == 0
    (line,) = (line for line in found.output.splitlines() if line.startswith("mean_ttft_ms"))
    assert line.split() == ["mean_ttft_ms", "40.0000", "50.0000", "+25.0", "%"]


@pytest.mark.parametrize(
    "own",
    [
        {"classes": [1]},
        {"classes": {"[/x]": 3}},
        {"classes": {"[/x]": {"ttft_p50_s": 1.0}}},
        {"prefix_hit": 10**400},
    ],
)
def test_results_with_odd_fields_and_odd_names_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a[red].json", "b[%x].json"):
        (tmp_path / name).write_text(json.dumps({"completed": 3, "kernelflume": own}))
    found = CliRunner().invoke(app, ["bench", "--compare", "a[red].json", "b[%x].json"])
    assert found.exit_code == 0, found.output
    heading, completed, *others = found.output.splitlines()
    assert heading.split() == ["figure", "a[red].json", "b[%x].json", "change"]
    assert completed.split() == ["completed", "3.0000", "3.0000", "+0.0", "%"]
    assert [line.split()[:2] for line in others] == (
        [["[/x]", "ttft_p50_s"]] if "1.0" in json.dumps(own) else []
    )


def test_a_result_that_is_nested_too_deeply_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text("[" * 100_000)
    found = CliRunner().invoke(app, ["bench", "--compare", "a.json", "a.json"])
    assert found.exit_code == 2
    assert "a.json: no result of a benchmark" in found.output


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelflume.cli.bench.parameters.find_spec", lambda name: None)
    found = CliRunner().invoke(app, ["bench", "generated"])
    assert found.exit_code == 2
    assert "kernelflume[bench]" in found.output
