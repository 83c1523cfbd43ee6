"""Where to put one more node so that few are lost with one machine. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def least_used(
    machines: Mapping[str, Mapping[str, float]], demands: Mapping[str, float], placed: Collection[str]
) -> str | None:
    """Return the machine with the fewest nodes of ours that has room for one more, or None if none has.

    Args:
        machines: machine -> all that it has of each resource; what others use of it is not known.
        demands: what each node needs of each resource.
        placed: the machine of each node that is there, once a node.
    """
    counts = Counter(placed)

    def has_room(machine: str) -> bool:
        return all(
            (counts[machine] + 1) * amount <= machines[machine].get(name, 0.0)
            for name, amount in demands.items()
        )

    return min(filter(has_room, machines), key=lambda machine: (counts[machine], machine), default=None)
