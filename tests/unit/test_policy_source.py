"""Where the policy comes from, and which provider settings follow from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.scaler_process import GEOMETRY

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
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
