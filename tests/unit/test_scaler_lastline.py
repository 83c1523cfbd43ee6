from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kernelflume.scaler.providers.lastline import last_line

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        ("first\nsecond\n\n", "second"),
        ("cut off", "cut off"),
        (json.dumps({"message": "no memory", "level": "error"}), "no memory"),
        (
            json.dumps({"message": "died", "error": "Trace:\n  x\nValueError: x\n"}),
            "died: ValueError: x",
        ),
        (json.dumps(["no", "record"]), '["no", "record"]'),
        ("x" * 100_000, "x" * 500),
    ],
)
def test_the_last_line_that_says_something_is_found(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert last_line(path) == line


def test_lines_of_an_earlier_start_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    assert last_line(path, start=4) == ""
    path.write_text("old\nnew\n")
    assert last_line(path, start=4) == "new"


def test_a_missing_log_says_nothing(tmp_path: Path) -> None:
    assert last_line(tmp_path / "never") == ""


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe bad\n")
    assert last_line(path).endswith("bad")
