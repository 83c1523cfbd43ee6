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
from tests.scaler_rig import WAIT_S, eventually

from kernelflume.core.errors import UnavailableError
from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.scaler.providers.process import ProcessProvider
from kernelflume.scaler.providers.static import StaticProvider
from kernelflume.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kernelflume.scaler.providers.base import Provider

GRACE_S = 10.0
SLEEPER = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)"]


def script(text: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", textwrap.dedent(text)]


@pytest.fixture
async def make_processes(tmp_path: Path) -> AsyncIterator[Callable[[list[str]], ProcessProvider]]:
    made: list[ProcessProvider] = []

    def make(command: list[str]) -> ProcessProvider:
        made.append(ProcessProvider(lambda node_id, address: [*command, node_id, address], log_dir=tmp_path))
        return made[-1]

    yield make
    for provider in made:
        await provider.close(grace_s=GRACE_S)


def child_of(provider: ProcessProvider, node_id: str) -> psutil.Process:
    return psutil.Process(provider._children[node_id].process.pid)


async def ended(provider: Provider, node_id: str) -> str:
    async def has_ended() -> bool:
        return node_id in provider.ended()

    await eventually(has_ended)
    return provider.ended()[node_id]


class ProviderContract:
    """What the controller relies on; a subclass provides ``provider`` with at least three nodes to launch."""

    async def test_each_launch_gives_a_node_that_is_not_taken(self, provider: Provider) -> None:
        first = await provider.launch(())
        second = await provider.launch({first})
        assert first != second
        assert provider.ended() == {}

    async def test_a_terminated_node_has_not_ended_unasked(self, provider: Provider) -> None:
        node_id = await provider.launch(())
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert provider.ended() == {}

    async def test_terminating_what_is_not_there_is_no_error(self, provider: Provider) -> None:
        await provider.terminate("never-there", grace_s=GRACE_S)
        node_id = await provider.launch(())
        await provider.terminate(node_id, grace_s=GRACE_S)
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert provider.ended() == {}


class TestProcessProvider(ProviderContract):
    @pytest.fixture
    def provider(self, make_processes: Callable[[list[str]], ProcessProvider]) -> ProcessProvider:
        return make_processes(SLEEPER)

    async def test_ids_count_on_and_are_not_used_twice(self, provider: ProcessProvider) -> None:
        assert not provider.adopts
        assert await provider.launch({"a-7", "other", "a-x"}) == "a-8"
        await provider.terminate("a-8", grace_s=GRACE_S)
        assert await provider.launch(()) == "a-9"

    async def test_a_terminated_process_leaves_no_zombie(self, provider: ProcessProvider) -> None:
        node_id = await provider.launch(())
        process = child_of(provider, node_id)
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert not process.is_running()

    async def test_closing_ends_all_processes(self, provider: ProcessProvider) -> None:
        processes = [child_of(provider, await provider.launch(())) for _ in range(2)]
        await provider.close(grace_s=GRACE_S)
        assert not any(process.is_running() for process in processes)

    async def test_a_killed_process_is_told_and_reaped(self, provider: ProcessProvider) -> None:
        node_id = await provider.launch(())
        process = child_of(provider, node_id)
        process.kill()
        assert "was ended by SIGKILL" in await ended(provider, node_id)
        assert not process.is_running()
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert provider.ended() == {}


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


def lease(node_id: str) -> LeaseRecord:
    return LeaseRecord(kind=NodeKind.ATTENTION, node_id=node_id, incarnation="0", address="h:1")


async def test_an_early_end_is_told_with_the_last_line_of_the_log(
    make_processes: Callable[[list[str]], ProcessProvider], tmp_path: Path
) -> None:
    provider = make_processes(
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
    assert lines[1] == "starting ['a-1', '127.0.0.1:0']"
    assert json.loads(lines[2])["message"] == "out of memory"


async def test_a_process_that_does_not_listen_is_killed_after_the_grace(
    make_processes: Callable[[list[str]], ProcessProvider], tmp_path: Path
) -> None:
    provider = make_processes(
        script("""
            import signal, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("deaf", flush=True)
            time.sleep(600)
        """)
    )
    node_id = await provider.launch(())
    process = child_of(provider, node_id)

    async def deaf() -> bool:
        return "deaf" in (tmp_path / "a-1.log").read_text()

    await eventually(deaf)
    await provider.terminate(node_id, grace_s=0.1)
    assert not process.is_running()


async def test_a_command_that_does_not_exist_is_told(
    make_processes: Callable[[list[str]], ProcessProvider],
) -> None:
    provider = make_processes(["/no/such/program"])
    assert "cannot run /no/such/program" in await ended(provider, await provider.launch(()))


async def test_a_folder_that_cannot_be_made_is_an_unavailable_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    provider = ProcessProvider(lambda node_id, address: SLEEPER, log_dir=tmp_path / "file" / "logs")
    with pytest.raises(UnavailableError, match="attention node a-1 cannot be started"):
        await provider.launch(())


def test_processes_end_with_the_scaler_however_it_ends(tmp_path: Path) -> None:
    code = f"""
        import asyncio
        from pathlib import Path
        from kernelflume.scaler.providers.process import ProcessProvider

        async def main():
            provider = ProcessProvider(lambda n, a: {SLEEPER!r}, log_dir=Path({str(tmp_path)!r}))
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
