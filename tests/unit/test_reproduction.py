"""The page of the paper's claims: that it has them all, and is what the stored rows say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.reproduction.__main__ import PAGE, stored_grid
from benchmarks.reproduction.claims import Claim, Claims, Experiment, Quoted, Simulated, Tabled, load_claims
from benchmarks.reproduction.figures import measured, simulated
from benchmarks.reproduction.grid import CONFIGS, combinations_of, task_key, tasks_of
from benchmarks.reproduction.page import render
from benchmarks.reproduction.verdict import Verdict, holds, judge, miss

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.yamltext import parse_mapping

if TYPE_CHECKING:
    from pathlib import Path

CLAIMED = {
    "6.2": ["47 GB", "330 GB", "nearly flat", "72 ms", "7.2 us", "8.3 us", "412 ms", "1.1 s", "10.8 s"],
    "6.3": ["1.03", "1.11", "2 to 3 points", "5 to 7 points", "4 points", "0.96 to 0.99", "3.1 %", "1.87"],
    "6.4": ["74 ms", "34 ms", "21 to 32 %", "27 to 61 %", "100 %", "68.8 %", "6", "14"],
    "6.5": [
        *("2.8 %", "7.5 %", "49 to 50 ms", "56 to 66 %", "3.4 to 4.4 times", "80 to 85 %", "50.6 GB"),
        *("29 GB", "78 GB", "2.65", "30 to 38 %", "65 to 72 %", "88 to 89 %"),
    ],
}


def claim(**fields: Any) -> Claim:
    return Claim.model_validate({"name": "a", "section": "6.4", "claim": "a", "paper": "a", **fields})


def row(*results: dict[str, Any], **settings: Any) -> dict[str, Any]:
    common = {
        "layout": "",
        "most_gpus": 1,
        "refused_tokens": 0,
        "num_waits": 0,
        "step_p50_s": 0.01,
        "step_p99_s": 0.01,
        "step_attainment": 1.0,
        "turn_attainment": 1.0,
    }
    return {"settings": settings, "results": [{**common, **result} for result in results]}


def cut(low: float, high: float) -> Claim:
    simulated_ = {"experiment": "a", "kind": "cut", "than": ["other"]}
    return claim(low=low, high=high, simulated=simulated_)


@pytest.mark.parametrize("section", CLAIMED)
def test_every_figure_of_the_paper_has_a_row(section: str) -> None:
    words = [one.paper for one in load_claims().claims if one.section == section]
    missing = [figure for figure in CLAIMED[section] if not any(figure in text for text in words)]
    assert not missing


def test_the_page_is_what_the_stored_rows_say() -> None:
    claims, grid = load_claims(), stored_grid()
    page = render(claims, judge(claims, grid), grid)
    assert page == PAGE.read_text(), "run: python -m benchmarks.reproduction --render"


def test_the_stored_rows_are_of_the_experiments_of_the_claims() -> None:
    claims, grid = load_claims(), stored_grid()
    assert list(grid) == list(claims.experiments)
    for name, experiment in claims.experiments.items():
        fields = parse_mapping((CONFIGS / experiment.config).read_text())
        swept = {**({} if experiment.replaces_sweep else fields.get("sweep", {})), **experiment.sweep}
        num_rows = 1 + sum(map(len, fields.get("vary", {}).values()))
        for values in swept.values():
            num_rows *= len(values)
        assert len(grid[name]) == num_rows
        wanted = experiment.strategies or tuple(strategy["name"] for strategy in fields["strategies"])
        assert {tuple(result["strategy"] for result in one["results"]) for one in grid[name]} == {wanted}


def test_a_miss_is_explained_and_every_claim_has_its_line() -> None:
    claims, page = load_claims(), PAGE.read_text()
    for one in judge(claims, stored_grid()):
        assert one.claim.why or one.verdict is Verdict.REPRODUCED, one.claim.name
        [line] = [
            text for text in page.splitlines() if re.match(rf"\| \[?{re.escape(one.claim.claim)}[ \]]", text)
        ]
        assert one.verdict in line


@pytest.mark.parametrize(
    ("low", "high", "values", "expected"),
    [
        (74, 74, [69.0, 79.0], True),
        (74, 74, [68.0], False),
        (49, 50, [49.5, 60.0], False),
        (None, 7.2, [3.0], True),
        (None, 7.2, [7.8], False),
        (1, None, [2000.0], True),
    ],
)
def test_all_values_have_to_be_in_the_widened_range(
    low: float | None, high: float | None, values: list[float], expected: bool
) -> None:
    assert holds(claim(low=low, high=high), values, 0.075) is expected


def test_a_cut_is_compared_by_the_cost_that_is_left() -> None:
    assert holds(cut(80, 85), [78.6], 0.075)
    assert not holds(cut(80, 85), [78.4], 0.075)
    assert miss(cut(80, 85), [79, 60.0], 0.0) == pytest.approx(1.0)
    assert miss(claim(low=10, high=20), [25.0, 12.0], 0.0) == pytest.approx(0.25)
    assert holds(cut(20, 30), [24.0], 0.0)


def test_figures_are_taken_from_rows() -> None:
    def costs(own: float, **settings: Any) -> dict[str, Any]:
        return row(
            {"strategy": "kernelflume", "usd_per_million_tokens": own},
            {"strategy": "other", "usd_per_million_tokens": 4.0},
            **settings,
        )

    rows = [costs(1.0, dynamics="low"), costs(3.0, dynamics="high"), costs(9.0, dynamics="high")]
    rows[2]["results"][0]["refused_tokens"] = 1
    own = cut(0, 0).simulated
    assert own is not None
    assert simulated(own, rows) == [75.0, 25.0]
    assert simulated(own.model_copy(update={"only": {"dynamics": ("high",)}}), rows) == [25.0]
    assert simulated(own.model_copy(update={"kind": "ratio"}), rows) == [0.25, 0.75]
    with pytest.raises(ConfigurationError):
        simulated(own, rows[2:])


def test_rows_with_waits_count_only_where_they_may() -> None:
    rows = [row({"strategy": "kernelflume", "step_p50_s": 0.01, "num_waits": waits}) for waits in (0, 3)]
    own = Simulated(experiment="a", kind="value", field="num_waits")
    assert simulated(own, rows) == [0.0, 3.0]
    assert simulated(own.model_copy(update={"without_waits": True}), rows) == [0.0]


def test_overlap_compares_microbatches_of_one_size() -> None:
    def steps(nodes: int, sessions: int, serial_s: float, pipelined_s: float) -> dict[str, Any]:
        return row(
            {"strategy": "serial", "step_p50_s": serial_s},
            {"strategy": "pipelined", "step_p50_s": pipelined_s},
            **{"nodes": nodes, "workload.source.num_sessions": sessions, "workload.source.context_tokens": 9},
        )

    own = Simulated(experiment="a", kind="overlap", strategy="serial", than=("pipelined",))
    rows = [steps(1, 8, 1.0, 9.0), steps(1, 16, 3.0, 2.0), steps(2, 8, 0.9, 9.0), steps(2, 16, 3.0, 1.0)]
    assert simulated(own, rows) == [pytest.approx(1.8)]
    rows[3]["results"][1]["num_waits"] = 1
    assert simulated(own, rows) == [pytest.approx(1.0)]


def test_an_assumption_is_named_where_it_alone_meets_the_claim() -> None:
    claims = Claims.model_validate(
        {
            "tolerance": 0.0,
            "tolerance_source": "a test",
            "words": {},
            "experiments": {
                "base": {"config": "a.yaml", "what": "a"},
                "open": {"config": "a.yaml", "what": "b", "sweep": {"admission": ["current", "peak"]}},
            },
            "claims": [
                {
                    "name": "a", "section": "6.4", "claim": "a", "paper": "50 %", "low": 50, "high": 50,
                    "simulated": {"experiment": "base", "kind": "cut", "than": ["other"]}, "swept": ["open"],
                }
            ],
        }
    )  # fmt: skip

    def rows(cost: float, **settings: Any) -> dict[str, Any]:
        return row(
            {"strategy": "kernelflume", "usd_per_million_tokens": 1.0},
            {"strategy": "other", "usd_per_million_tokens": cost},
            **settings,
        )

    grid = {"base": [rows(1.0)], "open": [rows(1.0, admission="current"), rows(2.0, admission="peak")]}
    [one] = judge(claims, grid)
    assert one.verdict is Verdict.ASSUMED
    assert [(trial.settings, trial.holds) for trial in one.trials] == [
        ({"admission": "current"}, False), ({"admission": "peak"}, True),
    ]  # fmt: skip
    page = render(claims, [one], grid)
    assert "It holds where `admission` peak." in page
    [missed] = judge(claims, {**grid, "open": grid["open"][:1]})
    assert missed.verdict is Verdict.MISSED
    assert "it is 0.0, the nearest 0.0 where `admission` current." in render(claims, [missed], grid)


def test_strategies_that_stand_for_others_have_columns_of_their_own() -> None:
    claims = Claims.model_validate(
        {
            "tolerance": 0.0,
            "tolerance_source": "a test",
            "words": {},
            "experiments": {
                "base": {"config": "a.yaml", "what": "a"},
                "open": {"config": "b.yaml", "what": "b", "assumes": "it is so", "sweep": {"pace": [1, 2]}},
            },
            "claims": [
                {
                    "name": "a", "section": "6.4", "claim": "a", "paper": "50 %", "low": 50, "high": 50,
                    "simulated": {"experiment": "base", "kind": "cut", "than": ["other"]}, "swept": ["open"],
                    "instead": {"dearer ones": {"other": "dearer"}, "others": {"other": "absent"}},
                    "itself": "as they are",
                }
            ],
        }
    )  # fmt: skip

    def rows(**settings: Any) -> dict[str, Any]:
        costs = {"kernelflume": 1.0, "other": 1.25, "dearer": 2.0}
        results = [{"strategy": name, "usd_per_million_tokens": cost} for name, cost in costs.items()]
        return row(*results, **settings)

    grid = {"base": [rows()], "open": [rows(pace=1), rows(pace=2)]}
    [one] = judge(claims, grid)
    assert one.verdict is Verdict.ASSUMED
    assert [(trial.instead, trial.holds) for trial in one.trials] == 2 * [
        ("as they are", False), ("dearer ones", True),
    ]  # fmt: skip
    page = render(claims, [one], grid)
    assert "| assumed | as they are | dearer ones |" in page
    assert "| `pace` 1 | 20.0 | **50.0** |" in page
    assert "It holds where it is so; `pace` 1; dearer ones, or where it is so; `pace` 2; dearer ones." in page


def test_what_experiments_share_is_run_once() -> None:
    names = ("serverlessllm", "kernelflume")
    alone = Experiment(config="64-end-to-end-a6000.yaml", what="a", strategies=names)
    swept = alone.model_copy(update={"sweep": {"strategies.serverlessllm.admission": ["current", "peak"]}})
    shared = [
        task_key(task)
        for experiment in (alone, swept)
        for _, config in combinations_of(experiment)
        for task in tasks_of(config)
    ]
    # Three slices: both strategies alone, one of them for the other admission, and the other one again.
    assert len(shared) == 3 * (2 + 2 * 2)
    assert len(set(shared)) == 3 * 3


def test_measured_figures_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "It takes\n4 ms.\n\n| | mean |\n|---|---|\n| `off` | 1 |\n\n| | off | on |\n|---|---|---|\n"
        "| Q1 B8 | 1.1 | 1.0 |\n| Q1 B9 | 1.3 | 1.0 |\n| Q2 | 2 | - |\n"
    )
    quoted = Quoted(file="a.md", quote="It takes 4 ms", values=(4.0,))
    assert measured(quoted, tmp_path) == [4.0]
    with pytest.raises(ConfigurationError):
        measured(quoted.model_copy(update={"quote": "It takes 5 ms"}), tmp_path)
    tabled = Tabled(file="a.md", column="off", rows=("Q1", "Q2"))
    assert measured(tabled, tmp_path) == pytest.approx([1.2, 2.0])
    gained = Tabled(file="a.md", column="off", minus="on", rows=("Q1",), scale=100)
    assert measured(gained, tmp_path) == pytest.approx([20.0])
    with pytest.raises(ConfigurationError):
        measured(tabled.model_copy(update={"rows": ("Q3",)}), tmp_path)


def test_all_measured_figures_are_in_their_files() -> None:
    for one in load_claims().claims:
        if one.measured is not None:
            assert measured(one.measured)
