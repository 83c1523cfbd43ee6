"""Waiting for notices on a real doorbell."""

from __future__ import annotations

import multiprocessing
import threading
from typing import TYPE_CHECKING

import pytest

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.transport.base import Notice
from kernelflume.transport.doorbell import Doorbell, parse_address
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport
from kernelflume.transport.waiter import Waiter, WaitPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

FOREVER_S = 60.0
"""Longer than the test may last: a wait that should end early and does not fails by the test's time-out."""
PATIENT = WaitPolicy(spin_s=0.0, nap_s=FOREVER_S, idle_nap_s=FOREVER_S)


class Ends:
    def __init__(self) -> None:
        network = LoopbackNetwork()
        self.near, self.far = LoopbackTransport("near", network), LoopbackTransport("far", network)
        self.far.connect("near", b"near")
        self.bell, self.far_bell = Doorbell(), Doorbell()

    def waiter(self, policy: WaitPolicy = PATIENT) -> Waiter:
        return Waiter(self.near, self.bell, MonotonicClock(), policy)

    def send(self) -> None:
        self.far.notify("near", b"news")
        self.far_bell.ring(parse_address(self.bell.address))


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.bell.close()
    ends.far_bell.close()


def test_what_is_there_already_is_returned_at_once(ends: Ends) -> None:
    ends.far.notify("near", b"news")
    assert ends.waiter().wait_notices(FOREVER_S) == [Notice("far", b"news")]


@pytest.mark.parametrize("idle", [False, True])
def test_a_ring_ends_the_sleep(ends: Ends, idle: bool) -> None:
    timer = threading.Timer(0.05, ends.send)
    timer.start()
    assert ends.waiter().wait_notices(FOREVER_S, idle=idle) == [Notice("far", b"news")]
    timer.join()


def test_a_lost_ring_costs_a_nap_and_no_notice(ends: Ends) -> None:
    timer = threading.Timer(0.05, lambda: ends.far.notify("near", b"news"))
    timer.start()
    waiter = ends.waiter(WaitPolicy(spin_s=0.0, nap_s=0.01, idle_nap_s=0.01))
    assert waiter.wait_notices(FOREVER_S) == [Notice("far", b"news")]
    timer.join()


@pytest.mark.parametrize("idle", [False, True])
def test_a_wait_ends_at_its_time_out(ends: Ends, idle: bool) -> None:
    assert ends.waiter(WaitPolicy()).wait_notices(0.01, idle=idle) == []
    assert ends.waiter(WaitPolicy()).wait_notices(0.0, idle=idle) == []


@pytest.mark.parametrize("idle", [False, True])
def test_a_watched_descriptor_ends_the_wait(ends: Ends, idle: bool) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        ends.bell.watch(ours.fileno())
        theirs.send("order")
        assert ends.waiter().wait_notices(FOREVER_S, idle=idle) == []
        assert ours.recv() == "order"


def test_a_ring_to_nobody_is_no_error(ends: Ends) -> None:
    target = parse_address(ends.far_bell.address)
    ends.far_bell.close()
    ends.bell.ring(target)
    assert not ends.bell.wait(0.0)


def test_many_rings_are_one(ends: Ends) -> None:
    for _ in range(10):
        ends.far_bell.ring(parse_address(ends.bell.address))
    assert ends.bell.wait(FOREVER_S)
    assert not ends.bell.wait(0.0)


def test_a_host_that_is_not_here_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="doorbell: cannot bind"):
        Doorbell("203.0.113.1")
