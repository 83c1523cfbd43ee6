"""The seam between the scaler and whatever starts attention nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Provider(Protocol):
    """Starts and ends attention nodes. The scaler calls it from its event loop.

    A launched node is ready once it holds its lease and answers SERVING: the provider only has to get it
    going, and to tell when it ended unasked.
    """

    @property
    def adopts(self) -> bool:
        """True when others start the nodes and ``launch`` only picks one of those that are there."""
        ...

    @property
    def reuses_ids(self) -> bool:
        """True when the id of a node that has ended may be given to a later one.

        Such a provider waits by itself until nothing of the earlier node is left.
        """
        ...

    def victim_order(self, node_ids: Sequence[str]) -> Sequence[str] | None:
        """Return ``node_ids`` in the order in which they can be ended, or None where any can be next."""
        ...

    async def launch(self, taken: Collection[str]) -> str:
        """Start one more node, with an id that is not in ``taken``, and return its id.

        May wait for a node to come; the caller has a deadline.

        Raises:
            UnavailableError: it cannot be started.
        """
        ...

    def ended(self) -> Mapping[str, str]:
        """Return the nodes that ended unasked, until ``terminate`` is called for them: node id -> how."""
        ...

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        """Ask a node to end, make it end after ``grace_s`` seconds, and return once it is gone.

        A node that is not this provider's, or has ended, is no error. Nor is one that cannot be ended now:
        the provider logs it, for the node is out of the routing table in any case.
        """
        ...

    async def close(self, *, grace_s: float) -> None:
        """Terminate every node that ends with the scaler, let go of the others; no other call may follow."""
        ...
