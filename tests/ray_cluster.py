"""A real Ray cluster of several nodes on this machine, none of which is left at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 60.0
OBJECT_STORE_BYTES = 80 * 1024**2
"""The least that Ray takes; nothing is kept there."""


class RayCluster:
    """A head that offers nothing, and nodes, each with a raylet of its own as a machine would have."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add(self, **options: Any) -> Any:
        """Start one more node."""
        return self._cluster.add_node(object_store_memory=OBJECT_STORE_BYTES, **options)

    def remove(self, node: Any) -> None:
        """Kill a node's raylet and what belongs to it, as if its machine were gone."""
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        self._cluster.worker_nodes.discard(node)

    def node_of(self, process: psutil.Process) -> Any:
        """Return the node that runs a process of an actor, or of an actor's child."""
        ancestors = {parent.pid for parent in process.parents()}
        return next(
            node
            for node in self._cluster.worker_nodes
            if node.all_processes["raylet"][0].process.pid in ancestors
        )


@contextlib.contextmanager
def ray_cluster(num_nodes: int, *, num_cpus: int) -> Iterator[RayCluster]:
    """Run a cluster for the length of the block; whatever happens in it, every process of Ray's is ended.

    Skips the test where ray is not installed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # A raylet starts workers with its own environment: they must find what the tests import.
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        before = set(psutil.Process().children(recursive=True))
        cluster = Cluster(shutdown_at_exit=True)
        try:
            cluster.add_node(
                num_cpus=0, num_gpus=0, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES
            )
            running = RayCluster(cluster)
            for _ in range(num_nodes):
                running.add(num_cpus=num_cpus, num_gpus=0)
            yield running
        finally:
            started = set(psutil.Process().children(recursive=True)) - before
            try:
                with contextlib.suppress(Exception):  # what it leaves is killed below
                    cluster.shutdown()
            finally:
                for process in started:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                _, alive = psutil.wait_procs(started, timeout=WAIT_S)
                assert not alive, alive
