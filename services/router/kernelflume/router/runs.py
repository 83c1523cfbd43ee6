"""One run of a choice on one weight node, as the stream's receiver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.core.errors import KernelFlumeError
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.router.attachment import Receiver, RunControl
    from kernelflume.router.loads import RunLoad
    from kernelflume.rpc.v1 import wnode_pb2

    StartRun = Callable[[Receiver], RunControl]


@dataclass(frozen=True, slots=True)
class RunSite:
    """Where a run is, and what it is counted as there."""

    address: str
    node_id: str
    load: RunLoad


class RunOwner(Protocol):
    """Told of the news of its runs."""

    def token(self, token_id: int, now: float) -> None:
        """Take a token of the run whose tokens count: the other one, if there is one, stands still."""
        ...

    def event(self, event: wnode_pb2.GenerateEvent, now: float) -> None:
        """Take an event of that run."""
        ...

    def run_held(self, run: Run, route: SequenceRoute) -> None:
        """Take note that a run stands still, with its keys and values on ``route``."""
        ...

    def run_asked_away(self, run: Run, *, again: bool) -> None:
        """Take note that a run's weight node is to end, or be reminded of it."""
        ...

    def run_ended(self, run: Run, error: KernelFlumeError | None) -> None:
        """Take note that nothing more comes of a run."""
        ...


class Run:
    """Passes the news on, and has what controls the run."""

    __slots__ = ("_control", "_owner", "event", "is_over", "site", "token")

    def __init__(self, owner: RunOwner, site: RunSite) -> None:
        self._owner = owner
        self._control: RunControl | None = None
        self.site = site
        self.is_over = False
        # Bound once: these are called for every token.
        self.token = owner.token
        self.event = owner.event

    def start(self, start: StartRun) -> None:
        """Start it; it may end at once."""
        self._control = start(self)

    def held(self, route: SequenceRoute) -> None:
        """Take note that it stands still."""
        self._owner.run_held(self, route)

    def asked_away(self, *, again: bool = False) -> None:
        """Take note that its weight node is to end, or be reminded of it."""
        self._owner.run_asked_away(self, again=again)

    def ended(self, error: KernelFlumeError | None) -> None:
        """Take note that nothing more comes."""
        self.is_over = True
        self.site.load.release()
        self._owner.run_ended(self, error)

    def hand_over(self) -> None:
        """Have it stand still between two tokens."""
        if self._control is not None:
            self._control.hand_over()

    def go_on(self) -> None:
        """Let it go on."""
        if self._control is not None:
            self._control.go_on()

    def cancel(self) -> None:
        """End it, if it has not ended."""
        if self._control is not None:
            self._control.cancel()
