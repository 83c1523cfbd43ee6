"""The log of decisions can be made again, and the policy decides as it did when the golden log was kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.golden.decisions import PATH, POLICY, golden_lines

from kernelflume.scaler.decision_log import DecisionLog, DecisionRecord
from kernelflume.scaler.policy import PolicySettings, Sized
from kernelflume.scaler.replay import decide_again, main, records
from kernelflume.scaler.sizing import SizingAction, SizingReason

if TYPE_CHECKING:
    from pathlib import Path


def golden() -> list[DecisionRecord]:
    return list(records(PATH.read_text(encoding="utf-8").splitlines()))


def test_golden_decisions_are_made_again() -> None:
    kept = golden()
    assert len(kept) > 20
    assert [decide_again(record) for record in kept] == [record.sizing for record in kept]


def test_golden_days_go_as_they_went() -> None:
    """After a wanted change run scripts/make_golden_decisions.py and read the difference."""
    assert golden_lines() == PATH.read_text(encoding="utf-8").splitlines()


def test_golden_days_show_every_reason_and_action() -> None:
    kept = golden()
    assert {record.sizing.action for record in kept} == set(SizingAction)
    shown = {record.sizing.reason for record in kept}
    assert set(SizingReason) - shown == {SizingReason.MINIMUM, SizingReason.PENDING}


def test_a_record_is_read_back_as_it_was() -> None:
    for line in PATH.read_text(encoding="utf-8").splitlines():
        assert DecisionRecord.from_json(line).to_json() == line


def test_a_different_decision_is_found_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = PATH.read_text(encoding="utf-8").splitlines()
    fields = json.loads(second)
    fields["sizing"]["target"] = 99
    service_line = json.dumps({"level": "info", "message": json.dumps(fields)})
    path = tmp_path / "scaler.log"
    path.write_text(f"no json\n[1]\n{first}\n{service_line}\n", encoding="utf-8")
    assert main(str(path)) == 1
    assert "target=99" in capsys.readouterr().out


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 9"):
        list(records(['{"schema": 9, "sizing": {}}']))


def test_looks_that_come_to_the_same_are_logged_once() -> None:
    lines: list[str] = []
    log = DecisionLog(lines.append)
    settings = PolicySettings(scaling=POLICY, lost_grace_s=1, retry_min_s=1, retry_max_s=1, token_bytes=100)
    kept = golden()
    for record in (kept[0], kept[0], kept[1]):
        log.note(Sized(view=record.view, state=record.state, sizing=record.sizing), settings)
    assert len(lines) == 2
    assert [record.sizing for record in records(lines)] == [kept[0].sizing, kept[1].sizing]
