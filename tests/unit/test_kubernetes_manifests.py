"""The manifests of deploy/kubernetes, as far as they can be checked without a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.test_compose import SETTINGS, VARIABLES

from kernelflume.runtime.settings import load
from kernelflume.scaler.settings import ScalerSettings

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    item for name in KUSTOMIZATION["resources"] for item in yaml.safe_load_all((FOLDER / name).read_text())
]
WORKLOADS = {
    item["metadata"]["name"]: item for item in OBJECTS if item["kind"] in ("Deployment", "StatefulSet")
}
ENVIRONMENT = {
    "POD_NAME": "kernelflume-anode-0",
    "POD_IP": "10.0.0.7",
    "POD_NAMESPACE": "kernelflume",
    "GEOMETRY": VARIABLES["GEOMETRY"],
}


def container(name: str) -> dict[str, Any]:
    [only] = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def arguments(name: str) -> list[str]:
    """Return the arguments as Kubernetes would fill them in, from variables that the container has."""
    own = {variable["name"] for variable in container(name).get("env", ())}

    def value(match: re.Match[str]) -> str:
        assert match[1] in own
        return ENVIRONMENT[match[1]]

    return [re.sub(r"\$\((\w+)\)", value, argument) for argument in container(name)["args"]]


def test_every_file_is_applied() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(KUSTOMIZATION["resources"])


@pytest.mark.parametrize("service", ["anode", "router", "scaler", "wnode"])
def test_each_service_takes_its_arguments(service: str) -> None:
    name, *flags = arguments(f"kernelflume-{service}")
    assert name == service
    settings = load(SETTINGS[service], flags, program=service)
    services = [item for item in OBJECTS if item["kind"] == "Service"]
    [redis] = [item for item in services if item["spec"]["selector"] == {"app": "kernelflume-redis"}]
    assert settings.redis_url == f"redis://{redis['metadata']['name']}:{redis['spec']['ports'][0]['port']}/0"


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_each_workload_selects_its_own_pods_and_is_probed(name: str) -> None:
    spec = WORKLOADS[name]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert {"readinessProbe", "livenessProbe", "resources"} <= container(name).keys()


def test_the_scaler_may_do_what_the_provider_does_and_no_more() -> None:
    settings = load(ScalerSettings, arguments("kernelflume-scaler")[1:], program="scaler")
    stateful_set = settings.kubernetes.stateful_set
    assert WORKLOADS[stateful_set]["kind"] == "StatefulSet"
    [role] = [item for item in OBJECTS if item["kind"] == "Role"]
    assert role["rules"] == [
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets/scale"],
            "resourceNames": [stateful_set],
            "verbs": ["get", "update"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "delete"]},
    ]
    account = WORKLOADS["kernelflume-scaler"]["spec"]["template"]["spec"]["serviceAccountName"]
    [binding] = [item for item in OBJECTS if item["kind"] == "RoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_pods_end_as_the_scaler_expects() -> None:
    settings = load(ScalerSettings, arguments("kernelflume-scaler")[1:], program="scaler")
    spec = WORKLOADS["kernelflume-anode"]["spec"]
    assert "replicas" not in spec
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] <= settings.terminate_grace_s
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert "--node-id=$(POD_NAME)" in container("kernelflume-anode")["args"]


def test_attention_and_weight_nodes_have_a_disruption_budget() -> None:
    budgets = {item["metadata"]["name"] for item in OBJECTS if item["kind"] == "PodDisruptionBudget"}
    assert {"kernelflume-anode", "kernelflume-wnode", "kernelflume-scaler"} <= budgets
