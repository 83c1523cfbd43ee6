"""The policy file while a scaler runs: good edits take force, anything else changes nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.scaler import policy_source
from kernelflume.scaler.policy_source import PolicySource
from kernelflume.store.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("maximum_nodes: 5")
    return path


def test_bad_edits_of_every_kind_leave_the_policy(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = PolicySource(file, MemoryStore())
    for content in (b"automatic: !!bool x", b"[" * 9000, b"\xff", b"maximum_nodes: 5\ngam", b"#" * 100_000):
        file.write_bytes(content)
        assert source.look() is None
        assert source.look() is None
    file.unlink()
    assert source.look() is None
    file.mkdir()
    assert source.look() is None
    file.rmdir()
    os.mkfifo(file)
    assert source.look() is None
    file.unlink()
    assert source.policy.maximum_nodes == 5
    assert len([record for record in caplog.records if "is not used" in record.message]) == 7, "once each"
    file.write_text("maximum_nodes: 6")
    new = source.look()
    assert new is not None
    assert new.maximum_nodes == 6
    assert source.look() is None


def test_a_fault_nobody_thought_of_ends_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PolicySource(file, MemoryStore())

    def broken(_path: Path) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(policy_source, "read_small_file", broken)
    assert source.look() is None
    assert source.policy.maximum_nodes == 5


def test_links_may_be_swapped_under_it_as_mounts_do(tmp_path: Path) -> None:
    for name, number in (("..one", 3), ("..two", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(f"maximum_nodes: {number}")
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    source = PolicySource(tmp_path / "policy.yaml", MemoryStore())
    assert source.policy.maximum_nodes == 3
    (tmp_path / "..new").symlink_to("..two")
    (tmp_path / "..new").replace(tmp_path / "..data")
    new = source.look()
    assert new is not None
    assert new.maximum_nodes == 4


def test_a_bad_file_at_the_start_is_a_clear_refusal(file: Path) -> None:
    file.write_text("automatic: !!bool x")
    with pytest.raises(ConfigurationError, match=r"^policy-file: .*policy.yaml: policy: no YAML"):
        PolicySource(file, MemoryStore())


async def test_a_policy_over_the_api_is_as_bounded_as_a_file(file: Path) -> None:
    source = PolicySource(file, MemoryStore())
    with pytest.raises(InvalidRequestError, match="longer than 64 KiB"):
        await source.set("#" * 1_000_000, fencing_token=None)
    assert source.policy.maximum_nodes == 5
