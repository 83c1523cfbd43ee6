"""Where to put one more node so that few are lost with one machine. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def least_used(
    machines: Mapping[str, Mapping[str, float]],
    demands: Mapping[str, float],
    placed: Collection[str],
    others: Collection[str] = (),
) -> str | None:
    """Return the machine with the fewest nodes of this kind, then of ours at all, that has room for one more.

    Args:
        machines: machine -> all that it has of each resource; what strangers use of it is not known.
        demands: what the node needs of each resource; those that are placed are taken to need as much.
        placed: the machine of each node of its kind that is there, once a node.
        others: the machines of our nodes of another kind, likewise.

    Returns:
        None if no machine has room.
    """
    same = Counter(placed)
    ours = Counter([*placed, *others])

    def has_room(machine: str) -> bool:
        return all(
            (ours[machine] + 1) * amount <= machines[machine].get(name, 0.0)
            for name, amount in demands.items()
        )

    def order(machine: str) -> tuple[int, int, str]:
        return same[machine], ours[machine], machine

    return min(filter(has_room, machines), key=order, default=None)
