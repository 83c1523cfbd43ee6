"""Processes forked on demand: what is told of them, and what becomes of them when others end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.scaler_rig import WAIT_S, eventually

from kernelflume.core.errors import KernelFlumeError, UnavailableError
from kernelflume.scaler.providers.forking import ForkServerProcess
from kernelflume.scaler.providers.process import ProcessProvider
from kernelflume.scaler.providers.starting import ForkStarter, SpawnStarter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kernelflume.scaler.providers.forking import ForkedNode

ECHO = Path(__file__).parents[1] / "forked_echo.py"


class Forks:
    """A fork server of the given mode, and the log of what it forks."""

    def __init__(self, directory: Path, mode: str) -> None:
        self.log_path = directory / "forked.log"
        self.server_log = directory / "server.log"
        self.server = ForkServerProcess([sys.executable, str(ECHO), mode], log_path=self.server_log)

    async def fork(self, *arguments: str) -> ForkedNode:
        with self.log_path.open("ab") as log:
            return await self.server.fork(list(arguments), log)

    async def living(self) -> tuple[ForkedNode, dict[str, int]]:
        """Fork a process that lives on; return what it said of itself."""
        start = len(self.lines)
        node = await self.fork("live")

        def told() -> list[str]:
            # Others that were forked and given up say meanwhile that their owner is gone.
            return [line for line in self.lines[start:] if line.startswith("{")]

        async def said() -> bool:
            return bool(told())

        await eventually(said)
        return node, json.loads(told()[0])

    async def pid(self) -> int:
        """Return the server's process id."""
        _, about = await self.living()
        return about["parent"]

    @property
    def lines(self) -> list[str]:
        return self.log_path.read_text().splitlines() if self.log_path.exists() else []


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[str], Forks]]:
    made: list[Forks] = []

    def make_one(mode: str) -> Forks:
        made.append(Forks(tmp_path, mode))
        return made[-1]

    yield make_one
    for forks in made:
        await forks.server.close()


@pytest.fixture
def forks(make: Callable[[str], Forks]) -> Forks:
    return make("works")


async def ended(node: ForkedNode) -> int | None:
    async with asyncio.timeout(WAIT_S):
        return await asyncio.shield(node.exited)


async def test_exit_codes_and_last_words_are_told(forks: Forks) -> None:
    assert await ended(await forks.fork("end", "3")) == 3
    assert await ended(await forks.fork("say", "no such device")) == 1
    assert forks.lines == ["no such device"]
    assert await ended(await forks.fork("crash")) == 1
    assert forks.lines[-1] == "ValueError: broken"


async def test_a_forked_process_gets_signals_and_keeps_nothing_of_the_server(forks: Forks) -> None:
    first, about = await forks.living()
    # Input, output and errors, the lifeline, and the folder that is being listed.
    assert about["descriptors"] == 5
    second, _ = await forks.living()
    first.terminate()
    assert await ended(first) == -signal.SIGTERM
    second.kill()
    assert await ended(second) == -signal.SIGKILL
    second.kill()  # nothing is left to be hit


async def test_what_was_forked_outlives_the_server_and_the_server_is_replaced(
    forks: Forks, caplog: pytest.LogCaptureFixture
) -> None:
    node, about = await forks.living()
    os.kill(about["parent"], signal.SIGKILL)

    async def replaced() -> bool:
        with contextlib.suppress(UnavailableError):
            return await forks.pid() != about["parent"]
        return False

    await eventually(replaced)
    assert "it ended with code -9; another is started" in caplog.text
    assert not node.exited.done()
    node.kill()
    assert await ended(node) is None


async def test_a_process_with_threads_does_not_fork(make: Callable[[str], Forks]) -> None:
    with pytest.raises(UnavailableError, match="it has 2 threads"):
        await make("threads").fork("live")
    later = make("threads-on-signal")
    os.kill(await later.pid(), signal.SIGUSR1)
    with pytest.raises(UnavailableError, match="refuses: it has 2 threads"):
        await later.fork("live")


async def test_a_fork_that_is_given_up_leaves_no_process(forks: Forks) -> None:
    server = psutil.Process(await forks.pid())
    assert len(server.children()) == 1
    for _ in range(3):
        given_up = asyncio.create_task(forks.fork("live"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
    node, _ = await forks.living()

    async def two_are_left() -> bool:
        return len(server.children()) == 2

    await eventually(two_are_left)
    assert not node.exited.done()


async def test_a_server_that_cannot_start_is_told_and_nodes_are_spawned_instead(
    make: Callable[[str], Forks], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    broken = make("broken")
    with pytest.raises(KernelFlumeError, match="no such library"):
        await broken.fork("live")
    spawn = SpawnStarter(lambda _: [sys.executable, "-c", "raise SystemExit(7)"])
    starter = ForkStarter(broken.server, lambda _: ["live"], spawn)
    provider = ProcessProvider(starter, log_dir=tmp_path)
    node_id = await provider.launch(())

    async def has_ended() -> bool:
        return node_id in provider.ended()

    await eventually(has_ended)
    assert provider.ended()[node_id].startswith("ended with code 7")
    assert f"attention node {node_id} is started without the fork server, slowly" in caplog.text
    await provider.close(grace_s=1.0)


def test_all_ends_with_the_owner_however_it_ends(tmp_path: Path) -> None:
    code = f"""
        import asyncio, psutil, sys
        from pathlib import Path
        from kernelflume.scaler.providers.forking import ForkServerProcess

        async def main():
            folder = Path({str(tmp_path)!r})
            command = [sys.executable, {str(ECHO)!r}, "works"]
            server = ForkServerProcess(command, log_path=folder / "server.log")
            with (folder / "forked.log").open("ab") as log:
                await server.fork(["live"], log)
            print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    children = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
    assert len(children) == 2
    owner.kill()
    owner.wait()
    owner.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
    assert "the owner is gone" in (tmp_path / "forked.log").read_text()


def test_a_forked_process_is_waited_for_as_popen_does() -> None:
    code = """
        import subprocess, time
        from kernelflume.runtime.forked import ForkedProcess, num_threads

        assert num_threads() == 1
        sleeper = ForkedProcess(lambda: time.sleep(600))
        try:
            sleeper.wait(0.05)
        except subprocess.TimeoutExpired:
            sleeper.kill()
        print(sleeper.wait(60), sleeper.poll(), ForkedProcess(lambda: None).wait())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stdout.split() == ["-9", "-9", "0"], done.stderr
