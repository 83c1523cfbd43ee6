"""Which machine each of our nodes is on, and which is best for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.scaler.providers.ray.spread import least_used

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kernelflume.core.leases import NodeKind
    from kernelflume.runtime.clock import Clock
    from kernelflume.scaler.providers.ray.names import ActorName

SHUNNED_S = 30.0
"""How long nothing is put where an actor was lost: Ray itself may need half of that to notice."""


class Machines:
    """What this process knows of the places of one kind of node. Owned by its event loop."""

    def __init__(self, kind: NodeKind, clock: Clock) -> None:
        self._kind = kind
        self._clock = clock
        self._shunned: dict[str, float] = {}
        self._of: dict[str, str] = {}

    def put(self, node_id: str, machine: str) -> None:
        """A node is on a machine, or is meant for it while it has no place."""
        self._of[node_id] = machine

    def forget(self, node_id: str) -> None:
        """A node is nowhere any more."""
        self._of.pop(node_id, None)

    def shun_that_of(self, node_id: str) -> None:
        """A node was lost with its machine: put nothing there for a while."""
        machine = self._of.pop(node_id, None)
        if machine is not None:
            self._shunned[machine] = self._clock.now() + SHUNNED_S

    def choose(
        self,
        node_id: str,
        demands: Mapping[str, float],
        *,
        alive: Mapping[str, Mapping[str, float]],
        actors: Collection[ActorName],
    ) -> str | None:
        """Choose a machine for a node, and count the node as there from now on.

        Args:
            node_id: the node.
            demands: what it needs of each resource.
            alive: machine -> what it has of each resource.
            actors: all actors of the cluster, of either kind and whoever made them.

        Returns:
            The machine, or None where none has room as far as is known here.
        """
        now = self._clock.now()
        self._shunned = {machine: until for machine, until in self._shunned.items() if until > now}
        self._of.pop(node_id, None)
        same = list(self._of.values())
        others: list[str] = []
        for actor in actors:
            if actor.machine is None or (actor.kind is self._kind and actor.node_id in {*self._of, node_id}):
                continue  # nothing is known of it, or more than its name says
            (same if actor.kind is self._kind else others).append(actor.machine)
        usable = {machine: has for machine, has in alive.items() if machine not in self._shunned}
        machine = least_used(usable, demands, same, others)
        if machine is not None:
            self._of[node_id] = machine
        return machine
