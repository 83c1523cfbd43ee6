"""NIXL between two real processes, in both modes of error handling."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.nixl_peer import NUM_BYTES, Peer, running_peer

from kernelflume.core.errors import ConfigurationError, HandshakeError, LifecycleError, PeerLostError
from kernelflume.runtime.clock import Deadline, MonotonicClock
from kernelflume.transport.base import Notice, Write
from kernelflume.transport.memory import allocate
from kernelflume.transport.nixl import ERROR_HANDLING_MODES, NixlTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernelflume.transport.base import WritePlan

DEADLINE_S = 60.0

both_modes = pytest.mark.parametrize("mode", ERROR_HANDLING_MODES)


class Ours:
    """This process's agent."""

    def __init__(self, mode: str) -> None:
        self.transport = NixlTransport(f"w#{os.urandom(4).hex()}", error_handling=mode)
        self.memory = allocate(NUM_BYTES)
        self.memory[:] = np.arange(NUM_BYTES, dtype=np.uint32).view(np.uint8)[:NUM_BYTES]
        self.region = self.transport.register(self.memory)
        self.notices: list[Notice] = []

    def connect(self, peer: Peer) -> WritePlan:
        """Connect both ways and prepare writes of several sizes to the start of the peer's memory."""
        self.transport.connect(peer.name, peer.metadata)
        peer.tell("connect", self.transport.name, self.transport.metadata(), self.region)
        return self.transport.plan_writes(
            peer.name,
            [Write(self.region, offset, peer.region, 0, size) for offset, size in WRITES],
        )

    def finish(self, plan: WritePlan, index: int) -> None:
        self.until(lambda: self.transport.is_done(plan, index))

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until a condition holds, within the deadline."""
        deadline = Deadline(MonotonicClock(), DEADLINE_S)
        while not condition():
            assert not deadline.expired
            self.notices += self.transport.poll()

    def receive(self, count: int) -> list[Notice]:
        """Return all notices that came, once there are so many."""
        self.until(lambda: len(self.notices) >= count)
        notices, self.notices = self.notices, []
        return notices

    def received_by(self, peer: Peer, count: int) -> list[tuple[str, bytes, bytes]]:
        """Return notices that the peer got, each with the first 64 bytes of its memory at that moment.

        A notice leaves only while its sender goes on polling.
        """
        arrived: list[tuple[str, bytes, bytes]] = []

        def is_complete() -> bool:
            arrived.extend(peer.tell("notices"))
            return len(arrived) >= count

        self.until(is_complete)
        return arrived


WRITES = [(0, 64), (64, 4096), (128, 100_000), (0, NUM_BYTES)]


@contextmanager
def agent(mode: str) -> Iterator[Ours]:
    ours = Ours(mode)
    try:
        yield ours
    finally:
        ours.transport.close()


@both_modes
def test_data_arrives_before_its_notice_and_unchanged(mode: str) -> None:
    with agent(mode) as ours, running_peer("a#1", mode) as peer:
        plan = ours.connect(peer)
        assert len(plan) == len(WRITES)
        for index, (offset, size) in enumerate(WRITES):
            peer.tell("fill", 0)
            ours.transport.post(plan, index, b"write %d" % index)
            ours.finish(plan, index)
            ((sender, notice, seen),) = ours.received_by(peer, 1)
            assert (sender, notice) == (ours.transport.name, b"write %d" % index)
            assert seen == ours.memory[offset : offset + 64].tobytes()
            written = peer.tell("read")
            assert written[:size] == ours.memory[offset : offset + size].tobytes()
            assert not any(written[size:])


@both_modes
def test_the_peer_writes_back(mode: str) -> None:
    with agent(mode) as ours, running_peer("a#1", mode) as peer:
        ours.connect(peer)
        peer.tell("fill", 7)
        peer.control.send(("write", b"back"))
        assert ours.receive(1) == [Notice("a#1", b"back")]
        assert (ours.memory == 7).all()
        assert peer.control.poll(DEADLINE_S)


@both_modes
def test_a_handle_is_posted_again_with_another_notice_each_time(mode: str) -> None:
    with agent(mode) as ours, running_peer("a#1", mode) as peer:
        plan = ours.connect(peer)
        for step in range(50):
            ours.transport.post(plan, 0, b"step %d" % step)
            ours.finish(plan, 0)
        notices = {notice for _, notice, _ in ours.received_by(peer, 50)}
        assert notices == {b"step %d" % step for step in range(50)}


@both_modes
def test_a_silent_write_that_is_done_is_there_when_the_peer_is_told(mode: str) -> None:
    with agent(mode) as ours, running_peer("a#1", mode) as peer:
        ours.connect(peer)
        plan = ours.transport.plan_writes(
            peer.name, [Write(ours.region, 0, peer.region, 0, size) for size in (64, NUM_BYTES)], silent=True
        )
        for index in (1, 0, 1):
            ours.transport.post(plan, index)
            ours.finish(plan, index)
        ours.transport.notify(peer.name, b"told")
        assert ours.received_by(peer, 1) == [(ours.transport.name, b"told", ours.memory[:64].tobytes())]
        assert peer.tell("read") == ours.memory.tobytes()
        with pytest.raises(LifecycleError, match="silent"):
            ours.transport.post(plan, 0, b"-")


@both_modes
def test_a_write_and_its_notice_go_on_by_polling_alone(mode: str) -> None:
    with agent(mode) as ours, running_peer("a#1", mode) as peer:
        plan = ours.connect(peer)
        ours.transport.post(plan, 0, b"first")
        ((_, notice, seen),) = ours.received_by(peer, 1)
        assert notice == b"first"
        assert seen == ours.memory[:64].tobytes()
        assert ours.transport.is_done(plan, 0)


@both_modes
def test_a_notice_goes_without_data(mode: str) -> None:
    with agent(mode) as ours, running_peer("a#1", mode) as peer:
        ours.connect(peer)
        ours.transport.notify("a#1", b"hello")
        ((_, notice, _),) = ours.received_by(peer, 1)
        assert notice == b"hello"


def test_a_killed_peer_is_lost_within_the_deadline() -> None:
    with agent("peer") as ours, running_peer("a#1", "peer") as peer:
        plan = ours.connect(peer)
        ours.transport.post(plan, 0, b"before")
        ours.finish(plan, 0)
        peer.kill()

        def send() -> bool:
            ours.transport.notify("a#1", b"after")
            ours.transport.post(plan, 0, b"after")
            return False

        with pytest.raises(PeerLostError, match="a#1"):
            ours.until(send)
        with pytest.raises(PeerLostError):
            ours.transport.post(plan, 1, b"after")
        ours.transport.disconnect("a#1")


def test_without_error_handling_a_killed_peer_costs_no_hang() -> None:
    with agent("none") as ours, running_peer("a#1", "none") as peer:
        plan = ours.connect(peer)
        ours.transport.post(plan, 0, b"before")
        ours.finish(plan, 0)
        peer.kill()
        ours.transport.notify("a#1", b"after")
        assert ours.transport.poll() == []
        ours.transport.disconnect("a#1")


@both_modes
def test_a_restarted_peer_is_reached_under_its_new_name(mode: str) -> None:
    with agent(mode) as ours:
        with running_peer("a#1", mode) as first:
            plan = ours.connect(first)
            ours.transport.post(plan, 0, b"first")
            ours.finish(plan, 0)
            first.kill()
        with running_peer("a#2", mode) as second:
            new_plan = ours.connect(second)
            ours.transport.disconnect("a#1")
            ours.transport.post(new_plan, 1, b"second")
            ours.finish(new_plan, 1)
            ((_, notice, _),) = ours.received_by(second, 1)
            assert notice == b"second"
            assert second.tell("read")[:4096] == ours.memory[64 : 64 + 4096].tobytes()
            with pytest.raises(PeerLostError, match="closed"):
                ours.transport.post(plan, 0, b"to the old one")


@both_modes
def test_a_peer_can_be_connected_again_under_the_same_name(mode: str) -> None:
    with agent(mode) as ours, running_peer("a#1", mode) as peer:
        old = ours.connect(peer)
        plan = ours.connect(peer)
        ours.transport.post(plan, 0, b"again")
        ours.finish(plan, 0)
        ((_, notice, _),) = ours.received_by(peer, 1)
        assert notice == b"again"
        with pytest.raises(PeerLostError, match="closed"):
            ours.transport.post(old, 0, b"stale")


def test_metadata_of_another_agent_is_refused() -> None:
    with agent("peer") as ours, running_peer("a#1", "peer") as peer:
        with pytest.raises(HandshakeError, match="metadata is that of a#1, not of b#1"):
            ours.transport.connect("b#1", peer.metadata)
        with pytest.raises(HandshakeError, match="cannot be loaded"):
            ours.transport.connect("a#1", b"garbage")
        with pytest.raises(PeerLostError, match="not connected"):
            ours.transport.plan_writes("b#1", [Write(ours.region, 0, peer.region, 0, 64)])
        # A refusal leaves no trace: the right name still works.
        plan = ours.connect(peer)
        ours.transport.post(plan, 0, b"right")
        ours.finish(plan, 0)
        assert ours.received_by(peer, 1)[0][1] == b"right"


def test_what_would_crash_nixl_is_refused() -> None:
    with agent("peer") as ours, running_peer("a#1", "peer") as peer:
        plan = ours.connect(peer)
        with pytest.raises(LifecycleError, match="needs a notice"):
            ours.transport.post(plan, 0, b"")
        ours.transport.disconnect("a#1")
        ours.transport.disconnect("a#1")
        with pytest.raises(PeerLostError, match="closed"):
            ours.transport.is_done(plan, 0)
        with pytest.raises(PeerLostError):
            ours.transport.notify("a#1", b"-")


def test_an_unknown_mode_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="transport_error_handling: 'maybe'"):
        NixlTransport("w#1", error_handling="maybe")
