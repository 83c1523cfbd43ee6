from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from kernelflume.core.errors import HandshakeError, LifecycleError, PeerLostError
from kernelflume.core.regions import MemoryRegion
from kernelflume.transport.base import Notice, Write
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport


class Pair:
    def __init__(self) -> None:
        self.network = LoopbackNetwork()
        self.a = LoopbackTransport("a", self.network)
        self.b = LoopbackTransport("b", self.network)
        self.source = np.arange(64, dtype=np.uint8)
        self.target = np.zeros(64, np.uint8)
        self.source_region = self.a.register(self.source)
        self.target_region = self.b.register(self.target)
        self.a.connect("b", self.b.metadata())
        self.b.connect("a", self.a.metadata())

    def write(self, offset: int, num_bytes: int) -> Write:
        return Write(self.source_region, offset, self.target_region, offset + 8, num_bytes)


def test_a_write_brings_data_and_then_its_notice() -> None:
    pair = Pair()
    plan = pair.a.plan_writes("b", [pair.write(0, 4), pair.write(16, 8)])
    assert len(plan) == 2
    pair.a.post(plan, 1, b"second")
    assert pair.a.is_done(plan, 1)
    assert pair.b.poll() == [Notice("a", b"second")]
    assert pair.b.poll() == []
    assert pair.target[24:32].tolist() == list(range(16, 24))
    assert pair.target.sum() == sum(range(16, 24))


def test_a_silent_write_brings_data_alone() -> None:
    pair = Pair()
    plan = pair.a.plan_writes("b", [pair.write(0, 4), pair.write(16, 8)], silent=True)
    pair.a.post(plan, 1)
    assert pair.a.is_done(plan, 1)
    assert pair.b.poll() == []
    assert pair.target[24:32].tolist() == list(range(16, 24))
    with pytest.raises(LifecycleError, match="silent"):
        pair.a.post(plan, 0, b"-")


def test_notices_go_both_ways() -> None:
    pair = Pair()
    pair.a.notify("b", b"1")
    pair.a.notify("b", b"2")
    pair.b.notify("a", b"3")
    assert pair.b.poll() == [Notice("a", b"1"), Notice("a", b"2")]
    assert pair.a.poll() == [Notice("b", b"3")]


def test_no_notice_is_lost_that_comes_during_a_poll() -> None:
    network = LoopbackNetwork()
    sender, receiver = LoopbackTransport("a", network), LoopbackTransport("b", network)
    sender.connect("b", receiver.metadata())
    sent = [str(number).encode() for number in range(50_000)]

    def send() -> None:
        for notice in sent:
            sender.notify("b", notice)

    thread = threading.Thread(target=send)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        received = []
        while thread.is_alive():
            received += receiver.poll()
    finally:
        thread.join()
        sys.setswitchinterval(interval_s)
    received += receiver.poll()
    assert [notice.payload for notice in received] == sent


def test_a_write_outside_its_region_is_refused() -> None:
    pair = Pair()
    with pytest.raises(LifecycleError, match="leaves its region"):
        pair.a.plan_writes("b", [pair.write(60, 8)])


def test_a_vanished_peer_is_lost_to_every_call() -> None:
    pair = Pair()
    plan = pair.a.plan_writes("b", [pair.write(0, 4)])
    pair.network.cut("b")
    with pytest.raises(PeerLostError):
        pair.a.post(plan, 0, b"-")
    with pytest.raises(PeerLostError):
        pair.a.is_done(plan, 0)
    with pytest.raises(PeerLostError):
        pair.a.notify("b", b"-")
    assert pair.a.poll() == []


def test_a_peer_that_was_never_connected_or_left_is_lost() -> None:
    pair = Pair()
    pair.a.disconnect("b")
    pair.a.disconnect("b")
    with pytest.raises(PeerLostError):
        pair.a.notify("b", b"-")


def test_metadata_of_another_agent_is_refused() -> None:
    pair = Pair()
    with pytest.raises(HandshakeError, match="not that of c"):
        pair.a.connect("c", pair.b.metadata())


def test_memory_that_was_deregistered_cannot_be_written() -> None:
    pair = Pair()
    plan = pair.a.plan_writes("b", [pair.write(0, 4)])
    pair.b.deregister(pair.target_region)
    with pytest.raises(PeerLostError):
        pair.a.post(plan, 0, b"-")


def test_a_plan_of_another_transport_is_refused() -> None:
    class Foreign:
        peer = "b"

        def __len__(self) -> int:
            return 1

    with pytest.raises(LifecycleError):
        Pair().a.post(Foreign(), 0, b"-")


def test_a_region_names_its_memory() -> None:
    memory = np.zeros(8, np.uint16)
    region = LoopbackTransport("c", LoopbackNetwork()).register(memory)
    assert region == MemoryRegion(memory.ctypes.data, 16, "DRAM", 0)


def test_close_takes_the_agent_off_the_network() -> None:
    pair = Pair()
    pair.b.close()
    with pytest.raises(PeerLostError):
        pair.a.notify("b", b"-")
