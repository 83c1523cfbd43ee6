"""A real Ray cluster of several nodes on this machine, of which nothing is left at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 120.0
LEAVE_S = 10.0
"""How long Ray's processes may take to end by themselves."""
OBJECT_STORE_BYTES = 80 * 1024**2
"""The least that Ray takes; nothing is kept there."""
FIRST_HOST = 10


class RayCluster:
    """A head that offers nothing, and nodes, each with its own raylet and address, as machines have."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._num_nodes = 0
        self.address: str = cluster.address
        self.weights_host = ""
        """Address of the node that has the custom resource ``weights``."""

    def add(self, **options: Any) -> Any:
        """Start one more node; its address is another one of the loopback network."""
        self._num_nodes += 1
        address = f"127.0.0.{FIRST_HOST + self._num_nodes}"
        return add_node(self._cluster, node_ip_address=address, **options)

    def remove(self, node: Any) -> None:
        """Kill a node's raylet and what belongs to it, as if its machine were gone."""
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        self._cluster.worker_nodes.discard(node)

    @property
    def hosts(self) -> set[str]:
        """Addresses of the nodes."""
        return {node.node_ip_address for node in self._cluster.worker_nodes}

    def node_at(self, host: str) -> Any:
        """Return the node of an address."""
        return next(node for node in self._cluster.worker_nodes if node.node_ip_address == host)


@contextlib.contextmanager
def ray_cluster(num_nodes: int, *, num_cpus: int) -> Iterator[RayCluster]:
    """Run a cluster for the length of the block; whatever happens in it, every process of Ray's is ended.

    The last node has one of the custom resource ``weights``. Skips the test where ray is not installed.
    """
    pytest.importorskip("ray")
    # Not pytest's folder: the paths of Ray's sockets must be short. What was started is known by it, too.
    folder = tempfile.mkdtemp(prefix="kf-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ask nodes more often: one that refuses is found dead sooner, one that is busy has as long as ever.
        patch.setenv("RAY_health_check_period_ms", "500")
        # A raylet starts workers with its own environment: they must find what the tests import.
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        from ray.cluster_utils import Cluster

        # With it the kernel ends Ray's processes with this one, however that ends.
        cluster = Cluster(shutdown_at_exit=True)
        try:
            add_node(cluster, num_cpus=0, include_dashboard=False, include_log_monitor=False)
            running = RayCluster(cluster)
            for _ in range(num_nodes - 1):
                running.add(num_cpus=num_cpus)
            running.weights_host = running.add(num_cpus=num_cpus, resources={"weights": 1}).node_ip_address
            yield running
        finally:
            children = [
                info.process
                for node in cluster.list_all_nodes()
                for infos in node.all_processes.values()
                for info in infos
            ]
            try:
                with contextlib.suppress(Exception):  # what it leaves is killed below
                    cluster.shutdown()
            finally:
                end_all(folder)
                for child in children:
                    child.wait(WAIT_S)  # it is gone: this is for the one who holds it to know
                shutil.rmtree(folder, ignore_errors=True)


def add_node(cluster: Any, **options: Any) -> Any:
    """Start a node and wait until it has joined, for longer than Ray would."""
    with sigterm_kept():
        node = cluster.add_node(wait=False, num_gpus=0, object_store_memory=OBJECT_STORE_BYTES, **options)
        cluster._wait_for_node(node, timeout=WAIT_S)
    return node


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Undo that Ray takes SIGTERM for itself: it would end the nodes, and leave the tests running."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_all(folder: str) -> None:
    """Wait for the processes that were started with this folder as Ray's own, and kill those that stay."""
    _, staying = psutil.wait_procs(started_with(folder), timeout=LEAVE_S)
    for process in {*staying, *started_with(folder)}:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(staying, timeout=WAIT_S)
    assert not alive, alive
    assert not started_with(folder)


def started_with(folder: str) -> list[psutil.Process]:
    """Return the living processes whose environment names the folder, wherever in the tree they are."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.environ().get("RAY_TMPDIR") == folder
                and process.status() != psutil.STATUS_ZOMBIE
                and process.pid != os.getpid()
            ):
                found.append(process)
    return found
