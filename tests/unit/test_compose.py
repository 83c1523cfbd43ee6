"""The files in compose/, as far as they can be checked without a container engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from kernelflume.anode.settings import AttentionNodeSettings
from kernelflume.router.metrics import RouterMetrics
from kernelflume.router.settings import RouterSettings
from kernelflume.runtime.settings import ServiceSettings, load
from kernelflume.scaler.metrics import ScalerMetrics
from kernelflume.scaler.settings import ScalerSettings
from kernelflume.wnode.metrics import WeightNodeMetrics
from kernelflume.wnode.settings import WeightNodeSettings

FOLDER = Path(__file__).resolve().parents[2] / "compose"
SETTINGS: dict[str, type[ServiceSettings]] = {
    "anode": AttentionNodeSettings,
    "router": RouterSettings,
    "scaler": ScalerSettings,
    "wnode": WeightNodeSettings,
}
CLUSTERS = ["cpu.yaml", "gpu-single.yaml", "gpu-multi.yaml"]
VARIABLES = {
    "GEOMETRY": (
        '{"model_id": "m", "model_revision": "r", "num_layers": 1, "num_query_heads": 2, "num_kv_heads": 1, '
        '"head_dim": 8, "dtype": "float32", "kv_dtype": "float32"}'
    ),
    "MODEL_FOLDER": "/models/m",
    "MODEL_NAME": "m",
    "GRAFANA_PASSWORD": "only-for-this-test",
}
METRIC = re.compile(r"\b(?:vllm:|kernelflume_)[a-z0-9_]+")


def parse(name: str) -> Any:
    text = (FOLDER / name).read_text()
    return yaml.safe_load(
        re.sub(r"\$\{([A-Z_]+)[^}]*\}", lambda found: VARIABLES[found[1]].replace('"', '\\"'), text)
    )


def served_metrics() -> set[str]:
    """Return the names of all samples that the services can show."""
    registry = CollectorRegistry()
    WeightNodeMetrics(registry)
    registries = [registry, RouterMetrics("m", list).registry, ScalerMetrics().registry]
    names: set[str] = set()
    for one in registries:
        for family in one.collect():
            endings = {
                "counter": ["_total"],
                "histogram": ["_bucket", "_sum", "_count"],
            }.get(family.type, [""])
            names |= {family.name + ending for ending in endings}
    return names


@pytest.mark.parametrize("name", CLUSTERS)
def test_commands_are_understood_by_their_services(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    services = parse(name)["services"]
    assert {"redis", "scaler", "router", "w-1", "a-1"} <= services.keys()
    overlay = parse("observability.yaml")["services"]
    for service, definition in services.items():
        if service == "redis":
            continue
        with monkeypatch.context() as environment:
            more = overlay.get(service, {}).get("environment", {})
            for variable, value in (definition["environment"] | more).items():
                environment.setenv(variable, value)
            program, *arguments = definition["command"]
            settings = load(SETTINGS[program], arguments, program=program)
        assert settings.redis_url == "redis://redis:6379/0"
        assert settings.tracing.otlp_endpoint == ("http://collector:4317" if more else None)
        if isinstance(settings, WeightNodeSettings | AttentionNodeSettings):
            # Others call a node at the address it listens on, so it must be its name in the network.
            assert settings.address.startswith(f"{service}:")
            assert settings.doorbell_host == service


@pytest.mark.parametrize("name", [*CLUSTERS, "observability.yaml"])
def test_images_are_pinned_mounts_exist_and_waits_have_something_to_wait_for(name: str) -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    targets = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    document = parse(name)
    for service, definition in document["services"].items():
        for needed in definition.get("depends_on", {}):
            assert "healthcheck" in document["services"][needed], f"{service} waits for {needed}"
        if "build" in definition:
            assert definition["build"]["target"] in targets
            assert (FOLDER / definition["build"]["context"] / definition["build"]["dockerfile"]).is_file()
        elif "image" in definition:
            assert re.search(r":v?\d+\.\d+\.\d+[\w.-]*$", definition["image"]), definition["image"]
        for volume in definition.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (FOLDER / source).is_file(), volume
            assert source.startswith((".", "/")) or source in document["volumes"]
        for port in definition.get("ports", []):
            assert port.startswith("127.0.0.1:"), "nothing is shown to the network unasked"


def test_images_are_built_from_pinned_ones_and_run_as_nobody_special() -> None:
    stages: dict[str, list[str]] = {}
    for line in (FOLDER / "Dockerfile").read_text().splitlines():
        if found := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            base, stage = found.groups()
            assert base in stages or re.search(r":\d+\.\d+\.\d+-", base), base
            stages[stage] = [*stages.get(base, [])]
        elif line and not line.startswith("#"):
            assert stages, line
            stages[list(stages)[-1]].append(line)
    for target in ("slim", "node", "gpu"):
        lines = stages[target]
        assert [line for line in lines if line.startswith("USER")] == ["USER kernelflume"]
        # What was needed to build is not in what is shipped.
        assert not any("pip install" in line for line in lines)


def test_every_metric_of_dashboard_and_rules_exists() -> None:
    known = served_metrics()
    dashboard = json.loads((FOLDER / "grafana" / "kernelflume.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [rule for group in parse("alerts.yaml")["groups"] for rule in group["rules"]]
    expressions += [rule["expr"] for rule in rules]
    jobs = {job["job_name"] for job in parse("prometheus.yaml")["scrape_configs"]}
    for expression in expressions:
        names = METRIC.findall(expression)
        assert names or "up{" in expression, expression
        assert set(names) <= known, set(names) - known
        assert set(re.findall(r'job="(\w+)"', expression)) <= jobs
        assert expression.count("(") == expression.count(")")
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["labels"]["severity"] and rule["annotations"]["summary"] for rule in rules)


def test_the_dashboard_is_wired_to_its_data_and_lies_on_the_grid() -> None:
    dashboard = json.loads((FOLDER / "grafana" / "kernelflume.json").read_text())
    [source] = parse("grafana/datasource.yaml")["datasources"]
    places = set()
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == source["uid"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {source["uid"]}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        places.add((place["x"], place["y"]))
    assert len(places) == len(dashboard["panels"]) == len({panel["id"] for panel in dashboard["panels"]})
    [provider] = parse("grafana/dashboards.yaml")["providers"]
    mounts = parse("observability.yaml")["services"]["grafana"]["volumes"]
    assert any(mount.split(":")[1].startswith(provider["options"]["path"]) for mount in mounts)


def test_prometheus_asks_services_that_are_there() -> None:
    services = parse("cpu.yaml")["services"].keys() | parse("observability.yaml")["services"].keys()
    for job in parse("prometheus.yaml")["scrape_configs"]:
        for static in job["static_configs"]:
            assert {target.partition(":")[0] for target in static["targets"]} <= services
    assert {rule_file.rsplit("/", 1)[1] for rule_file in parse("prometheus.yaml")["rule_files"]} == {
        "alerts.yaml"
    }


def test_the_collector_s_pipelines_name_parts_that_are_there() -> None:
    collector = parse("collector.yaml")
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= collector[kind].keys()


@pytest.mark.parametrize("name", CLUSTERS)
def test_docker_compose_accepts_the_files(name: str) -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    files = ["-f", str(FOLDER / name), "-f", str(FOLDER / "observability.yaml")]
    command = ["docker", "compose", *files, "config", "--quiet"]
    version = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False)
    if version.returncode:
        pytest.skip("docker has no compose")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=_environment()
    )
    assert done.returncode == 0, done.stderr


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", **VARIABLES}  # noqa: S108 - reads nothing there
