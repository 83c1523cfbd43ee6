"""What a scaler makes of the one before it: its operations, its nodes, and what it learnt."""

from __future__ import annotations

import json
import signal
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tests.integration.test_scaler_profile import PROFILE
from tests.scaler_process import TAKEN_OVER, active_nodes, address_of, running_scaler
from tests.scaler_rig import (
    CLUSTER,
    WAIT_S,
    FakeProvider,
    FakeWeightNode,
    Rig,
    eventually,
    route_on,
    scaler_rig,
)

from kernelflume.core.errors import AlreadyExistsError, NotFoundError
from kernelflume.core.leases import NodeKind
from kernelflume.core.routing import NodeState
from kernelflume.rpc.channel import open_channel
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.scaler.operation import Phase, Result
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.redis

ACTIVE = NodeState.ACTIVE
GONE = "scaler s-1 died or lost the leadership"


class LastingProvider(FakeProvider):
    """Its nodes outlive the scaler, as pods and detached actors do."""

    raises_at_end = False

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        if self.raises_at_end:
            raise RuntimeError("the cloud is gone")
        await super().terminate(node_id, grace_s=grace_s)

    async def close(self, *, grace_s: float) -> None:
        """Let go of the nodes."""


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey_url, cluster=CLUSTER, timeout_s=WAIT_S)
    yield store
    await store.close()


@pytest.fixture
async def provider(store: RedisStore) -> AsyncIterator[LastingProvider]:
    provider = LastingProvider(store)
    yield provider
    for node in provider.nodes.values():
        await node.die()


@asynccontextmanager
async def scaler(url: str, provider: LastingProvider, **options: Any) -> AsyncIterator[Rig]:
    """Run one scaler; at the end of the block it is gone and leads no more."""
    async with scaler_rig(url, make_provider=lambda _: provider, **options) as rig:
        yield rig
        await rig.leadership.resign()


async def recorded(rig: Rig, operation_id: str, phase: Phase) -> bool:
    text = await rig.outside.read_setting(f"operation:{operation_id}")
    return text is not None and json.loads(text)["operation"]["history"][-1]["phase"] == phase


async def has_looked(rig: Rig) -> bool:
    return rig.controller._policy_state is not None


async def holds(rig: Rig, number: str) -> bool:
    return await rig.outside.read_setting("held_attention_nodes") == number


async def given_up(rig: Rig, operation_id: str, target: int, phase: Phase) -> None:
    """Begin an operation that gets no further than ``phase``."""
    await rig.begin(operation_id, target)
    await rig.reach(operation_id, phase)
    await eventually(partial(recorded, rig, operation_id, phase))


async def test_prewarmed_nodes_are_ended_and_the_operation_has_failed(
    valkey_url: str, provider: LastingProvider
) -> None:
    async with scaler(valkey_url, provider, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        (await rig.add_weight()).hangs = True
        await given_up(rig, "up", 2, Phase.PREWARMING)
        assert await rig.states() == {"a-1": ACTIVE, "a-2": NodeState.PREWARMING}
    async with scaler(valkey_url, provider) as rig:
        await rig.settles_at(a_1=ACTIVE)

        async def ended() -> bool:
            return provider.terminated == ["a-2"]

        await eventually(ended)
        found = await rig.controller.find("up")
        assert found.result is Result.FAILED
        assert found.reason == ("scaler s-1 died or lost the leadership in phase prewarming: a-2 rolled back")
        assert await rig.begin("up", 2) == found == rig.book.newest
        with pytest.raises(AlreadyExistsError):
            await rig.begin("up", 3)
        with pytest.raises(NotFoundError):
            await rig.controller.find("never")
        assert rig.controller.target == 1
        assert (await rig.scale("again", 2)).result is Result.SUCCEEDED
        await eventually(partial(recorded, rig, "again", Phase.DONE))
    # The one after it knows both.
    async with scaler(valkey_url, provider) as rig:
        await eventually(partial(has_looked, rig))
        assert rig.book.newest is not None
        assert (rig.book.newest.operation_id, rig.book.newest.result) == ("again", Result.SUCCEEDED)
        assert (await rig.controller.find("up")).reason == found.reason
        assert rig.book.newest.operation_id == "again"


@pytest.mark.parametrize("fails", [False, True], ids=["ended", "not-ended"])
async def test_nodes_that_never_came_into_the_table_are_ended_or_given_up(
    fails: bool, valkey_url: str, provider: LastingProvider
) -> None:
    async with scaler(valkey_url, provider, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        provider.serves = False
        await rig.begin("up", 2)

        async def named() -> bool:
            return '"a-2"' in (await rig.outside.read_setting("operation:up") or "")

        await eventually(named)
    provider.serves = True
    provider.raises_at_end = fails
    async with scaler(valkey_url, provider) as rig:
        await eventually(partial(has_looked, rig))
        assert provider.terminated == ([] if fails else ["a-2"])
        assert await rig.states() == {"a-1": ACTIVE}
        assert (await rig.controller.find("up")).reason.endswith("in phase launching: a-2 rolled back")


async def test_a_drain_is_undone_and_the_number_before_it_holds(
    valkey_url: str, provider: LastingProvider
) -> None:
    policy = ScalingPolicy(maximum_nodes=4, silence_s=3600, scale_down_cooldown_s=3600)
    async with scaler(valkey_url, provider, scaling=policy, initial_target=2) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)
        weight = await rig.add_weight()
        routes = {number: route_on(f"a-{number}") for number in (1, 2)}
        await rig.outside.put_routes(weight.name, routes)
        await given_up(rig, "down", 1, Phase.DRAINING)
        assert not rig.controller.is_automatic

        async def drains() -> bool:
            return '"node_ids": ["a-' in (await rig.outside.read_setting("operation:down") or "")

        await eventually(drains)
        await eventually(partial(holds, rig, "1"))
        [drained] = rig.book.get("down").node_ids
    async with scaler(valkey_url, provider, scaling=policy) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)
        found = await rig.controller.find("down")
        assert (found.result, found.reason) == (
            Result.FAILED,
            f"{GONE} in phase draining: the drain of {drained} is rolled back",
        )
        assert rig.controller.is_automatic
        assert await holds(rig, "")


async def test_a_second_scaler_answers_for_one_that_was_killed(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    weight = FakeWeightNode("w-1", store)
    request = scaler_pb2.SetTargetRequest(operation_id="up", attention_nodes=2)
    named = scaler_pb2.GetOperationRequest(operation_id="up")
    with running_scaler(valkey_url, tmp_path / "first", "--attention-nodes", "1", *TAKEN_OVER) as first:
        await active_nodes(store, 1)
        weight.hangs = True
        await weight.start()
        with running_scaler(valkey_url, tmp_path / "second", "--node-id", "s-2", *TAKEN_OVER):
            second = await address_of(store, "s-2")
            async with open_channel(await address_of(store)) as channel:
                stub = scaler_pb2_grpc.ScalerAdminStub(channel)
                await stub.SetTarget(request, timeout=WAIT_S)
                async for operation in stub.WatchOperation(named, timeout=WAIT_S):
                    if operation.phase == "prewarming":
                        break

            async def is_recorded() -> bool:
                return '"prewarming"' in (await store.read_setting("operation:up") or "")

            await eventually(is_recorded)
            first.send_signal(signal.SIGKILL)
            weight.hangs = False
            async with open_channel(second) as channel:
                stub = scaler_pb2_grpc.ScalerAdminStub(channel)
                found = scaler_pb2.Operation()

                async def answers() -> bool:
                    nonlocal found
                    try:
                        found = await stub.GetOperation(named, timeout=WAIT_S)
                    except grpc.aio.AioRpcError as refusal:
                        if refusal.code() is not grpc.StatusCode.UNAVAILABLE:
                            raise
                        return False  # a standby, or one that has just begun to lead
                    return True

                await eventually(answers)
                assert (found.phase, found.result) == ("done", "failed")
                assert found.reason == (
                    "scaler s-1 died or lost the leadership in phase prewarming: a-2 rolled back"
                )
                assert [span.phase for span in found.history] == [
                    *("launching", "prewarming", "rolling_back", "done")
                ]
                watched = [seen async for seen in stub.WatchOperation(named, timeout=WAIT_S)]
                assert watched == [found]
                assert await stub.SetTarget(request, timeout=WAIT_S) == found
                request.attention_nodes = 3
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.SetTarget(request, timeout=WAIT_S)
                assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
                await active_nodes(store, 1)

                async def alone() -> bool:
                    return [node.state for node in (await store.read()).nodes] == [ACTIVE]

                await eventually(alone)
    await weight.die()


async def learnt(rig: Rig, bytes_per_s: float) -> bool:
    text = await rig.outside.read_setting("performance_profile")
    kept = json.loads(text)["profile"]["attention_bytes_per_s"] if text else None
    return kept == pytest.approx(bytes_per_s)


async def reads(rig: Rig, bytes_per_s: float) -> bool:
    found = rig.metrics.registry.get_sample_value("kernelflume_attention_bytes_per_second")
    return found == pytest.approx(bytes_per_s)


async def test_what_was_learnt_of_the_profile_is_taken_up(valkey_url: str, provider: LastingProvider) -> None:
    options: dict[str, Any] = {
        "initial_target": 1,
        "scaling": ScalingPolicy(maximum_nodes=1),
        "profile": PROFILE,
    }
    async with scaler(valkey_url, provider, **options) as rig:
        await rig.settles_at(a_1=ACTIVE)
        node = provider.nodes["a-1"]
        node.load = replace(node.load, scan_bytes_per_s=1e9)
        await eventually(partial(learnt, rig, 4e9 / 1.05))
        node.load = replace(node.load, scan_bytes_per_s=0.0)

        async def told() -> bool:
            [record] = await rig.outside.living(NodeKind.ATTENTION)
            return record.load.scan_bytes_per_s == 0.0

        await eventually(told)  # the figure counts once for each scaler
    async with scaler(valkey_url, provider, **options) as rig:
        await eventually(partial(reads, rig, 4e9 / 1.05))
    # Another file wins, and so does the file over what is damaged or of another model.
    async with scaler(valkey_url, provider, **options, profile_digest="another") as rig:
        await eventually(partial(reads, rig, 4e9))
    other = replace(PROFILE, num_layers=11, attention_bytes_per_s=1.0).to_dict()
    for kept in ("no json", "[]", json.dumps({"file": "", "profile": other})):
        async with scaler(valkey_url, provider, **options) as rig:
            await rig.outside.write_setting("performance_profile", kept)
            rig.controller._policy_state = None
            rig.controller._profile._refinement = replace(
                rig.controller._profile._refinement, profile=PROFILE
            )
            await eventually(partial(reads, rig, 4e9))
