"""Up and down with real processes, NIXL and store: nothing is left. benchmarks.scale_soak goes further."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil
import pytest
from benchmarks.census import settled, take
from benchmarks.scale_soak import MEMORY_BYTES, SETTLE_S, WARM_CYCLES, cycles
from tests.stack import serve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.valkey import ValkeyProcess

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

NUM_CYCLES = 25
"""As many as fit a minute and a half on two cores, the start of the stack included."""


def test_cycles_of_real_processes_leave_nothing(tmp_path: Path, valkey: ValkeyProcess) -> None:
    flags = ("--attention-nodes", "1", "--attention-node-memory", "64MiB", "--redis-url", valkey.url)
    with serve(tmp_path, *flags) as stack:
        root = psutil.Process(stack.process.pid)
        asyncio.run(cycles(stack.scaler, range(WARM_CYCLES)))
        tokens = asyncio.run(stack.generate("One, two, three,", 8))
        before = take(root, valkey.url)
        asyncio.run(cycles(stack.scaler, range(WARM_CYCLES, WARM_CYCLES + NUM_CYCLES)))
        assert asyncio.run(stack.generate("One, two, three,", 8)) == tokens
        _, found = settled(before, root, valkey.url, memory_bytes=MEMORY_BYTES, patience_s=SETTLE_S)
        assert found == []
        roles = [process.role for process in before.processes.values()]
        assert roles.count("anode.forkserver") == roles.count("anode") == roles.count("anode.worker") == 1
        # Every node was forked, none started the slow way.
        assert "without the fork server" not in (tmp_path / "scaler.log").read_text()
