"""The device path: the graph's own kernels exchange, and the CPU only says who takes part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.cuda.exchange import ExchangeKernels
from kernelflume.cuda.status import StatusWord
from kernelflume.tensor.device import architecture
from kernelflume.transport.memory import register
from kernelflume.wnode.gpu.device_end import DeviceEnd
from kernelflume.wnode.gpu.device_stage import DeviceStage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.cuda.status import Failure
    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.transport.nixl import NixlTransport
    from kernelflume.wnode.gpu.device_stage import QueryFirst
    from kernelflume.wnode.gpu.lane import LaneBuffers
    from kernelflume.wnode.gpu.lane_routes import LaneRoutes
    from kernelflume.wnode.link import Link


class DeviceExchange:
    """See ``GraphExchange``. Nothing is left to the CPU while a step runs."""

    stream = None

    def __init__(
        self,
        lanes: Sequence[LaneBuffers],
        layout: LaneLayout,
        *,
        query_first: QueryFirst,
        transport: NixlTransport,
        timeout_s: float,
    ) -> None:
        """Build the kernels and register the lanes.

        Raises:
            ConfigurationError: the kernels cannot be built or run here.
            UnavailableError: there are no transfers here that a kernel can start.
        """
        self._layout = layout
        self._query_first = query_first
        self._transport = transport
        self._device = device = lanes[0].query.device
        self._num_lanes = len(lanes)
        self._status = StatusWord(device)
        kernels = ExchangeKernels(layout.geometry, architecture=architecture(device), timeout_s=timeout_s)
        self.stages = [
            DeviceStage.create(
                kernels,
                lane,
                layout,
                mode=query_first,
                views=(
                    transport.local_view(register(transport, lane.query)),
                    transport.local_view(register(transport, lane.keys_values)),
                ),
                status=self._status.address,
            )
            for lane in lanes
        ]

    needs_host = False

    @property
    def failure(self) -> Failure | None:
        """The wait that failed first."""
        return self._status.failure

    def make_end(self) -> DeviceEnd:
        """Allocate and register a link's lanes."""
        return DeviceEnd(
            self._layout,
            num_lanes=self._num_lanes,
            query_first=self._query_first,
            transport=self._transport,
            device=self._device,
        )

    def begin(self, step: int, routes: Sequence[LaneRoutes], links: Mapping[str, Link]) -> None:
        """Nothing: counters only rise."""

    def turn(self) -> bool:
        """Nothing is due."""
        return True

    def abort(self) -> None:
        """Make waiting kernels give up."""
        self._status.abort()

    def reset(self) -> None:
        """Let kernels wait again."""
        self._status.reset()
