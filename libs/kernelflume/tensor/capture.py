"""Capturing what is enqueued on a stream as a graph."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def captured(graph: torch.cuda.CUDAGraph, *, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture what is enqueued on ``stream`` meanwhile; other threads may go on launching.

    Garbage is collected before and not during a capture: an old graph that a collection destroys on the
    capturing thread spoils the capture, and it may be another link's.
    """
    gc.collect()
    with (
        _no_collection(),
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        yield


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
