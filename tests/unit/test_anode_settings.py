from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.anode import GEOMETRY

from kernelflume.anode.settings import AttentionNodeSettings
from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.settings import load
from kernelflume.transport.waiter import WaitPolicy

if TYPE_CHECKING:
    from pathlib import Path

GEOMETRY_JSON = json.dumps(GEOMETRY.to_dict())


def parse(*flags: str) -> AttentionNodeSettings:
    return load(AttentionNodeSettings, list(flags), program="anode")


def test_defaults_wait_as_the_transport_says() -> None:
    settings = parse("--geometry", GEOMETRY_JSON)
    assert settings.kv_geometry == GEOMETRY
    assert settings.wait_policy == WaitPolicy()
    assert settings.page_tokens == 64


def test_flags_are_read() -> None:
    settings = parse(
        "--geometry", GEOMETRY_JSON, "--memory", "1GiB", "--wait.spin-s", "0.5", "--threads", "3"
    )  # fmt: skip
    assert settings.memory == 1024**3
    assert settings.wait_policy.spin_s == 0.5
    assert settings.threads == 3


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFLUME_ANODE_GEOMETRY", GEOMETRY_JSON)
    monkeypatch.setenv("KERNELFLUME_ANODE_NODE_ID", "a-9")
    monkeypatch.setenv("KERNELFLUME_ANODE_WAIT__NAP_S", "0.25")
    settings = parse()
    assert settings.node_id == "a-9"
    assert settings.wait_policy.nap_s == 0.25


def test_a_file_may_hold_the_geometry_as_a_mapping(tmp_path: Path) -> None:
    fields = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in GEOMETRY.to_dict().items())
    config = tmp_path / "anode.yaml"
    config.write_text(f"geometry:\n{fields}")
    assert parse("--config", str(config)).kv_geometry == GEOMETRY


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--geometry", "[]"], "--geometry: geometry is no JSON object"),
        (["--geometry", ""], "--geometry"),
        (["--geometry", GEOMETRY_JSON.replace("float32", "int4")], "dtype 'int4'"),
        (["--geometry", '{"dtype": "float32"}'], "geometry needs head_dim, kv_dtype, model_id"),
        (["--geometry", GEOMETRY_JSON.replace("head_dim", "head-dim")], "geometry needs head_dim"),
        (["--geometry", GEOMETRY_JSON.replace("{", '{"path": "/m", ')], "geometry has no path"),
        (["--geometry", GEOMETRY_JSON.replace('"float32"', "1")], "dtype 1 is no str"),
        (["--geometry", GEOMETRY_JSON, "--memory", "much"], "--memory: 'much' is no size"),
        (["--geometry", GEOMETRY_JSON, "--address", "nowhere"], "--address"),
        (["--geometry", GEOMETRY_JSON, "--transport-error-handling", "maybe"], "--transport-error-handling"),
        (["--geometry", GEOMETRY_JSON, "--kernel", "fast"], "--kernel"),
        (["--geometry", GEOMETRY_JSON, "--node-id", "a#1"], "--node-id"),
        (["--geometry", GEOMETRY_JSON, "--lease-ttl-s", "0"], "--lease-ttl-s"),
    ],
)
def test_a_bad_value_is_named(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("[", r"\[")):
        parse(*flags)
