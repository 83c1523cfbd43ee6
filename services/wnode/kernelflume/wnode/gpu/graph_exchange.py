"""The seam of the two paths: how a captured step's rows reach the attention nodes, and partials come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kernelflume.wnode.gpu.program import AttentionStage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import torch

    from kernelflume.cuda.status import Failure
    from kernelflume.wnode.gpu.lane_end import LaneEnd
    from kernelflume.wnode.gpu.lane_routes import LaneRoutes
    from kernelflume.wnode.link import Link


class ExchangeStage(AttentionStage, Protocol):
    """One lane's stage, whose routes can be replaced between two steps."""

    def upload(self, memory: np.ndarray) -> None:
        """Replace the tables, in stream order; ``memory`` as ``RowTables.empty`` returns it."""
        ...


class GraphExchange(Protocol):
    """Owned by the step loop's thread, except for ``make_end``."""

    @property
    def stages(self) -> Sequence[ExchangeStage]:
        """A stage for each lane, to capture the step with."""
        ...

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """The stream that steps must be launched on; None: any."""
        ...

    @property
    def needs_host(self) -> bool:
        """True when a launched step goes on only by ``turn``: nothing may hold the host up meanwhile."""
        ...

    def make_end(self) -> LaneEnd:
        """Return this side of a new link's lanes; called by the thread that prepares links."""
        ...

    def begin(self, step: int, routes: Sequence[LaneRoutes], links: Mapping[str, Link]) -> None:
        """Prepare a step of the lanes that ``routes`` are for, before it is announced.

        Raises:
            PeerLostError: a node is gone.
        """
        ...

    def turn(self) -> bool:
        """Do what is due while a launched step runs; True when nothing more will be.

        Raises:
            PeerLostError: a node is gone or did not answer.
            UnavailableError: this node's own graph does not go on.
        """
        ...

    def abort(self) -> None:
        """Have every wait of the step, under way or to come, give up, so that its graph ends."""
        ...

    @property
    def failure(self) -> Failure | None:
        """The wait that failed on the device in a step that ended, or None."""
        ...

    def reset(self) -> None:
        """Forget a step that was given up, once its graph has ended."""
        ...
