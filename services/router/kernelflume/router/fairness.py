"""Who is next while requests wait: the key that was served least, by tokens and its weight. Pure.

Each tenant (a key, or everybody without keys) has a counter of the tokens it was served, divided by its
weight. The waiting tenant with the lowest counter is next, so that of two that always wait each gets tokens
in proportion to its weight, however many requests it queues and however long they are. A tenant that comes
back after a while starts no lower than the lowest that waits or runs: what it did not use is not saved up.
What it used beyond the others is remembered, though, so that nobody gains by leaving and coming back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

W = TypeVar("W")

_MAX_IDLE = 1024
"""Idle tenants remembered; with more of them all are forgotten."""


@dataclass(slots=True)
class _Tenant(Generic[W]):
    weight: float
    served: float = 0.0
    """Tokens over weight."""
    num_running: int = 0
    waiting: deque[W] = field(default_factory=deque)

    @property
    def active(self) -> bool:
        return bool(self.num_running or self.waiting)


class FairQueue(Generic[W]):
    """Waiting requests of many tenants, bounded. Owned by ``Admission``."""

    def __init__(self, max_waiting: int) -> None:
        """Make an empty queue.

        Args:
            max_waiting: most requests that wait.
        """
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._tenants: dict[str, _Tenant[W]] = {}

    def __len__(self) -> int:
        return self._num_waiting

    def num_running(self, tenant: str) -> int:
        """Return how many requests of a tenant run."""
        known = self._tenants.get(tenant)
        return known.num_running if known else 0

    def push(self, tenant: str, weight: float, waiter: W) -> W | None:
        """Let a request wait; return the one that is refused for want of room, itself perhaps.

        That is the newest of the tenant with the most waiting: whoever fills the queue does it to himself.
        """
        self._enter(tenant, weight).waiting.append(waiter)
        self._num_waiting += 1
        if self._num_waiting <= self._max_waiting:
            return None
        # The newcomer's own tenant on a tie, so that equals do not take each other's places.
        fullest = max(self._tenants, key=lambda name: (len(self._tenants[name].waiting), name == tenant))
        refused = self._tenants[fullest].waiting.pop()
        self._num_waiting -= 1
        self._forget_idle(fullest)
        return refused

    def pop(self) -> W | None:
        """Take the next request out, which runs from now on; None when none waits."""
        waiting = [(known.served, name) for name, known in self._tenants.items() if known.waiting]
        if not waiting:
            return None
        known = self._tenants[min(waiting)[1]]
        known.num_running += 1
        self._num_waiting -= 1
        return known.waiting.popleft()

    def remove(self, tenant: str, waiter: W) -> bool:
        """Let a request wait no more; False if it did not."""
        known = self._tenants.get(tenant)
        if known is None or waiter not in known.waiting:
            return False
        known.waiting.remove(waiter)
        self._num_waiting -= 1
        self._forget_idle(tenant)
        return True

    def clear(self) -> list[W]:
        """Return all that wait, which wait no more."""
        waiters = [waiter for known in self._tenants.values() for waiter in known.waiting]
        for name, known in list(self._tenants.items()):
            known.waiting.clear()
            self._forget_idle(name)
        self._num_waiting = 0
        return waiters

    def started(self, tenant: str, weight: float) -> None:
        """Count a request that runs without having waited."""
        self._enter(tenant, weight).num_running += 1

    def ended(self, tenant: str) -> None:
        """Count a request that runs no more."""
        self._tenants[tenant].num_running -= 1
        self._forget_idle(tenant)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Count tokens that a running request was served."""
        known = self._tenants.get(tenant)
        if known is not None:
            known.served += num_tokens / known.weight

    def _enter(self, tenant: str, weight: float) -> _Tenant[W]:
        known = self._tenants.get(tenant)
        if known is None or not known.active:
            known = known or _Tenant(weight)
            known.served = max(known.served, self._lowest_active())
            self._tenants[tenant] = known
        known.weight = weight
        return known

    def _lowest_active(self) -> float:
        return min((known.served for known in self._tenants.values() if known.active), default=0.0)

    def _forget_idle(self, tenant: str) -> None:
        """Forget whoever is idle and as good as new, once ``tenant`` may have become idle."""
        if self._tenants[tenant].active:
            return
        active = {name: known for name, known in self._tenants.items() if known.active}
        if not active or len(self._tenants) > len(active) + _MAX_IDLE:
            self._tenants = active
        elif self._tenants[tenant].served <= self._lowest_active():
            del self._tenants[tenant]
