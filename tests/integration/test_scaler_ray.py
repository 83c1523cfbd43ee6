"""The Ray provider on a real Ray cluster of three nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.provider_contract import (
    GRACE_S,
    SLEEPER,
    NodePlan,
    OwnerContract,
    ScalingContract,
    ended,
    gone,
    process_of,
    processes_of,
)
from tests.ray_cluster import ray_cluster
from tests.scaler_rig import WAIT_S, eventually, scaler_rig
from tests.weight_host import CLUSTER, weight_host

from kernelflume.core.errors import UnavailableError
from kernelflume.core.routing import NodeState
from kernelflume.runtime.service import EXIT_REFUSED, free_port
from kernelflume.scaler.operation import Result
from kernelflume.scaler.providers.settings import RayActorSettings, RaySettings

pytest.importorskip("ray")

from kernelflume.scaler.providers.ray.cluster import RayCluster as RayConnection
from kernelflume.scaler.providers.ray.provider import RayProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator
    from pathlib import Path

    from tests.provider_contract import Command
    from tests.ray_cluster import RayCluster

    from kernelflume.scaler.providers.ray.host import Place
    from kernelflume.store.base import RoutingStore

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NAMESPACE = "tests"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(3, num_cpus=4) as running:
        yield running


def provider_of(
    address: str,
    log_dir: Path,
    command: Callable[[str, Place], list[str]],
    in_use: Collection[str] = (),
    **settings: Any,
) -> RayProvider:
    async def node_ids() -> Collection[str]:
        return in_use

    fields = {"address": address, "namespace": NAMESPACE, **settings}
    return RayProvider(
        command,
        RaySettings(**fields),
        cluster="test",
        memory_bytes=1 << 20,
        log_dir=log_dir,
        in_use=node_ids,
        environment={},
    )


async def place_of(provider: RayProvider, node_id: str) -> Place:
    return await provider._hosted[node_id].place(timeout_s=WAIT_S)


@pytest.fixture
async def make(cluster: RayCluster, tmp_path: Path) -> AsyncIterator[Callable[..., RayProvider]]:
    made: list[RayProvider] = []

    def make_one(command: Command = SLEEPER, in_use: Collection[str] = (), **settings: Any) -> RayProvider:
        made.append(
            provider_of(
                cluster.address, tmp_path, lambda node_id, place: command(node_id), in_use, **settings
            )
        )
        return made[-1]

    yield make_one
    for provider in made:
        await provider.close(grace_s=GRACE_S)


class TestRayProvider(OwnerContract):
    async def test_nodes_are_spread_over_the_cluster(self, provider: RayProvider) -> None:
        assert not provider.reuses_ids
        node_ids = [await provider.launch(()) for _ in range(3)]
        places = [await place_of(provider, node_id) for node_id in node_ids]
        assert len({place.ray_node for place in places}) == 3
        for node_id in node_ids:
            await process_of(node_id)

    async def test_a_dead_actor_is_told_and_leaves_no_process(self, provider: RayProvider) -> None:
        node_id = await provider.launch(())
        process = await process_of(node_id)
        host = process.parent()
        assert host is not None
        host.kill()
        assert "its Ray actor is gone" in await ended(provider, node_id)
        await gone(process)

    async def test_a_removed_ray_node_is_told_and_leaves_no_process(
        self, make: Callable[..., RayProvider], cluster: RayCluster
    ) -> None:
        doomed = cluster.add(num_cpus=1, resources={"doomed": 1})
        provider = make(resources={"doomed": 1})
        node_id = await provider.launch(())
        process = await process_of(node_id)
        assert (await place_of(provider, node_id)).ray_node == doomed.node_id
        await asyncio.to_thread(cluster.remove, doomed)
        assert "its Ray actor" in await ended(provider, node_id)
        await gone(process)
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert provider.ended() == {}

    async def test_what_ray_cannot_place_is_told_with_what_was_asked(
        self, make: Callable[..., RayProvider]
    ) -> None:
        provider = make(resources={"unobtainium": 2}, placement_timeout_s=0.5)
        node_id = await provider.launch(())
        reason = await ended(provider, node_id)
        assert "Ray found no place for it within 0.5 s" in reason
        assert "unobtainium 2" in reason
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert provider.ended() == {}

    async def test_resources_that_were_changed_count_from_the_next_node_on(
        self, make: Callable[..., RayProvider]
    ) -> None:
        provider = make()
        first = await provider.launch(())
        await process_of(first)
        changes = {"resources": {"unobtainium": 2}, "placement_timeout_s": 0.5}
        asked = provider._settings.model_copy(update=changes)
        provider.set_settings(asked, memory_bytes=0)
        second = await provider.launch((first,))
        assert "unobtainium 2" in await ended(provider, second)
        assert first not in provider.ended()

    async def test_a_node_that_waits_for_a_place_can_be_terminated(
        self, make: Callable[..., RayProvider]
    ) -> None:
        provider = make(resources={"unobtainium": 2})
        await provider.terminate(await provider.launch(()), grace_s=GRACE_S)
        assert provider._hosted == {}

    async def test_closing_ends_every_node(self, make: Callable[..., RayProvider]) -> None:
        provider = make()
        node_ids = [await provider.launch(()) for _ in range(2)]
        processes = [await process_of(node_id) for node_id in node_ids]
        await provider.close(grace_s=GRACE_S)
        for process in processes:
            await gone(process)


async def test_detached_nodes_outlive_the_scaler_and_the_next_one_takes_over_those_in_use(
    make: Callable[..., RayProvider],
) -> None:
    first = make(lifetime="detached")
    node_ids = [await first.launch(()) for _ in range(2)]
    kept, orphan = [await process_of(node_id) for node_id in node_ids]
    await first.close(grace_s=GRACE_S)
    assert kept.is_running()

    second = make(in_use=node_ids[:1], lifetime="detached")

    async def taken_over() -> bool:
        assert second.ended() == {}
        return list(second._hosted) == node_ids[:1]

    await eventually(taken_over)
    await gone(orphan)
    assert kept.is_running()
    # Its number is not given again, and its end is told as that of an own one.
    assert await second.launch(()) == "a-2"
    kept.kill()
    assert "was ended by SIGKILL" in await ended(second, "a-1")
    for node_id in ("a-1", "a-2"):
        await second.terminate(node_id, grace_s=GRACE_S)
    assert processes_of("a-2") == []


async def test_a_cluster_that_is_not_there_is_an_error_in_time(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    provider = provider_of(address, tmp_path, lambda node_id, place: SLEEPER(node_id), connect_timeout_s=2.0)
    with pytest.raises(UnavailableError, match=f"the Ray cluster at {address}"):
        await provider.launch(())
    provider._cluster._thread.close()  # leaving would wait for that call once more


class TestWeightHost:
    """A weight node as an actor: to whoever started its host, it is that process."""

    @pytest.fixture(autouse=True)
    async def nothing_is_left(self, cluster: RayCluster) -> AsyncIterator[None]:
        yield
        ray_cluster = RayConnection(RayActorSettings(address=cluster.address, namespace=NAMESPACE))
        await ray_cluster.join()

        async def none_is_there() -> bool:
            return await ray_cluster.actors(CLUSTER) == []

        await eventually(none_is_there)
        await ray_cluster.leave()

    def test_it_runs_where_its_resources_are_and_ends_in_order(
        self, cluster: RayCluster, tmp_path: Path
    ) -> None:
        flags = ("--ray.resources", '{"weights": 1}', "--ray.num-cpus", "2")
        with weight_host(tmp_path, cluster.address, *flags, KERNELFLUME_WNODE_SEED="7") as host:
            told = host.wait_line("up")
            assert told["at"] == f"{cluster.weights_host}:0"
            # Its settings have come with it, and its log is here as well as there.
            assert (told["threads"], told["seed"]) == ("2", "7")
            host.process.terminate()
            assert host.process.wait(WAIT_S) == 0
            assert "ended in order" in host.lines()
        assert "ended in order" in (tmp_path / "logs" / "w-1.log").read_text()

    async def test_it_is_put_where_no_attention_node_is(
        self, make: Callable[..., RayProvider], cluster: RayCluster, tmp_path: Path
    ) -> None:
        provider = make()
        places = [await place_of(provider, await provider.launch(())) for _ in range(2)]
        with weight_host(tmp_path, cluster.address) as host:
            _, address = await asyncio.to_thread(host.wait_weight_node)
            [free] = cluster.hosts - {place.host for place in places}
            assert address == f"{free}:0"

    def test_what_is_asked_for_and_not_there_is_told_with_the_setting(
        self, cluster: RayCluster, tmp_path: Path
    ) -> None:
        flags = ("--ray.num-cpus", "64", "--ray.placement-timeout-s", "0.5")
        with weight_host(tmp_path, cluster.address, *flags) as host:
            code, line = host.wait_end()
        assert code == 1
        assert "Ray found no place for it within 0.5 s: it asks for CPU 64 (--weight-node-cpus" in line
        assert "no machine of the cluster has as much" in line

    def test_a_model_that_is_not_on_its_ray_node_is_refused(
        self, cluster: RayCluster, tmp_path: Path
    ) -> None:
        absent = str(tmp_path / "absent")
        with weight_host(tmp_path, cluster.address, "--model", absent) as host:
            code, line = host.wait_end()
        assert code == EXIT_REFUSED
        assert f"refused to start: model: {absent} cannot be read on Ray node" in line

    def test_a_weight_node_that_refuses_is_a_refusal(self, cluster: RayCluster, tmp_path: Path) -> None:
        with weight_host(tmp_path, cluster.address, fake=("--fail", str(EXIT_REFUSED))) as host:
            code, line = host.wait_end()
        assert code == EXIT_REFUSED
        assert "refused to start: ended with code 2: the model is no good" in line

    @pytest.mark.parametrize(
        ("victim", "reason"), [("service", "was ended by SIGKILL"), ("actor", "its Ray actor is gone")]
    )
    async def test_its_death_is_told(
        self, cluster: RayCluster, tmp_path: Path, victim: str, reason: str
    ) -> None:
        with weight_host(tmp_path, cluster.address) as host:
            process, _ = await asyncio.to_thread(host.wait_weight_node)
            actor = process.parent()
            assert actor is not None
            (process if victim == "service" else actor).kill()
            code, line = await asyncio.to_thread(host.wait_end)
            await gone(process)
        assert code == 1
        assert f"stopped: {reason}" in line

    async def test_it_ends_with_its_host(self, cluster: RayCluster, tmp_path: Path) -> None:
        with weight_host(tmp_path, cluster.address) as host:
            process, _ = await asyncio.to_thread(host.wait_weight_node)
            host.process.kill()
            await gone(process)


@pytest.mark.redis
class TestScalingOnRay(ScalingContract):
    @pytest.fixture
    def make_scaling(
        self, plan: NodePlan, cluster: RayCluster, tmp_path: Path
    ) -> Callable[[RoutingStore], RayProvider]:
        def command(node_id: str, place: Place) -> list[str]:
            return plan.command(node_id, f"{place.host}:0")

        return lambda store: provider_of(cluster.address, tmp_path, command)

    async def test_the_removal_of_a_ray_node_whose_node_was_drained_changes_nothing(
        self, plan: NodePlan, make_scaling: Callable[[RoutingStore], RayProvider], cluster: RayCluster
    ) -> None:
        async with scaler_rig(plan.url, make_provider=make_scaling, initial_target=1) as rig:
            await self.settled(rig)
            extra = cluster.add(num_cpus=4)
            assert (await rig.scale("up", 4)).result is Result.SUCCEEDED
            places = {node_id: await place_of(rig.provider, node_id) for node_id in await rig.states()}
            on_extra = [node_id for node_id, place in places.items() if place.ray_node == extra.node_id]
            assert on_extra
            operation = await rig.controller.drain(
                "drain", tuple(on_extra), deadline_s=0.0, deadline_covers_drain=False
            )
            assert (await rig.end(operation.operation_id)).result is Result.SUCCEEDED
            staying = await rig.states()
            await asyncio.to_thread(cluster.remove, extra)
            for _ in range(20):
                await rig.controller.look()
                await asyncio.sleep(0.1)
            assert await rig.states() == staying
            assert set(staying.values()) == {NodeState.ACTIVE}
            assert (await rig.scale("again", len(staying) + 1)).result is Result.SUCCEEDED
