"""Who compiles when: slow grammars hold up their own tenant; what many ask for is compiled once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kernelflume.core.errors import OverloadedError
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.wnode.grammar.compiler import GrammarCompiler
from kernelflume.wnode.grammar.turns import Turns


def new_turns(num_places: int = 2, *, max_waiting: int = 8, max_waiting_of_one: int = 4) -> Turns:
    return Turns(num_places, max_waiting=max_waiting, max_waiting_of_one=max_waiting_of_one)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Work:
    """Takes a turn, notes it, and holds it until it is told to end."""

    def __init__(self, turns: Turns, tenant: str, log: list[tuple[str, int]]) -> None:
        self._may_end = asyncio.Event()
        self.task = asyncio.create_task(self._run(turns, tenant, log))

    async def _run(self, turns: Turns, tenant: str, log: list[tuple[str, int]]) -> None:
        async with turns.turn(tenant) as place:
            log.append((tenant, place))
            await self._may_end.wait()

    async def end(self) -> None:
        self._may_end.set()
        await self.task
        await settle()


async def test_a_tenant_has_one_place_and_the_others_the_rest() -> None:
    log: list[tuple[str, int]] = []
    turns = new_turns()
    slow = [Work(turns, "slow", log) for _ in range(3)]
    await settle()
    assert log == [("slow", 0)]
    others = [Work(turns, name, log) for name in ("a", "b", "a")]
    await settle()
    assert log[1:] == [("a", 1)]
    await others[0].end()
    assert log[2:] == [("b", 1)]
    await others[1].end()
    assert log[3:] == [("a", 1)]
    await slow[0].end()
    assert log[4:] == [("slow", 0)]
    await others[2].end()
    for work in slow[1:]:
        await work.end()
    assert [tenant for tenant, _ in log].count("slow") == 3


async def test_a_crowd_of_one_tenant_is_refused_and_leaves_room_for_others() -> None:
    log: list[tuple[str, int]] = []
    turns = new_turns()
    crowd = [Work(turns, "crowd", log) for _ in range(6)]
    await settle()
    with pytest.raises(OverloadedError, match="4 grammars of this client wait"):
        await crowd[5].task
    other = Work(turns, "other", log)
    await settle()
    assert log == [("crowd", 0), ("other", 1)]
    for work in (other, *crowd[:5]):
        await work.end()


@pytest.mark.parametrize("given", [False, True], ids=["while it waits", "as its turn comes"])
async def test_whoever_gives_up_holds_no_place(given: bool) -> None:
    log: list[tuple[str, int]] = []
    turns = new_turns(1)
    first = Work(turns, "a", log)
    gone = Work(turns, "b", log)
    last = Work(turns, "c", log)
    await settle()
    if given:
        first._may_end.set()
        await first.task
    gone.task.cancel()
    await asyncio.gather(gone.task, return_exceptions=True)
    await first.end()
    assert log[-1] == ("c", 0)
    await last.end()


class BlockingWorker:
    """Compiles what begins with "slow" when it is told to, and all else at once."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.compiled: list[str] = []

    def compile(self, grammar: Grammar) -> bytes:
        if grammar.text.startswith("slow"):
            self.go_on.wait(20)
        self.compiled.append(grammar.text)
        return grammar.text.encode()


def compiler_of(worker: Any) -> GrammarCompiler:
    compiler = GrammarCompiler(Path("none"), vocab_size=8, eos_token_ids=(0,), timeout_s=1.0)
    compiler._workers = [worker, worker]
    return compiler


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


async def test_slow_grammars_of_one_tenant_do_not_delay_another() -> None:
    worker = BlockingWorker()
    compiler = compiler_of(worker)
    slow = [asyncio.create_task(compiler.compile(regex(f"slow{number}"), "slow")) for number in range(4)]
    assert await compiler.compile(regex("quick"), "other") == b"quick"
    assert worker.compiled == ["quick"]
    worker.go_on.set()
    assert await asyncio.gather(*slow) == [b"slow0", b"slow1", b"slow2", b"slow3"]


async def test_what_many_choices_ask_for_is_compiled_once() -> None:
    worker = BlockingWorker()
    compiler = compiler_of(worker)
    asked = [asyncio.create_task(compiler.compile(regex("slow"), "a")) for _ in range(128)]
    await settle()
    asked[0].cancel()
    worker.go_on.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [b"slow"] * 127
    assert worker.compiled == ["slow"]


async def test_what_two_tenants_ask_for_at_once_counts_once() -> None:
    worker = BlockingWorker()
    compiler = compiler_of(worker)
    asked = [asyncio.create_task(compiler.compile(regex("slow"), tenant)) for tenant in ("a", "b")]
    await settle()
    worker.go_on.set()
    assert await asyncio.gather(*asked) == [b"slow"] * 2
    assert worker.compiled == ["slow"] * 2
    assert compiler._num_bytes == len(b"slow")
