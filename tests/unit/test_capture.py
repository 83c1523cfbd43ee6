"""What must not happen while a graph is captured."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernelflume.tensor.capture import captured

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_within_a_capture(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    seen: list[bool] = []

    @contextlib.contextmanager
    def graph(*_: object, **__: object) -> Iterator[None]:
        seen.append(gc.isenabled())
        yield
        seen.append(gc.isenabled())

    monkeypatch.setattr(torch.cuda, "graph", graph)
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        nothing: Any = None
        with pytest.raises(RuntimeError, match="launch"), captured(nothing, pool=None, stream=nothing):
            raise RuntimeError("launch")
        with captured(nothing, pool=None, stream=nothing):
            pass
        assert seen == [False] * 3
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
