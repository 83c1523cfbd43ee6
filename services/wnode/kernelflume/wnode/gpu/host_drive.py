"""What the CPU does for one lane while a step of captured graphs runs: see flags, post, await, set flags."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kernelflume.cuda.flags import FlagKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernelflume.cuda.flags import StepFlags


class LanePeer(Protocol):
    """One attention node's share of a lane in one step."""

    @property
    def name(self) -> str:
        """The node's name, for errors."""
        ...

    @property
    def asks(self) -> bool:
        """It gets queries of the step."""
        ...

    @property
    def stores(self) -> bool:
        """It gets keys and values of the step."""
        ...

    @property
    def has_launched(self) -> bool:
        """It has answered the step's announcement."""
        ...

    def post_query(self, layer: int) -> None:
        """Send the queries that were gathered for it.

        Raises:
            PeerLostError: the node is gone.
        """
        ...

    def post_keys_values(self, layer: int) -> None:
        """Send the keys and values that were gathered for it.

        Raises:
            PeerLostError: the node is gone.
        """
        ...

    def has_partial(self, layer: int) -> bool:
        """True when a layer's partial is here."""
        ...


class Awaited(StrEnum):
    """What a lane waits for."""

    QUERY = "queries"
    KEYS_VALUES = "keys and values"
    PARTIAL = "partial"
    LAUNCH = "answer to the step"


class Wait(NamedTuple):
    """What a lane waits for, and of whom."""

    what: Awaited
    layer: int
    peer: str
    """The node's name; empty for this node's own graph."""


class LaneDrive:
    """One lane's way through a step."""

    def __init__(
        self, flags: StepFlags, peers: Sequence[LanePeer], *, num_layers: int, in_layer: bool
    ) -> None:
        """Begin a step whose flags are clear.

        Args:
            flags: the lane's.
            peers: the nodes that take part.
            num_layers: the model's layers.
            in_layer: keys and values travel in every layer (query first off and paper).
        """
        self._flags = flags
        self._askers = [peer for peer in peers if peer.asks]
        self._storers = [peer for peer in peers if peer.stores]
        self._num_layers = num_layers
        self._in_layer = in_layer
        self._course = self._run()
        self.waits_for: Wait | None = Wait(Awaited.QUERY, 0, "")
        """None when nothing is left to do."""

    def turn(self) -> bool:
        """Do all that is due; True when nothing is left.

        Raises:
            PeerLostError: a node is gone.
        """
        self.waits_for = next(self._course, None)
        return self.waits_for is None

    def _run(self) -> Iterator[Wait]:
        flags, askers = self._flags, self._askers
        for layer in range(self._num_layers):
            wait = Wait(Awaited.QUERY, layer, "")
            while not flags.is_set(FlagKind.QUERY, layer):
                yield wait
            for peer in askers:
                peer.post_query(layer)
            if self._in_layer:
                yield from self._store(layer)
            for peer in askers:
                wait = Wait(Awaited.PARTIAL, layer, peer.name)
                while not peer.has_partial(layer):
                    yield wait
            flags.set(FlagKind.ATTENTION, layer)
        if not self._in_layer:
            yield from self._store(0)

    def _store(self, layer: int) -> Iterator[Wait]:
        wait = Wait(Awaited.KEYS_VALUES, layer, "")
        while not self._flags.is_set(FlagKind.KEYS_VALUES, layer):
            yield wait
        for peer in self._storers:
            # Only then has the node filed what lay in the slot before.
            wait = Wait(Awaited.LAUNCH, layer, peer.name)
            while not peer.has_launched:
                yield wait
            peer.post_keys_values(layer)
