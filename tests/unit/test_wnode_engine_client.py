"""The engine's process leaves Ctrl-C to the shell that ends it."""

from __future__ import annotations

import signal
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from kernelflume.wnode import engine_client

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restored_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_engine_ignores_ctrl_c_from_its_first_line_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    module: Any = ModuleType("kernelflume.wnode.engine_process")
    module.run_engine = lambda *_: seen.append(signal.getsignal(signal.SIGINT))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    arguments: Any = None
    engine_client._run_engine(arguments, arguments)
    assert seen == [signal.SIG_IGN]
