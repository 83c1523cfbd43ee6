"""YAML of people, and the small files it comes in: whatever they hold, it is a mapping or a clear refusal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.runtime.smallfile import MAX_BYTES, read_small_file
from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.scaling_policy import ScalingPolicy

if TYPE_CHECKING:
    from pathlib import Path

BOMB = "a0: &a0 {k: 1}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{','.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 20_000, "nests too deeply"),
        ("a: " + "{a: " * 40, "nests too deeply"),
        (BOMB, "an alias can only stand for a single value"),
        ("a: &a [*a]", "an alias can only stand for a single value"),
        ("a: !!bool x", "cannot be read"),
        ("a: !!timestamp x", "cannot be read"),
        ("a: 2024-99-99", "month must be in"),
        ("a: !!int x", "cannot be read"),
        ("a: " + "9" * 5000, "cannot be read"),
        ("a: !!python/object:os.system {}", "no YAML"),
        ("a: 1\nb: 2\na: 3", "a is there twice"),
        ("a: {b: 1, b: 2}", "b is there twice"),
        ("? [1, 2]\n: 3", "no YAML"),
        ("1: 2", "1 is no name of a setting"),
        ("- a", "not a mapping"),
        ("a\x00", "no YAML"),
        ("a: 1\n---\na: 2", "no YAML"),
        ("a: 1\n" + "#" * MAX_BYTES, "longer than 64 KiB"),
    ],
)
def test_what_is_no_mapping_is_refused_in_one_line(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault) as refused:
        parse_mapping(text)
    assert "\n" not in str(refused.value)


def test_a_mapping_is_read_with_aliases_of_single_values() -> None:
    assert parse_mapping("") == parse_mapping("# nothing") == {}
    assert parse_mapping("a: &x 1\nb: *x\nc: {d: [1, 2]}") == {"a": 1, "b": 1, "c": {"d": [1, 2]}}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("minimum_nodes: yes", "minimum_nodes: Input should be a number, not true or false"),
        ("gamma: on", "gamma: Input should be a number"),
        ("tpot_slo_s: true", "tpot_slo_s: Input should be a number"),
        ("maximum_nodes: 4294967296", "maximum_nodes: Input should be less than or equal to 4096"),
        ("minimum_nodes: 3\nminimum_nodes: 5", "twice"),
        ("automatic: !!bool x", "cannot be read"),
    ],
)
def test_a_policy_with_a_slip_is_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidRequestError, match=fault):
        ScalingPolicy.parse(text)


def test_a_price_next_to_nothing_pays_for_all_nodes() -> None:
    policy = ScalingPolicy.parse("node_cost_per_hour: 1.0e-320\nmaximum_cost_per_hour: 1.0e+308")
    assert policy.most_nodes == policy.maximum_nodes
    assert ScalingPolicy.parse(policy.to_yaml()) == policy


def test_a_file_is_read_whatever_writes_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xef\xbb\xbfa: \xc3\xa4")
    assert read_small_file(file) == "a: ä"


def test_what_is_no_small_text_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match="no regular file"):
        read_small_file(pipe)  # nobody will ever write to it
    with pytest.raises(ConfigurationError, match="no regular file"):
        read_small_file(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_small_file(tmp_path / "absent")
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        read_small_file(tmp_path / "latin")
    (tmp_path / "large").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigurationError, match="longer than 64 KiB"):
        read_small_file(tmp_path / "large")
