"""How a loop waits for notices: poll for a short while, then sleep on the doorbell, never past a deadline."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.base import Notice, Transport
    from kernelflume.transport.doorbell import Doorbell


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPolicy:
    """When to stop polling and sleep. On a machine with a core for each poller, raise ``spin_s``."""

    spin_s: float = 200e-6
    """Poll this long, giving way to other processes between polls, before sleeping on the bell."""
    nap_s: float = 2e-3
    """Longest sleep inside an exchange: what a lost ring costs."""
    idle_nap_s: float = 20e-3
    """Longest sleep between exchanges."""


class Waiter:
    """Waits for the notices of one transport. Owned by the thread that owns the transport."""

    def __init__(self, transport: Transport, doorbell: Doorbell, clock: Clock, policy: WaitPolicy) -> None:
        self._transport = transport
        self._doorbell = doorbell
        self._clock = clock
        self._policy = policy

    def wait_notices(self, timeout_s: float, *, idle: bool = False) -> list[Notice]:
        """Return what arrived, waiting up to ``timeout_s``; empty at the time-out.

        A watched descriptor that becomes readable ends the wait, and so does a ring between exchanges: the
        result may be empty early. The ring overtakes its notice, so wait again, as inside an exchange.

        Args:
            timeout_s: how long to wait at most.
            idle: between exchanges: sleep at once and longer.
        """
        notices = self._transport.poll()
        if notices or timeout_s <= 0:
            return notices
        now = self._clock.now
        end = now() + timeout_s
        nap_s = self._policy.idle_nap_s if idle else self._policy.nap_s
        spin_end = now() + (0.0 if idle else self._policy.spin_s)
        while True:
            if now() < spin_end:
                os.sched_yield()
            else:
                rung = self._doorbell.wait(max(0.0, min(nap_s, end - now())))
                if self._doorbell.is_watched_ready or (rung and idle):
                    return self._transport.poll()
                # The ring overtakes the notice: poll a while before sleeping again.
                spin_end = now() + self._policy.spin_s if rung else spin_end
            notices = self._transport.poll()
            if notices or now() >= end:
                return notices
