"""`kernelflume sim validate` on runs that were recorded live (tests/golden/recordings)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_simulator_cli import command

RECORDINGS = Path(__file__).resolve().parents[1] / "golden" / "recordings"
RUN = str(RECORDINGS / "run")
pytestmark = pytest.mark.timeout(600)
CALIBRATION = str(RECORDINGS / "calibration")
ALONE = str(RECORDINGS / "alone")
"""With a profile that was measured through a router, in mean steps, and with a second node."""


def figures(output: str) -> dict[str, dict[str, Any]]:
    return {figure["name"]: figure for figure in json.loads(output)["figures"]}


def test_a_calibrated_replay_is_within_ten_percent_of_the_live_run() -> None:
    done = command("validate", RUN, "--calibrate-by", CALIBRATION, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["valid"] is True
    assert 0.8 < told["calibration"]["step_factor"] < 1.5
    found = figures(done.stdout)
    assert found["most nodes"]["simulated"] == found["most nodes"]["live"] == 2
    assert found["node-seconds"]["live"] == pytest.approx(163.69, abs=0.01)
    assert found["TPOT p99"]["live"] == pytest.approx(231.18, abs=0.01)
    # The same figures again: nothing in a replay is chance.
    again = command("validate", RUN, "--calibrate-by", CALIBRATION, "--json")
    assert again.stdout == done.stdout


def test_a_profile_of_the_stack_as_it_serves_is_enough() -> None:
    done = command("validate", ALONE, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)["calibration"] is None
    found = figures(done.stdout)
    assert found["node-seconds"]["live"] == pytest.approx(88.27, abs=0.01)
    assert found["TPOT p99"]["live"] == pytest.approx(65.55, abs=0.01)


def test_a_profile_of_an_earlier_version_is_too_fast_and_the_verdict_is_no() -> None:
    done = command("validate", RUN)
    assert done.returncode == 1
    assert "NO" in done.stdout
    assert done.stderr == ""
    assert command("validate", RUN, "--tolerance", "50").returncode == 0


def test_a_run_that_calibrates_itself_is_judged_by_its_other_requests() -> None:
    done = command("validate", RUN, "--calibrate-by", f"{RUN}/../run", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    found = figures(done.stdout)
    assert found["TPOT p99"]["live"] != pytest.approx(231.18, abs=0.01)
    assert found["node-seconds"]["live"] == pytest.approx(163.69, abs=0.01)


def test_prices_are_inputs() -> None:
    without = figures(command("validate", RUN, "--json", "--weight-node-price", "0").stdout)
    dear = figures(command("validate", RUN, "--json", "--weight-node-price", "100").stdout)
    assert without["cost"]["live"] == pytest.approx(without["node-seconds"]["live"] / 3600)
    assert dear["cost"]["live"] > 10 * without["cost"]["live"]


def test_a_recording_that_is_cut_off_is_one_line_and_code_2(tmp_path: Path) -> None:
    folder = shutil.copytree(RUN, tmp_path / "run")
    lines = (folder / "requests.jsonl").read_text().splitlines(keepends=True)
    (folder / "requests.jsonl").write_text("".join(lines[:-1]))
    for name in (str(folder), str(tmp_path / "none"), "\n"):
        done = command("validate", name)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    done = command("validate", RUN, "--calibrate-by", str(folder))
    assert done.returncode == 2
    assert "a file is cut off" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
