"""The host path of the paper: graphs signal, this thread looks routes up and posts (sections 4.1 and 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import PeerLostError, UnavailableError
from kernelflume.cuda.exchange import ExchangeKernels
from kernelflume.cuda.flags import FlagKind, StepFlags
from kernelflume.cuda.memops import StreamMemops
from kernelflume.runtime.clock import Deadline
from kernelflume.tensor.device import architecture
from kernelflume.wnode.gpu.device_stage import QueryFirst
from kernelflume.wnode.gpu.host_drive import LaneDrive, LanePeer, Wait
from kernelflume.wnode.gpu.host_end import HostEnd
from kernelflume.wnode.gpu.host_stage import HostStage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernelflume.cuda.status import Failure
    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.base import Transport
    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.wnode.gpu.lane import LaneBuffers
    from kernelflume.wnode.gpu.lane_routes import LaneRoutes
    from kernelflume.wnode.link import Link


@dataclass(frozen=True, slots=True)
class HostPeer:
    """See ``LanePeer``."""

    name: str
    end: HostEnd
    lane: int
    step: int
    num_query_rows: int
    num_kv_rows: int
    launched: Callable[[int], bool]
    """Tells whether the node has answered a step."""

    @property
    def asks(self) -> bool:
        """It gets queries."""
        return self.num_query_rows > 0

    @property
    def stores(self) -> bool:
        """It gets keys and values."""
        return self.num_kv_rows > 0

    @property
    def has_launched(self) -> bool:
        """It has answered the step."""
        return self.launched(self.step)

    def post_query(self, layer: int) -> None:
        """Send the gathered queries."""
        self.end.post_query(self.lane, step=self.step, layer=layer, num_rows=self.num_query_rows)

    def post_keys_values(self, layer: int) -> None:
        """Send the gathered keys and values."""
        self.end.post_keys_values(self.lane, step=self.step, layer=layer, num_rows=self.num_kv_rows)

    def has_partial(self, layer: int) -> bool:
        """A layer's partial is here."""
        return self.end.has_partial(self.lane, step=self.step, layer=layer)


class LaneDrives:
    """All lanes of the step under way, with a deadline for every wait. It knows no GPU."""

    def __init__(self, flags: Sequence[StepFlags], clock: Clock, *, timeout_s: float) -> None:
        self._flags = flags
        self._clock = clock
        self._timeout_s = timeout_s
        self._drives: list[LaneDrive] = []
        self._waits: list[Wait | None] = []
        self._deadline = Deadline(clock, timeout_s)

    def begin(self, peers: Mapping[int, Sequence[LanePeer]], *, num_layers: int, in_layer: bool) -> None:
        """Clear all flags and begin a step of the lanes named, each with the nodes that take part."""
        for flags in self._flags:
            flags.clear()
        self._drives = [
            LaneDrive(self._flags[lane], nodes, num_layers=num_layers, in_layer=in_layer)
            for lane, nodes in peers.items()
        ]
        self._waits = []
        self._deadline = Deadline(self._clock, self._timeout_s)

    def turn(self) -> bool:
        """Do what is due in every lane; True when nothing is left.

        Raises:
            PeerLostError: a node is gone, or did not answer in time.
            UnavailableError: the graph did not go on in time; it may be waiting still, until ``abort``.
        """
        self._drives = [drive for drive in self._drives if not drive.turn()]
        if not self._drives:
            return True
        waits = [drive.waits_for for drive in self._drives]
        if waits != self._waits:
            self._waits = waits
            self._deadline = Deadline(self._clock, self._timeout_s)
        elif self._deadline.expired:
            self._give_up(waits)
        return False

    def abort(self) -> None:
        """Set every flag that the graph may wait for, now or later, and post nothing more."""
        self._drives = []
        for flags in self._flags:
            flags.set_all(FlagKind.ATTENTION)

    def _give_up(self, waits: Sequence[Wait | None]) -> None:
        # A node that does not answer holds up the graph, never the other way round.
        wait = next((wait for wait in waits if wait is not None and wait.peer), waits[0])
        assert wait is not None  # noqa: S101 - those are the lanes that have something left
        what = f"{wait.what} of layer {wait.layer} within {self._timeout_s:g} s"
        if wait.peer:
            raise PeerLostError(wait.peer, f"no {what}")
        raise UnavailableError(f"host path: the weight node's own graph gave no {what}")


class HostExchange:
    """See ``GraphExchange``."""

    needs_host = True
    failure: Failure | None = None
    """No wait fails on the device: ``turn`` does."""

    def __init__(
        self,
        lanes: Sequence[LaneBuffers],
        layout: LaneLayout,
        *,
        query_first: QueryFirst,
        transport: Transport,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        """Build the kernels and allocate the flags.

        Raises:
            ConfigurationError: the kernels cannot be built or run here.
        """
        device = lanes[0].query.device
        self._device = device
        self._layout = layout
        self._query_first = query_first
        self._transport = transport
        self._clock = clock
        self._timeout_s = timeout_s
        self._num_lanes = len(lanes)
        flags = [StepFlags(layout.geometry.num_layers) for _ in lanes]
        self._drives = LaneDrives(flags, clock, timeout_s=timeout_s)
        kernels = ExchangeKernels(layout.geometry, architecture=architecture(device), timeout_s=timeout_s)
        memops = StreamMemops()
        self.stages = [
            HostStage.create(kernels, memops, lane, lane_flags, mode=query_first)
            for lane, lane_flags in zip(lanes, flags, strict=True)
        ]
        # Never the default stream: whatever another thread does there would wait for the step.
        self.stream = torch.cuda.Stream(device)

    def make_end(self) -> HostEnd:
        """Allocate and register a link's lanes."""
        return HostEnd(
            self._layout,
            num_lanes=self._num_lanes,
            query_first=self._query_first,
            transport=self._transport,
            device=self._device,
        )

    def begin(self, step: int, routes: Sequence[LaneRoutes], links: Mapping[str, Link]) -> None:
        """Wait until the last step's writes are done, and clear the flags."""
        peers: dict[int, list[LanePeer]] = {}
        for lane, lane_routes in enumerate(routes):
            peers[lane] = []
            for node_id, share in lane_routes.nodes.items():
                link = links[node_id]
                end = link.device
                if not isinstance(end, HostEnd):
                    raise PeerLostError(link.node_name, "its lanes are not for the host path")
                self._settle(end, link.node_name)
                peers[lane].append(
                    HostPeer(
                        link.node_name,
                        end,
                        lane,
                        step,
                        len(share.query_rows),
                        len(share.kv_rows),
                        link.has_launched,
                    )
                )
        self._drives.begin(
            peers,
            num_layers=self._layout.geometry.num_layers,
            in_layer=self._query_first is not QueryFirst.LOCAL,
        )

    def turn(self) -> bool:
        """Post what is ready and pass on what has arrived."""
        try:
            return self._drives.turn()
        except UnavailableError:
            self.abort()  # or the process could not even end
            raise

    def abort(self) -> None:
        """Release the graph."""
        self._drives.abort()

    def reset(self) -> None:
        """Nothing is left of a step that was given up."""

    def _settle(self, end: HostEnd, name: str) -> None:
        deadline = Deadline(self._clock, self._timeout_s)
        while not end.is_settled():
            if deadline.expired:
                raise PeerLostError(name, f"a write was not taken within {self._timeout_s:g} s")
