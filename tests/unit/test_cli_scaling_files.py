"""The files that serve hands to its scaler."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelflume.cli import scaling_files
from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.scaling_policy import ScalingPolicy


def number(tmp_path: Path, text: str, asked: int | None = None) -> int:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return scaling_files.first_number(asked, file)


def test_a_stack_begins_with_what_was_asked_for_or_the_policy_s_minimum(tmp_path: Path) -> None:
    assert scaling_files.first_number(None, None) == scaling_files.DEFAULT_ATTENTION_NODES
    assert scaling_files.first_number(5, None) == 5
    assert number(tmp_path, "minimum_nodes: 3") == 3
    assert number(tmp_path, "minimum_nodes: 3", 4) == 4
    assert number(tmp_path, "") == number(tmp_path, "gamma: 0.5") == 1


def test_the_default_minimum_is_the_scaler_s() -> None:
    assert ScalingPolicy().minimum_nodes == scaling_files.DEFAULT_MINIMUM_NODES


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("minimum_nodes: 0", "minimum_nodes: must be a number from 1, not 0"),
        ("minimum_nodes: true", "minimum_nodes: must be"),
        ("- 1", "not a mapping"),
        ("a: b: c", "mapping values are not allowed"),
    ],
)
def test_a_policy_that_is_none_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"^--scaling-policy: .*{fault}"):
        number(tmp_path, text)


def test_a_path_is_made_absolute_and_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert scaling_files.readable("--profile", None) is None
    assert scaling_files.readable("--profile", Path("file")) == tmp_path / "file"
    with pytest.raises(ConfigurationError, match=r"^--profile: cannot read .*: Is a directory"):
        scaling_files.readable("--profile", tmp_path)
