"""`kernelflume serve --provider ray` on a Ray cluster of three nodes: the same tokens, wherever nodes run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.golden.prompts import NUM_TOKENS
from tests.ray_cluster import ray_cluster
from tests.stack import WAIT_S, Stack, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ray_cluster import RayCluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(900)]

NUM_PROMPTS = 4
GOLDEN: dict[str, dict[str, Any]] = dict(
    sorted(
        json.loads(
            (Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8")
        ).items(),
        key=lambda item: len(item[1]["prompt"]),
    )[:NUM_PROMPTS]
)
"""The shortest prompts: how attention is computed does not depend on where."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(3, num_cpus=2) as running:
        yield running


def services_of(cluster_name: str, service: str) -> list[psutil.Process]:
    """Return the services' processes of one kind: not the workers below them, nor a host of theirs."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[1:3] == ["-m", f"kernelflume.{service}"] and cluster_name in words:
            found.append(process)
    return found


def host_of(process: psutil.Process) -> str:
    """Return the host that a service's command line says it serves at."""
    words = process.cmdline()
    return words[words.index("--address") + 1].rpartition(":")[0]


async def check(stack: Stack) -> None:
    async def one(name: str, golden: dict[str, Any]) -> None:
        assert await stack.generate(golden["prompt"], NUM_TOKENS) == golden["output"], name

    await asyncio.gather(*(one(name, golden) for name, golden in GOLDEN.items()))


async def test_equal_tokens_with_every_node_an_actor_after_the_loss_of_a_drained_one_and_the_end_with_w(
    cluster: RayCluster, tmp_path: Path
) -> None:
    name = tmp_path.name
    flags = [
        "--provider",
        "ray",
        "--ray-address",
        cluster.address,
        "--attention-nodes",
        "3",
        "--cluster",
        name,
    ]
    flags += ["--weight-node-provider", "ray", "--weight-node-resources", '{"weights": 1}']
    with serve(tmp_path, *flags, KERNELFLUME_WNODE_MAX_RANGE_TOKENS="16") as stack:
        [weight_node] = services_of(name, "wnode")
        assert host_of(weight_node) == cluster.weights_host
        hosts = {node["node_id"]: node["address"].rpartition(":")[0] for node in stack.nodes()}
        assert set(hosts.values()) == cluster.hosts
        processes = services_of(name, "anode")
        assert {host_of(process) for process in processes} == cluster.hosts
        await check(stack)
        # Sequences were long enough to be spread over all of them.
        assert all(statistics.queries_served for statistics in await stack.statistics())

        drained = next(node_id for node_id, host in hosts.items() if host != cluster.weights_host)
        await asyncio.to_thread(stack.command, "drain", drained, "--wait")
        assert [process.is_running() for process in processes].count(False) == 1
        await asyncio.to_thread(cluster.remove, cluster.node_at(hosts[drained]))
        await check(stack)
        assert {node["node_id"] for node in stack.nodes()} == hosts.keys() - {drained}

        # What `serve` tells of a weight node's process it tells of its actor, and nothing stays.
        actor = weight_node.parent()
        assert actor is not None
        actor.kill()
        _, told = await asyncio.to_thread(stack.process.communicate, timeout=WAIT_S)
        assert stack.process.returncode == 1
        assert "the weight node on Ray ended with exit code 1: stopped: its Ray actor is gone" in told
    _, alive = psutil.wait_procs([weight_node, *processes], timeout=WAIT_S)
    assert not alive
