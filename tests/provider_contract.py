"""What the scaler relies on in every provider, as tests that each provider's own tests inherit."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Result
from tests.scaler_rig import CLUSTER, Rig, eventually, scaler_rig

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.operation import Operation
    from kernelflume.scaler.providers.base import Provider
    from kernelflume.store.base import RoutingStore

    Command = Callable[[str], list[str]]
    """Node id -> how that node is started."""

GRACE_S = 30.0
_RUN = f"run={os.getpid()}"
"""Tells the processes of these tests from those of others on this machine."""
FAKE_ANODE = Path(__file__).with_name("fake_anode.py")


def script(text: str) -> Command:
    return lambda node_id: [sys.executable, "-S", "-E", "-c", textwrap.dedent(text), _RUN, f"node={node_id}"]


SLEEPER = script("import time; time.sleep(600)")
DEAF = script("""
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
""")
BROKEN = script("""
    import json, sys
    print(json.dumps({"level": "error", "message": "out of memory"}), file=sys.stderr)
    sys.exit(3)
""")


def processes_of(node_id: str) -> list[psutil.Process]:
    """Return the processes of a node that ``script`` made; not what is about to become one."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        if words[-2:] == [_RUN, f"node={node_id}"] and words[1:4] == ["-S", "-E", "-c"]:
            found.append(process)
    return found


def is_deaf(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) & 1 << (signal.SIGTERM - 1))


async def process_of(node_id: str) -> psutil.Process:
    async def runs() -> bool:
        return bool(processes_of(node_id))

    await eventually(runs)
    return processes_of(node_id)[0]


async def gone(process: psutil.Process) -> None:
    async def has_gone() -> bool:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

    await eventually(has_gone)


async def ended(provider: Provider, node_id: str) -> str:
    async def has_ended() -> bool:
        return node_id in provider.ended()

    await eventually(has_ended)
    return provider.ended()[node_id]


class ProviderContract:
    """For all providers. A subclass provides ``provider`` with at least three nodes to launch."""

    async def test_each_launch_gives_a_node_that_is_not_taken(self, provider: Provider) -> None:
        first = await provider.launch(())
        second = await provider.launch({first})
        assert first != second
        assert provider.ended() == {}

    async def test_a_terminated_node_is_gone(self, provider: Provider) -> None:
        node_id = await provider.launch(())
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert provider.ended() == {}

    async def test_terminating_what_is_not_there_is_no_error(self, provider: Provider) -> None:
        await provider.terminate("never-there", grace_s=GRACE_S)
        node_id = await provider.launch(())
        await provider.terminate(node_id, grace_s=GRACE_S)
        await provider.terminate(node_id, grace_s=GRACE_S)

    async def test_nodes_that_can_be_ended_in_any_order_have_none(self, provider: Provider) -> None:
        order = provider.victim_order(["a-1", "a-2"])
        assert order is None or sorted(order) == ["a-1", "a-2"]


class OwnerContract(ProviderContract):
    """For providers that start processes. A subclass provides ``make`` and closes what it made at the end."""

    @pytest.fixture
    async def provider(self, make: Callable[[Command], Provider]) -> Provider:
        return make(SLEEPER)

    async def test_a_node_is_one_process_until_it_is_terminated(self, provider: Provider) -> None:
        assert not provider.adopts
        node_id = await provider.launch(())
        process = await process_of(node_id)
        await provider.terminate(node_id, grace_s=GRACE_S)
        await gone(process)
        assert processes_of(node_id) == []

    async def test_a_killed_process_is_told_until_it_is_terminated(self, provider: Provider) -> None:
        node_id = await provider.launch(())
        (await process_of(node_id)).kill()
        assert await ended(provider, node_id)
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert provider.ended() == {}

    async def test_a_node_that_cannot_start_is_told(self, make: Callable[[Command], Provider]) -> None:
        provider = make(BROKEN)
        node_id = await provider.launch(())
        assert "ended with code 3" in await ended(provider, node_id)
        await provider.terminate(node_id, grace_s=GRACE_S)
        assert provider.ended() == {}

    async def test_a_process_that_does_not_listen_is_killed_after_the_grace(
        self, make: Callable[[Command], Provider]
    ) -> None:
        provider = make(DEAF)
        node_id = await provider.launch(())
        process = await process_of(node_id)

        async def deaf() -> bool:
            return is_deaf(process)

        await eventually(deaf)
        await provider.terminate(node_id, grace_s=0.2)
        await gone(process)


@dataclass
class NodePlan:
    """How the next attention nodes behave; a test changes it while the scaler runs."""

    url: str
    flags: list[str] = field(default_factory=list)

    def command(self, node_id: str, address: str = "127.0.0.1:0") -> list[str]:
        own = ["--node-id", node_id, "--address", address, "--redis-url", self.url, "--cluster", CLUSTER]
        return [sys.executable, str(FAKE_ANODE), *own, *self.flags]

    def processes(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if {self.url, str(FAKE_ANODE)} <= set(process.info["cmdline"] or [])
        ]


class ScalingContract:
    """A scaler with this provider. A subclass provides ``plan`` and ``make_scaling``, a provider over it."""

    @pytest.fixture
    def plan(self, valkey_url: str) -> NodePlan:
        return NodePlan(valkey_url)

    async def assert_undone(self, rig: Rig, plan: NodePlan, operation: Operation, reason: str) -> None:
        assert operation.result is Result.FAILED
        assert reason in operation.reason
        assert list((await rig.states()).values()) == [NodeState.ACTIVE]

        async def one_is_left() -> bool:
            return len(plan.processes()) == 1

        await eventually(one_is_left)

    async def test_a_failed_start_is_undone_and_the_next_one_works(
        self, plan: NodePlan, make_scaling: Callable[[RoutingStore], Provider]
    ) -> None:
        async with scaler_rig(plan.url, make_provider=make_scaling, initial_target=1) as rig:
            await self.settled(rig)
            plan.flags = ["--fail", "no such device"]
            await self.assert_undone(rig, plan, await rig.scale("one", 3), "ended with code 3")
            plan.flags = []
            assert (await rig.scale("two", 3)).result is Result.SUCCEEDED
            assert list((await rig.states()).values()) == [NodeState.ACTIVE] * 3
            assert len(plan.processes()) == 3
            assert (await rig.scale("three", 1)).result is Result.SUCCEEDED
            assert len(plan.processes()) == 1

    async def test_a_start_that_hangs_is_undone_each_time_and_the_next_one_works(
        self, plan: NodePlan, make_scaling: Callable[[RoutingStore], Provider]
    ) -> None:
        async with scaler_rig(plan.url, make_provider=make_scaling, initial_target=1) as rig:
            await self.settled(rig)
            plan.flags = ["--idle"]
            for number in range(2):
                operation = await rig.scale(f"hangs-{number}", 2, deadline_s=3.0)
                await self.assert_undone(rig, plan, operation, "has not taken its lease")
            plan.flags = []
            assert (await rig.scale("works", 2)).result is Result.SUCCEEDED

    @staticmethod
    async def settled(rig: Rig) -> None:
        async def one_is_active() -> bool:
            return list((await rig.states()).values()) == [NodeState.ACTIVE] and rig.book.running is None

        await eventually(one_is_active)
