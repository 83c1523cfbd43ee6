from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import KvGeometry
from kernelflume.runtime.settings import load
from kernelflume.scaler.command import attention_node_command, ray_node_command
from kernelflume.scaler.providers.choice import make_provider
from kernelflume.scaler.providers.live import LiveSettings
from kernelflume.scaler.providers.ray.host import Place
from kernelflume.scaler.settings import ScalerSettings
from kernelflume.store.memory import MemoryStore

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
        (["--provider", "ray"], "geometry is required with the ray provider"),
        (
            [*GEOMETRY_FLAGS, "--ray.address", "ray://h:10001"],
            r"--ray\.address: .*is not supported: Ray Client",
        ),
        ([*GEOMETRY_FLAGS, "--ray.address", "nonsense"], r"--ray\.address"),
        ([*GEOMETRY_FLAGS, "--ray.num-cpus", "-1"], r"--ray\.num_cpus"),
        (
            [*GEOMETRY_FLAGS, "--ray.resources", '{"CPU": 2}'],
            r"--ray\.resources: the amount of CPU has a setting of its own, num-cpus",
        ),
        ([*GEOMETRY_FLAGS, "--ray.resources", '{"nic": 0}'], r"--ray\.resources: 0 of nic is no amount"),
        ([*GEOMETRY_FLAGS, "--kubernetes.namespace", "Not_A_Name"], r"--kubernetes\.namespace"),
        ([*GEOMETRY_FLAGS, "--kubernetes.request-timeout-s", "0"], r"--kubernetes\.request_timeout_s"),
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
    command = attention_node_command(settings, "a-7")
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
    command = attention_node_command(settings, "a-1")
    assert command[:3] == ["numactl", "node", "--node-id"]
    assert "--threads" not in command


def test_what_a_node_asks_ray_for() -> None:
    settings = parse(
        *GEOMETRY_FLAGS, "--ray.num-cpus", "2", "--ray.num-gpus", "0.5", "--ray.resources", '{"nic": 1}'
    )
    asked = settings.ray.demands(memory_bytes=1024)
    assert asked == {"CPU": 2.0, "GPU": 0.5, "memory": 1024.0, "nic": 1.0}
    assert parse(*GEOMETRY_FLAGS, "--ray.num-cpus", "0").ray.demands(memory_bytes=0) == {}


def test_on_ray_a_node_serves_where_others_reach_it_with_the_threads_that_ray_gave_it() -> None:
    settings = parse(*GEOMETRY_FLAGS, "--ray.num-cpus", "3", "--attention-node-args=--page-tokens=32")
    place = Place(ray_node="n", host="10.0.0.9", python="/opt/python")
    command = ray_node_command(settings, "a-7", place)
    assert command[:3] == ["/opt/python", "-m", "kernelflume.anode"]
    assert command[-1] == "--page-tokens=32"
    for flag, value in {"--address": "10.0.0.9:0", "--doorbell-host": "10.0.0.9", "--threads": "3"}.items():
        assert command[command.index(flag) + 1] == value
    own = parse(*GEOMETRY_FLAGS, "--attention-node-threads", "5")
    command = ray_node_command(own, "a-7", place)
    assert command[command.index("--threads") + 1] == "5"


@pytest.mark.parametrize("provider", ["ray", "kubernetes"])
def test_a_missing_library_is_named_with_what_to_install(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, provider, None)
    for module in ("kubernetes", "statefulset", "ray.provider", "ray.service", "ray.cluster"):
        monkeypatch.delitem(sys.modules, f"kernelflume.scaler.providers.{module}", raising=False)
    settings = parse(*GEOMETRY_FLAGS, "--provider", provider)
    with pytest.raises(ConfigurationError, match=rf"provider: {provider} needs .*kernelflume\[{provider}\]"):
        make_provider(LiveSettings(settings), MemoryStore())
