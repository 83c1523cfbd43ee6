"""The host path's posts and notices over NIXL, with graphs that the test plays."""

from __future__ import annotations

import os

import pytest
from tests.host_pair import HostPair

from kernelflume.transport.nixl import ERROR_HANDLING_MODES, NixlTransport


@pytest.mark.parametrize("query_first", ["local", "paper"])
@pytest.mark.parametrize("mode", ERROR_HANDLING_MODES)
def test_steps_of_changing_rows_go_through_the_same_prepared_writes(mode: str, query_first: str) -> None:
    names = [f"{kind}#{os.urandom(4).hex()}" for kind in "wa"]
    w, a = (NixlTransport(name, error_handling=mode) for name in names)
    try:
        pair = HostPair(w, a, query_first=query_first)
        for step, rows in enumerate((5, 5, 1, 8, 3), start=1):
            pair.play(step, rows)
    finally:
        w.close()
        a.close()
