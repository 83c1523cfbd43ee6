"""Which link a node id means."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, cast

from kernelflume.runtime.clock import MonotonicClock
from kernelflume.wnode.links import LinkTable


@dataclass
class FakeLink:
    node_name: str
    is_warm: bool = True
    is_quiet: bool = True
    closed: bool = False

    @property
    def node_id(self) -> str:
        return self.node_name.partition("#")[0]

    def close(self) -> None:
        self.closed = True


def table(*links: FakeLink) -> LinkTable:
    made = LinkTable(cast("Any", None), MonotonicClock(), exchange_timeout_s=1.0, gone=lambda _: "")
    for link in links:
        made.add(cast("Any", link))
    return made


def test_only_a_warm_link_is_found_by_id() -> None:
    cold = FakeLink("a-1#aa", is_warm=False)
    links = table(cold, FakeLink("a-2#bb"))
    assert links.of_node("a-1") is None
    cold.is_warm = True
    assert links.of_node("a-1") is cast("Any", cold)
    assert links.of_node("a-3") is None


def test_a_node_started_anew_is_found_as_soon_as_its_last_start_is_closed() -> None:
    before, after = FakeLink("a-1#aa"), FakeLink("a-1#bb")
    links = table(before, after)
    assert links.of_node("a-1") is cast("Any", before)
    links.close("a-1#aa")
    assert before.closed
    assert links.of_node("a-1") is cast("Any", after)
    links.close("a-1#bb")
    links.close("a-1#bb")
    assert links.of_node("a-1") is None
    assert links.all() == []


def test_a_link_that_is_replaced_is_not_found_any_more() -> None:
    old, new = FakeLink("a-1#aa"), FakeLink("a-1#aa", is_warm=False)
    links = table(old, new)
    assert links.of_node("a-1") is None
    assert links.all() == cast("Any", [new])


def test_memory_is_kept_while_a_write_may_be_under_way() -> None:
    quiet, busy = FakeLink("a-1#aa"), FakeLink("a-2#bb", is_quiet=False)
    links = table(quiet, busy)
    kept = [weakref.ref(quiet), weakref.ref(busy)]
    links.close("a-1#aa")
    links.close("a-2#bb")
    del quiet, busy
    assert [reference() is not None for reference in kept] == [False, True]
