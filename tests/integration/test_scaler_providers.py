from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.provider_contract import (
    GRACE_S,
    SLEEPER,
    NodePlan,
    OwnerContract,
    ProviderContract,
    ScalingContract,
    ended,
    process_of,
    script,
)
from tests.scaler_rig import WAIT_S, scaler_rig

from kernelflume.core.errors import UnavailableError
from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Result
from kernelflume.scaler.providers.process import ProcessProvider
from kernelflume.scaler.providers.starting import SpawnStarter
from kernelflume.scaler.providers.static import StaticProvider
from kernelflume.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.provider_contract import Command

    from kernelflume.store.base import RoutingStore


def processes(command: Command, log_dir: Path) -> ProcessProvider:
    return ProcessProvider(SpawnStarter(command), log_dir=log_dir)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[Command], ProcessProvider]]:
    made: list[ProcessProvider] = []

    def make_one(command: Command) -> ProcessProvider:
        made.append(processes(command, tmp_path))
        return made[-1]

    yield make_one
    for provider in made:
        await provider.close(grace_s=GRACE_S)


class TestProcessProvider(OwnerContract):
    async def test_ids_count_on_and_are_not_used_twice(self, provider: ProcessProvider) -> None:
        assert not provider.reuses_ids
        assert await provider.launch({"a-7", "other", "a-x"}) == "a-8"
        await provider.terminate("a-8", grace_s=GRACE_S)
        assert await provider.launch(()) == "a-9"

    async def test_an_ended_process_leaves_no_zombie(self, provider: ProcessProvider) -> None:
        node_id = await provider.launch(())
        process = await process_of(node_id)
        process.kill()
        assert "was ended by SIGKILL" in await ended(provider, node_id)
        assert not process.is_running()


@pytest.mark.redis
class TestScalingProcesses(ScalingContract):
    @pytest.fixture
    def make_scaling(self, plan: NodePlan, tmp_path: Path) -> Callable[[RoutingStore], ProcessProvider]:
        return lambda store: processes(plan.command, tmp_path)


class TestStaticProvider(ProviderContract):
    @pytest.fixture
    async def store(self) -> MemoryStore:
        store = MemoryStore()
        for node_id in ("left", "middle", "right"):
            await store.renew(lease(node_id), ttl_s=600)
        return store

    @pytest.fixture
    def provider(self, store: MemoryStore) -> StaticProvider:
        return StaticProvider(store)

    async def test_a_launch_waits_for_a_node_to_join(
        self, provider: StaticProvider, store: MemoryStore
    ) -> None:
        assert provider.adopts
        waiting = asyncio.create_task(provider.launch({"left", "middle", "right"}))
        await asyncio.sleep(0)
        assert not waiting.done()
        await store.renew(lease("late"), ttl_s=600)
        async with asyncio.timeout(WAIT_S):
            assert await waiting == "late"

    async def test_an_end_is_for_the_lease_to_tell(
        self, provider: StaticProvider, store: MemoryStore
    ) -> None:
        node_id = await provider.launch(())
        await store.release(NodeKind.ATTENTION, node_id, "0")
        assert provider.ended() == {}


@pytest.mark.redis
async def test_waiting_for_a_node_that_nobody_starts_ends_at_the_deadline_each_time(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, make_provider=StaticProvider) as rig:
        node = await rig.add_attention("first")
        await rig.settles_at(first=NodeState.ACTIVE)
        for number in range(2):
            operation = await rig.scale(f"waits-{number}", 2, deadline_s=0.3)
            assert operation.result is Result.FAILED
            assert "0 of 1 attention nodes have been launched" in operation.reason
            assert await rig.states() == {node.node_id: NodeState.ACTIVE}
        await rig.add_attention("second")
        await rig.settles_at(first=NodeState.ACTIVE, second=NodeState.ACTIVE)


def lease(node_id: str) -> LeaseRecord:
    return LeaseRecord(kind=NodeKind.ATTENTION, node_id=node_id, incarnation="0", address="h:1")


async def test_an_early_end_is_told_with_the_last_line_of_the_log(
    make: Callable[[Command], ProcessProvider], tmp_path: Path
) -> None:
    provider = make(
        script("""
            import json, sys
            print("starting", sys.argv[1:], flush=True)
            print(json.dumps({"level": "error", "message": "out of memory"}), file=sys.stderr)
            sys.exit(3)
        """)
    )
    (tmp_path / "a-1.log").write_text("an earlier start\n")
    node_id = await provider.launch(())
    assert await ended(provider, node_id) == f"ended with code 3: out of memory (log: {tmp_path / 'a-1.log'})"
    lines = (tmp_path / "a-1.log").read_text().splitlines()
    assert lines[0] == "an earlier start"
    assert lines[1].startswith("starting [")
    assert lines[1].endswith("'node=a-1']")
    assert json.loads(lines[2])["message"] == "out of memory"


async def test_a_command_that_does_not_exist_is_told(make: Callable[[Command], ProcessProvider]) -> None:
    provider = make(lambda node_id: ["/no/such/program"])
    assert "cannot run /no/such/program" in await ended(provider, await provider.launch(()))


async def test_a_folder_that_cannot_be_made_is_an_unavailable_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    provider = processes(SLEEPER, tmp_path / "file" / "logs")
    with pytest.raises(UnavailableError, match="attention node a-1 cannot be started"):
        await provider.launch(())


def test_processes_end_with_the_scaler_however_it_ends(tmp_path: Path) -> None:
    code = f"""
        import asyncio
        from pathlib import Path
        from kernelflume.scaler.providers.process import ProcessProvider
        from kernelflume.scaler.providers.starting import SpawnStarter

        async def main():
            starter = SpawnStarter(lambda _: {SLEEPER("a-1")!r})
            provider = ProcessProvider(starter, log_dir=Path({str(tmp_path)!r}))
            await provider.launch(())
            print(provider._children["a-1"].process.pid, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    psutil.wait_procs([child], timeout=WAIT_S)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE  # of whoever adopted it
