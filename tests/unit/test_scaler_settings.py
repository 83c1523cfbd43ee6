from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import KvGeometry
from kernelflume.runtime.settings import load
from kernelflume.scaler.command import attention_node_command
from kernelflume.scaler.settings import ScalerSettings

if TYPE_CHECKING:
    from pathlib import Path

GEOMETRY = KvGeometry(
    model_id="m",
    model_revision="r",
    num_layers=2,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    dtype="float32",
    kv_dtype="float32",
)
GEOMETRY_FLAGS = ["--geometry", json.dumps(GEOMETRY.to_dict())]


def parse(*flags: str) -> ScalerSettings:
    return load(ScalerSettings, list(flags), program="kernelflume scaler")


def test_flags_are_read() -> None:
    settings = parse(
        *GEOMETRY_FLAGS, "--attention-nodes", "2", "--attention-node-memory", "64MiB", "--provider", "process"
    )
    assert (settings.attention_nodes, settings.attention_node_memory) == (2, 64 * 1024**2)
    assert settings.kv_geometry() == GEOMETRY


def test_a_file_may_write_the_geometry_as_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "scaler.yaml"
    path.write_text(json.dumps({"geometry": GEOMETRY.to_dict(), "attention-nodes": 3}))
    settings = parse("--config", str(path))
    assert (settings.kv_geometry(), settings.attention_nodes) == (GEOMETRY, 3)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELFLUME_SCALER_PROVIDER", "static")
    assert parse().provider == "static"
    assert parse().kv_geometry() is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "geometry is required with the process provider"),
        (["--geometry", "{"], "geometry is no JSON object"),
        (["--geometry", "[1]"], "geometry is no JSON object"),
        (["--geometry", '{"model_id": "m"}'], "geometry needs "),
        ([*GEOMETRY_FLAGS, "--retry-min-s", "99"], "retry-min-s 99 is above retry-max-s 60"),
        ([*GEOMETRY_FLAGS, "--provider", "magic"], "--provider"),
        ([*GEOMETRY_FLAGS, "--attention-node-memory", "much"], "--attention-node-memory"),
    ],
)
def test_a_bad_value_is_named(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(*flags)


def test_a_node_is_started_with_all_it_needs() -> None:
    settings = parse(
        *GEOMETRY_FLAGS,
        "--redis-url",
        "redis://h:1/0",
        "--cluster",
        "c",
        "--attention-node-threads",
        "3",
        "--transport-error-handling",
        "none",
        "--attention-node-args=--page-tokens=32",
    )
    command = attention_node_command(settings, "a-7", "127.0.0.1:0")
    assert command[:3] == [sys.executable, "-m", "kernelflume.anode"]
    assert command[-1] == "--page-tokens=32"
    assert "--exit-with-parent" in command
    for flag, value in {
        "--node-id": "a-7",
        "--address": "127.0.0.1:0",
        "--redis-url": "redis://h:1/0",
        "--cluster": "c",
        "--memory": str(512 * 1024**2),
        "--transport-error-handling": "none",
        "--threads": "3",
        "--log-level": "info",
    }.items():
        assert command[command.index(flag) + 1] == value
    assert KvGeometry.from_dict(json.loads(command[command.index("--geometry") + 1])) == GEOMETRY


def test_the_node_chooses_its_threads_unless_told_and_may_run_in_a_wrapper() -> None:
    settings = parse(
        *GEOMETRY_FLAGS, "--attention-node-command", "numactl", "--attention-node-command", "node"
    )
    command = attention_node_command(settings, "a-1", "h:0")
    assert command[:3] == ["numactl", "node", "--node-id"]
    assert "--threads" not in command
