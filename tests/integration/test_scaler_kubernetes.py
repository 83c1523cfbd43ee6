"""The Kubernetes provider against an API server of our own: real HTTP, no real cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.fake_kubernetes import NAME, NAMESPACE, FakeKubernetes, kubeconfig, running_kubernetes
from tests.provider_contract import (
    DEAF,
    GRACE_S,
    SLEEPER,
    NodePlan,
    OwnerContract,
    ScalingContract,
    ended,
    process_of,
)
from tests.scaler_rig import eventually, scaler_rig

from kernelflume.core.errors import ConfigurationError, UnavailableError
from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Result
from kernelflume.scaler.providers.settings import KubernetesSettings
from kernelflume.store.memory import MemoryStore

pytest.importorskip("kubernetes")

from kernelflume.scaler.providers.kubernetes import KubernetesProvider
from kernelflume.scaler.providers.statefulset import StatefulSet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator
    from pathlib import Path

    from tests.provider_contract import Command

    from kernelflume.store.base import RoutingStore


class Table:
    """Stands for the routing table."""

    def __init__(self) -> None:
        self.node_ids: set[str] = set()

    async def in_use(self) -> Collection[str]:
        return self.node_ids


@pytest.fixture
def cluster() -> Iterator[FakeKubernetes]:
    with running_kubernetes(SLEEPER) as running:
        yield running


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def connect(cluster: FakeKubernetes, folder: Path, **settings: Any) -> StatefulSet:
    path = folder / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(cluster.url)), encoding="utf-8")
    fields = {"namespace": NAMESPACE, "stateful_set": NAME, "kubeconfig": str(path), **settings}
    return StatefulSet.connect(KubernetesSettings(**fields))


@pytest.fixture
async def make(
    cluster: FakeKubernetes, table: Table, store: MemoryStore, tmp_path: Path
) -> AsyncIterator[Callable[..., KubernetesProvider]]:
    made: list[KubernetesProvider] = []

    def make_one(command: Command = SLEEPER, **settings: Any) -> KubernetesProvider:
        cluster.command = command
        stateful_set = connect(cluster, tmp_path, **settings)
        made.append(KubernetesProvider(stateful_set, store, in_use=table.in_use, poll_interval_s=0.05))
        return made[-1]

    yield make_one
    for provider in made:
        await provider.close(grace_s=GRACE_S)


class TestKubernetesProvider(OwnerContract):
    @pytest.mark.usefixtures("cluster")
    async def test_a_node_that_cannot_start_is_told(self, make: Callable[..., KubernetesProvider]) -> None:
        await super().test_a_node_that_cannot_start_is_told(make)

    async def test_pods_are_added_and_removed_at_the_upper_end(
        self, provider: KubernetesProvider, cluster: FakeKubernetes
    ) -> None:
        assert provider.reuses_ids
        assert [await provider.launch(()) for _ in range(3)] == [f"{NAME}-{ordinal}" for ordinal in range(3)]
        assert cluster.replicas == 3
        await provider.terminate(f"{NAME}-2", grace_s=GRACE_S)
        assert cluster.replicas == 2
        assert await provider.launch(()) == f"{NAME}-2"
        assert cluster.replicas == 3

    async def test_nodes_that_outlive_the_scaler_stay(
        self, provider: KubernetesProvider, cluster: FakeKubernetes
    ) -> None:
        node_id = await provider.launch(())
        process = await process_of(node_id)
        await provider.close(grace_s=GRACE_S)
        assert cluster.replicas == 1
        assert process.is_running()

    async def test_a_pod_that_nobody_uses_is_taken_first(
        self, provider: KubernetesProvider, cluster: FakeKubernetes
    ) -> None:
        cluster.scale(3)
        assert await provider.launch({f"{NAME}-0", f"{NAME}-2"}) == f"{NAME}-1"
        assert await provider.launch({f"{NAME}-0", f"{NAME}-2"}) == f"{NAME}-3"

    async def test_a_lost_node_below_others_gets_a_new_pod(
        self, provider: KubernetesProvider, cluster: FakeKubernetes
    ) -> None:
        first, second = [await provider.launch(()) for _ in range(2)]
        before = await process_of(first)
        await provider.terminate(first, grace_s=GRACE_S)
        assert not before.is_running()
        assert cluster.replicas == 2
        assert await provider.launch({second}) == first
        assert (await process_of(first)).pid != before.pid
        assert provider.ended() == {}

    async def test_all_that_is_unused_above_goes_with_the_last_one(
        self, provider: KubernetesProvider, cluster: FakeKubernetes, table: Table
    ) -> None:
        cluster.scale(4)
        table.node_ids = {f"{NAME}-0", f"{NAME}-2"}
        await provider.terminate(f"{NAME}-2", grace_s=GRACE_S)
        assert cluster.replicas == 1

    async def test_a_name_is_free_once_its_lease_has_ended(
        self, provider: KubernetesProvider, store: MemoryStore, cluster: FakeKubernetes
    ) -> None:
        old = LeaseRecord(kind=NodeKind.ATTENTION, node_id=f"{NAME}-0", incarnation="0", address="h:1")
        await store.renew(old, ttl_s=0.5)
        assert await provider.launch(()) == f"{NAME}-0"
        assert not await store.living(NodeKind.ATTENTION)

    async def test_a_node_that_is_still_in_the_table_is_no_free_name(
        self, provider: KubernetesProvider, cluster: FakeKubernetes
    ) -> None:
        with pytest.raises(UnavailableError, match=f"{NAME}-0 is still in the routing table"):
            await provider.launch({f"{NAME}-0"})
        assert cluster.replicas == 0

    async def test_an_image_that_cannot_be_had_is_told(
        self, provider: KubernetesProvider, cluster: FakeKubernetes
    ) -> None:
        cluster.image_fault = ("ImagePullBackOff", "no such image")
        node_id = await provider.launch(())
        assert await ended(provider, node_id) == (
            "its container cannot start: ImagePullBackOff: no such image"
        )

    async def test_a_pod_that_somebody_deletes_is_told(
        self, provider: KubernetesProvider, cluster: FakeKubernetes
    ) -> None:
        node_id = await provider.launch(())
        await process_of(node_id)

        async def is_watched() -> bool:
            return bool(provider._launched[node_id].uid)

        await eventually(is_watched)
        with cluster.lock:
            cluster.delete(0, 0.0)
        assert await ended(provider, node_id) in {
            "its pod was deleted",
            "its pod was replaced",
            "its pod is gone",
        }


class TestFailures:
    async def test_another_s_change_at_the_same_time_is_not_lost(
        self, make: Callable[..., KubernetesProvider], cluster: FakeKubernetes
    ) -> None:
        provider = make()
        others = [2]
        cluster.before_put = lambda: cluster.scale(others.pop()) if others else None
        # Those that somebody else added meanwhile are free.
        assert [await provider.launch(()) for _ in range(2)] == [f"{NAME}-0", f"{NAME}-1"]
        assert cluster.replicas == 2

    async def test_a_change_that_is_always_overtaken_is_given_up(
        self, make: Callable[..., KubernetesProvider], cluster: FakeKubernetes
    ) -> None:
        cluster.failures = [("PUT", 409, "the object has been modified")]
        with pytest.raises(UnavailableError, match="is being scaled by somebody else"):
            await make().launch(())

    @pytest.mark.parametrize(
        ("failure", "message"),
        [
            (("PUT", 403, "may not"), r"did not update statefulsets/scale serving/kf-anode: 403 .*: may not"),
            (("GET .*scale", 404, "none"), r"did not get statefulsets/scale serving/kf-anode: 404 .*: none"),
            (
                ("GET .*scale", 500, "etcd is away"),
                r"did not get statefulsets/scale .*: 500 .*: etcd is away",
            ),
            (("GET .*pods", 503, "away"), r"did not get pods serving/kf-anode-0: 503 .*: away"),
        ],
    )
    async def test_a_refusal_says_what_was_refused(
        self,
        make: Callable[..., KubernetesProvider],
        cluster: FakeKubernetes,
        failure: tuple[str, int, str],
        message: str,
    ) -> None:
        cluster.failures = [failure]
        with pytest.raises(UnavailableError, match=message):
            await make().launch(())

    async def test_a_server_that_hangs_is_an_error_in_time(
        self, make: Callable[..., KubernetesProvider], cluster: FakeKubernetes
    ) -> None:
        provider = make(request_timeout_s=0.2)
        cluster.hangs.set()
        with pytest.raises(UnavailableError, match="did not get"):
            await provider.launch(())

    async def test_a_removal_that_failed_is_made_up_for(
        self, make: Callable[..., KubernetesProvider], cluster: FakeKubernetes
    ) -> None:
        provider = make()
        node_id = await provider.launch(())
        cluster.failures = [("PUT", 500, "etcd is away")]
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert cluster.replicas == 1
        cluster.failures = []

        async def removed() -> bool:
            return cluster.replicas == 0

        await eventually(removed)

    async def test_a_server_that_cannot_be_reached_is_told(self, tmp_path: Path, store: MemoryStore) -> None:
        with running_kubernetes(SLEEPER) as cluster:
            stateful_set = connect(cluster, tmp_path)
        with pytest.raises(UnavailableError, match="did not get statefulsets/scale"):
            await stateful_set.edit(lambda replicas: 1)
        stateful_set.close()

    def test_no_configuration_is_a_configuration_error(self, tmp_path: Path) -> None:
        settings = KubernetesSettings(kubeconfig=str(tmp_path / "none"))
        with pytest.raises(ConfigurationError, match=r"kubernetes\.kubeconfig: no cluster is configured"):
            StatefulSet.connect(settings)

    async def test_a_wrong_token_is_told(self, cluster: FakeKubernetes, tmp_path: Path) -> None:
        path = tmp_path / "other"
        path.write_text(json.dumps(kubeconfig(cluster.url, token="wrong")), encoding="utf-8")  # noqa: S106
        settings = KubernetesSettings(namespace=NAMESPACE, stateful_set=NAME, kubeconfig=str(path))
        stateful_set = StatefulSet.connect(settings)
        with pytest.raises(UnavailableError, match="401"):
            await stateful_set.edit(lambda replicas: 1)
        stateful_set.close()


@pytest.mark.redis
class TestScalingPods(ScalingContract):
    @pytest.fixture
    def make_scaling(
        self, plan: NodePlan, cluster: FakeKubernetes, tmp_path: Path
    ) -> Callable[[RoutingStore], KubernetesProvider]:
        cluster.command = plan.command

        def make_one(store: RoutingStore) -> KubernetesProvider:
            async def in_use() -> Collection[str]:
                return {node.node_id for node in (await store.read()).nodes}

            stateful_set = connect(cluster, tmp_path)
            return KubernetesProvider(stateful_set, store, in_use=in_use, poll_interval_s=0.05)

        return make_one

    async def test_the_highest_ordinal_is_drained_however_full_it_is(
        self,
        plan: NodePlan,
        make_scaling: Callable[[RoutingStore], KubernetesProvider],
        cluster: FakeKubernetes,
    ) -> None:
        async with scaler_rig(plan.url, make_provider=make_scaling, initial_target=3) as rig:
            await rig.settles_at(
                **{f"{NAME}_{ordinal}".replace("-", "_"): NodeState.ACTIVE for ordinal in range(3)}
            )
            assert (await rig.scale("down", 1)).result is Result.SUCCEEDED
            assert list(await rig.states()) == [f"{NAME}-0"]
            assert cluster.replicas == 1

    async def test_a_server_that_hangs_fails_the_operation_in_time_and_the_next_one_works(
        self,
        plan: NodePlan,
        make_scaling: Callable[[RoutingStore], KubernetesProvider],
        cluster: FakeKubernetes,
    ) -> None:
        async with scaler_rig(plan.url, make_provider=make_scaling, initial_target=1) as rig:
            await self.settled(rig)
            for number in range(2):
                cluster.hangs.set()
                operation = await rig.scale(f"hangs-{number}", 2, deadline_s=0.5)
                cluster.hangs.clear()
                await self.assert_undone(rig, plan, operation, "0 of 1 attention nodes have been launched")
            assert (await rig.scale("works", 2)).result is Result.SUCCEEDED


async def test_a_deaf_pod_is_killed_by_its_own_grace(
    make: Callable[..., KubernetesProvider], cluster: FakeKubernetes
) -> None:
    cluster.grace_s = 0.2
    provider = make(DEAF)
    node_id = await provider.launch(())
    process = await process_of(node_id)
    await provider.terminate(node_id, grace_s=GRACE_S)
    assert not process.is_running()
