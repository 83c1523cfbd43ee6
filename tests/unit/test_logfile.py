"""What the end of a log file says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kernelflume.runtime.logfile import last_error, last_line

if TYPE_CHECKING:
    from pathlib import Path

INFO = json.dumps({"level": "info", "message": "all is well"})
ERROR = json.dumps({"level": "error", "message": "refused to start: port taken"})
TRACED = json.dumps({"level": "error", "message": "unexpected", "error": "Traceback ...\nValueError: no\n"})
WORDLESS = json.dumps({"level": "info"})


@pytest.mark.parametrize(
    ("lines", "error", "line"),
    [
        ([], None, None),
        (["", "  "], None, None),
        ([INFO, ERROR, INFO], "refused to start: port taken", "all is well"),
        ([ERROR, TRACED], "unexpected: ValueError: no", "unexpected: ValueError: no"),
        ([INFO], "all is well", "all is well"),
        ([INFO, "Segmentation fault", ""], "Segmentation fault", "Segmentation fault"),
        (["[1, 2]"], "[1, 2]", "[1, 2]"),
        ([WORDLESS], WORDLESS, WORDLESS),
    ],
)
def test_the_last_error_or_else_the_last_line(
    tmp_path: Path, lines: list[str], error: str | None, line: str | None
) -> None:
    path = tmp_path / "part.log"
    path.write_text("".join(f"{each}\n" for each in lines))
    assert last_error(path) == error
    assert last_line(path) == line


def test_a_line_without_an_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    path.write_text("cut off")
    assert last_line(path) == "cut off"


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    assert last_error(tmp_path / "absent.log") is None
    assert last_line(tmp_path / "absent.log") is None


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    path.write_text(f"{ERROR}\n" + f"{INFO}\n" * 10_000)
    assert last_error(path) == "all is well"


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    path.write_text("x" * 100_000)
    assert last_line(path) == "x" * 500


def test_lines_of_an_earlier_start_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    path.write_text("old\n")
    assert last_line(path, start=4) is None
    path.write_text("old\nnew\n")
    assert last_line(path, start=4) == "new"


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "part.log"
    path.write_bytes(b"\xff\xfe bad\n")
    assert str(last_line(path)).endswith("bad")
