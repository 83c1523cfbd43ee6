"""The files that serve hands to its scaler."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelflume.cli import scaling_files
from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.scaling_policy import ScalingPolicy


def facts(tmp_path: Path, text: str) -> scaling_files.PolicyFacts:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return scaling_files.read_facts(file)


NO_POLICY = scaling_files.read_facts(None)


def test_without_a_policy_a_stack_has_its_own_number_and_does_not_grow() -> None:
    assert (NO_POLICY.minimum_nodes, NO_POLICY.most_nodes) == (scaling_files.DEFAULT_ATTENTION_NODES, 0)


def test_what_is_not_named_is_as_the_scaler_has_it(tmp_path: Path) -> None:
    found, default = facts(tmp_path, ""), ScalingPolicy()
    assert (found.minimum_nodes, found.most_nodes) == (default.minimum_nodes, default.most_nodes)
    assert (found.num_standby, found.node_memory_bytes, found.provider) == (0, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "{minimum_nodes: 2, maximum_nodes: 7}",
        "{node_cost_per_hour: 0.1, maximum_cost_per_hour: 0.3}",
        "{maximum_nodes: 2, node_cost_per_hour: 1, maximum_cost_per_hour: 9.5}",
        "{node_cost_per_hour: 1.0e-300, maximum_cost_per_hour: 1.0e+300}",
    ],
)
def test_the_policy_may_grow_as_far_as_the_scaler_says(text: str, tmp_path: Path) -> None:
    policy = ScalingPolicy.parse(text)
    found = facts(tmp_path, text)
    assert (found.minimum_nodes, found.most_nodes) == (policy.minimum_nodes, policy.most_nodes)


def test_the_provider_section_is_read(tmp_path: Path) -> None:
    found = facts(tmp_path, "provider: {standby_nodes: 2, node_memory: 1MiB, node_threads: 3, kind: null}")
    assert (found.num_standby, found.node_memory_bytes, found.node_threads) == (2, 1024**2, 3)
    assert facts(tmp_path, "provider: {ray: {address: local}}").ray_address == "local"


def test_the_policy_s_provider_is_the_stack_s(tmp_path: Path) -> None:
    assert scaling_files.chosen_provider(None, NO_POLICY) == "process"
    assert scaling_files.chosen_provider("ray", facts(tmp_path, "")) == "ray"
    ray = facts(tmp_path, "provider: {kind: ray}")
    assert scaling_files.chosen_provider(None, ray) == scaling_files.chosen_provider("ray", ray) == "ray"
    with pytest.raises(ConfigurationError, match=r"^--provider: process is not the provider\.kind ray"):
        scaling_files.chosen_provider("process", ray)
    with pytest.raises(ConfigurationError, match=r"provider\.kind: .* not static; run the services"):
        scaling_files.chosen_provider(None, facts(tmp_path, "provider: {kind: static}"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("minimum_nodes: 0", "minimum_nodes: must be a number from 1, not 0"),
        ("minimum_nodes: true", "minimum_nodes: must be"),
        ("maximum_nodes: 0", "maximum_nodes: must be a number from 1, not 0"),
        ("minimum_nodes: null", "minimum_nodes: must be a number from 1, not None"),
        ("maximum_cost_per_hour: much", "maximum_cost_per_hour: must be a number from 0, not 'much'"),
        ("provider: {node_memory: much}", r"provider\.node_memory: 'much' is no size"),
        ("provider: [1]", "provider: not a mapping"),
        ("- 1", "not a mapping"),
        ("a: b: c", "mapping values are not allowed"),
    ],
)
def test_a_policy_that_is_none_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"^--scaling-policy: .*{fault}"):
        facts(tmp_path, text)


def test_a_path_is_made_absolute_and_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert scaling_files.readable("--profile", None) is None
    assert scaling_files.readable("--profile", Path("file")) == tmp_path / "file"
    with pytest.raises(ConfigurationError, match=r"^--profile: cannot read .*: Is a directory"):
        scaling_files.readable("--profile", tmp_path)
