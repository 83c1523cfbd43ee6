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


def nodes_of(cluster_name: str) -> list[psutil.Process]:
    """Return the attention nodes' processes: the services, not the workers below them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[1:3] == ["-m", "kernelflume.anode"] and cluster_name in words:
            found.append(process)
    return found


async def check(stack: Stack) -> None:
    async def one(name: str, golden: dict[str, Any]) -> None:
        assert await stack.generate(golden["prompt"], NUM_TOKENS) == golden["output"], name

    await asyncio.gather(*(one(name, golden) for name, golden in GOLDEN.items()))


async def test_equal_tokens_on_three_ray_nodes_and_after_the_loss_of_a_drained_one(
    cluster: RayCluster, tmp_path: Path
) -> None:
    flags = ["--provider", "ray", "--ray-address", cluster.address, "--attention-nodes", "3"]
    name = tmp_path.name
    with serve(tmp_path, *flags, "--cluster", name, KERNELFLUME_WNODE_MAX_RANGE_TOKENS="16") as stack:
        assert {node["address"].rpartition(":")[0] for node in stack.nodes()} != {"127.0.0.1"}
        processes = nodes_of(name)
        ray_nodes = {process: cluster.node_of(process) for process in processes}
        assert len({id(ray_node) for ray_node in ray_nodes.values()}) == 3
        await check(stack)
        # Sequences were long enough to be spread over all of them.
        assert all(statistics.queries_served for statistics in await stack.statistics())

        before = {node["node_id"] for node in stack.nodes()}
        await asyncio.to_thread(stack.scale, 2)
        [drained] = before - {node["node_id"] for node in stack.nodes()}
        [gone] = [process for process in processes if not process.is_running()]
        cluster.remove(ray_nodes[gone])
        await check(stack)
        assert {node["node_id"] for node in stack.nodes()} == before - {drained}
    _, alive = psutil.wait_procs(processes, timeout=WAIT_S)
    assert not alive
