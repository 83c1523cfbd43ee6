"""What the end of a log file says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kernelflume.cli.logfile import last_error

if TYPE_CHECKING:
    from pathlib import Path

INFO = json.dumps({"level": "info", "message": "all is well"})
ERROR = json.dumps({"level": "error", "message": "refused to start: port taken"})
TRACED = json.dumps({"level": "error", "message": "unexpected", "error": "Traceback ...\nValueError: no\n"})


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], None),
        (["", "  "], None),
        ([INFO, ERROR, INFO], "refused to start: port taken"),
        ([ERROR, TRACED], "unexpected: ValueError: no"),
        ([INFO], "all is well"),
        ([INFO, "Segmentation fault"], "Segmentation fault"),
        (["[1, 2]"], "[1, 2]"),
        ([json.dumps({"level": "info"})], '{"level": "info"}'),
    ],
)
def test_the_last_error_or_else_the_last_line(tmp_path: Path, lines: list[str], said: str | None) -> None:
    path = tmp_path / "part.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    assert last_error(path) == said


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    assert last_error(tmp_path / "absent.log") is None


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    path.write_text(f"{ERROR}\n" + f"{INFO}\n" * 10_000)
    assert last_error(path) == "all is well"
