"""Where the policy comes from, and which provider settings follow from it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.scaler_process import GEOMETRY

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.scaler import policy_source
from kernelflume.scaler.policy_source import PolicySource
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.settings import ScalerSettings
from kernelflume.store.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024**2


def own(path: Path | None = None, **settings: Any) -> ScalerSettings:
    return ScalerSettings(geometry=json.dumps(GEOMETRY.to_dict()), policy_file=path, **settings)


def policy_file(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def test_without_a_policy_the_scaler_s_own_settings_are_in_force() -> None:
    settings = own(standby_attention_nodes=2)
    assert PolicySource(settings, MemoryStore()).settings == settings


def test_what_the_policy_gives_wins_and_what_it_leaves_out_stays(tmp_path: Path) -> None:
    provider = {"standby_nodes": 1, "node_memory": "64MiB", "node_threads": None, "ray": {"num_cpus": 2}}
    path = policy_file(tmp_path, provider=provider)
    ray = {"namespace": "mine", "num_cpus": 7}
    found = PolicySource(own(path, attention_node_threads=3, ray=ray), MemoryStore()).settings
    assert (found.standby_attention_nodes, found.attention_node_memory) == (1, 64 * MIB)
    assert found.attention_node_threads == 3
    assert (found.ray.namespace, found.ray.num_cpus) == ("mine", 2)


def test_the_policy_may_choose_the_provider_at_the_start(tmp_path: Path) -> None:
    path = policy_file(tmp_path, provider={"kind": "static"})
    assert PolicySource(own(path), MemoryStore()).settings.provider == "static"
    path = policy_file(tmp_path, provider={"kind": "static", "standby_nodes": 1})
    with pytest.raises(ConfigurationError, match=r"provider: standby-attention-nodes cannot be"):
        PolicySource(own(path), MemoryStore())


@pytest.mark.parametrize(
    ("provider", "fault"),
    [
        ({"kind": "magic"}, r"provider\.kind: "),
        ({"standby_nodes": -1}, r"provider\.standby_nodes: "),
        ({"node_memory": "much"}, r"provider\.node_memory.*is no size"),
        ({"launch_timeout_s": 0}, r"provider\.launch_timeout_s: "),
        ({"ray": {"address": "ray://h:1"}}, r"provider\.ray\.address: .*Ray Client"),
        ({"kubernetes": {"namespace": "No_Name"}}, r"provider\.kubernetes\.namespace: "),
        ({"price": 1}, r"provider\.price: "),
    ],
)
def test_a_bad_provider_setting_is_named(provider: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^policy: {fault}"):
        ScalingPolicy.parse(yaml.safe_dump({"provider": provider}))


@pytest.mark.parametrize(
    ("kind", "provider", "fault"),
    [
        ("process", {"kind": "static"}, r"provider\.kind: cannot be changed from process to static"),
        ("ray", {"ray": {"lifetime": "detached"}}, r"provider\.ray\.lifetime: cannot be changed from scaler"),
        ("kubernetes", {"kubernetes": {"namespace": "other"}}, r"provider\.kubernetes\.namespace: cannot"),
        ("process", {"kind": None, "standby_nodes": 65}, r"provider\.standby_nodes: "),
    ],
)
async def test_what_a_running_scaler_keeps_is_refused_and_the_old_policy_stays(
    kind: str, provider: dict[str, Any], fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = policy_file(tmp_path, maximum_nodes=4, provider={"kind": kind})
    source = PolicySource(own(path), MemoryStore())
    before = (source.policy, source.settings, source.origin)
    text = yaml.safe_dump({"maximum_nodes": 9, "provider": {"kind": kind, **provider}})
    with pytest.raises(InvalidRequestError, match=fault):
        await source.set(text, fencing_token=None)
    path.write_text(text)
    assert source.look() is None
    assert source.look() is None
    assert len(caplog.records) == 1
    assert "is not used, the policy stays as it was" in caplog.text
    assert (source.policy, source.settings, source.origin) == before
    # The groups of other providers do not matter, and what may change does.
    path.write_text(yaml.safe_dump({"maximum_nodes": 9, "provider": {"kind": kind}}))
    assert source.look() == source.policy
    assert source.policy.maximum_nodes == 9


async def test_a_kept_policy_of_another_provider_is_not_taken_up(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await PolicySource(own(provider="static"), store).set("provider: {kind: static}", fencing_token=None)
    source = PolicySource(own(), store)
    assert await source.recall() == source.policy
    assert source.origin == "default"
    assert "cannot be used: policy: provider.kind" in caplog.text


def test_a_policy_shows_what_it_gives_of_the_provider_and_reads_it_back() -> None:
    policy = ScalingPolicy.parse("provider: {node_memory: 64MiB, ray: {resources: {nic: 1}}}")
    shown = yaml.safe_load(policy.to_yaml())
    assert shown["provider"] == {"node_memory": 64 * MIB, "ray": {"resources": {"nic": 1.0}}}
    assert ScalingPolicy.parse(policy.to_yaml()) == policy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("maximum_nodes: 5")
    return path


def test_bad_edits_of_every_kind_leave_the_policy(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = PolicySource(own(file), MemoryStore())
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
    source = PolicySource(own(file), MemoryStore())

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
    source = PolicySource(own(tmp_path / "policy.yaml"), MemoryStore())
    assert source.policy.maximum_nodes == 3
    (tmp_path / "..new").symlink_to("..two")
    (tmp_path / "..new").replace(tmp_path / "..data")
    new = source.look()
    assert new is not None
    assert new.maximum_nodes == 4


def test_a_bad_file_at_the_start_is_a_clear_refusal(file: Path) -> None:
    file.write_text("automatic: !!bool x")
    with pytest.raises(ConfigurationError, match=r"^policy-file: .*policy.yaml: policy: no YAML"):
        PolicySource(own(file), MemoryStore())


async def test_a_policy_over_the_api_is_as_bounded_as_a_file(file: Path) -> None:
    source = PolicySource(own(file), MemoryStore())
    with pytest.raises(InvalidRequestError, match="longer than 64 KiB"):
        await source.set("#" * 1_000_000, fencing_token=None)
    assert source.policy.maximum_nodes == 5
