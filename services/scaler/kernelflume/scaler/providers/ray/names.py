"""Names of actors: what they host, for which cluster, and which machine they were meant for.

All that Ray tells of an actor without asking it is its name. So the name says what others must know to put
theirs elsewhere, and a scaler to take over what an earlier one left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kernelflume.core.leases import NodeKind

_NO_MACHINE = "any"
_NUM_PARTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorName:
    """One actor's name; no two actors of a Ray namespace have the same."""

    cluster: str
    kind: NodeKind
    node_id: str
    attempt: int
    """Counts the actors made for one node: the name of one that was lost may be taken for a while."""
    machine: str | None
    """Ray node that it was meant for; Ray may have put it elsewhere."""

    def __str__(self) -> str:
        machine = self.machine or _NO_MACHINE
        return f"{self.cluster}/{self.kind.value}/{self.node_id}/{self.attempt}/{machine}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a name back; None for what is no name of ours."""
        parts = text.split("/")
        if len(parts) != _NUM_PARTS:
            return None
        cluster, kind, node_id, attempt, machine = parts
        try:
            return cls(
                cluster=cluster,
                kind=NodeKind(kind),
                node_id=node_id,
                attempt=int(attempt),
                machine=None if machine == _NO_MACHINE else machine,
            )
        except ValueError:
            return None
