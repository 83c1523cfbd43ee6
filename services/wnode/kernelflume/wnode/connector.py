"""Making links: everything slow about a new attention node, done beside the step loop (paper section 4.1).

Allocation, page faults, registration, connecting and preparing writes run on the engine's command thread.
The step loop only sees links that are complete; a link counts as ready once the node's warming write came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.errors import HandshakeError, KernelFlumeError, NotFoundError
from kernelflume.core.handshake import Handshake
from kernelflume.tensor.device import use_device
from kernelflume.transport.lanes import LaneLayout
from kernelflume.wnode.link import NUM_LANES, Link, LinkBuffers
from kernelflume.wnode.messages import LinkFailed, LinkOffer

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.transport.base import Transport
    from kernelflume.transport.doorbell import Doorbell
    from kernelflume.wnode.gpu.lane_end import LaneEnd
    from kernelflume.wnode.messages import LinkAnswer


class Connector:
    """Opens and completes links; owned by the command thread."""

    def __init__(
        self,
        transport: Transport,
        doorbell: Doorbell,
        geometry: KvGeometry,
        *,
        max_rows: int,
        device: torch.device,
        page_tokens: Callable[[], int],
        device_ends: Callable[[], LaneEnd] | None = None,
        stream_kv_rows: int = 0,
    ) -> None:
        """Make a connector without links.

        Args:
            transport: what links write with.
            doorbell: this node's own.
            geometry: of the model.
            max_rows: most rows of a step.
            device: where buffers lie.
            page_tokens: says how many tokens a page of the linked nodes holds, 0 without a link.
            device_ends: makes this side of the lanes that graphs exchange through, where there are any.
            stream_kv_rows: fewest rows whose keys and values are sent layer by layer; 0 sends none so.
        """
        self._transport = transport
        self._doorbell = doorbell
        self._device = device
        self._page_tokens = page_tokens
        self._device_ends = device_ends
        self._layout = LaneLayout(geometry, max_rows)
        self._handshake = Handshake(node_name=transport.name, geometry=geometry, transport=transport.kind)
        self._stream_kv_rows = stream_kv_rows
        self._opened: dict[str, Link] = {}

    def open(self, node_name: str) -> LinkOffer | LinkFailed:
        """Allocate this side of a link and describe it."""
        use_device(self._device)
        try:
            buffers = LinkBuffers.create(self._layout, self._transport, self._device)
            device_end = self._device_ends() if self._device_ends is not None else None
        except (MemoryError, OSError, KernelFlumeError) as error:
            return LinkFailed(node_name, f"buffers of {self._layout.append_region_bytes} bytes: {error}")
        self._discard(node_name)
        link = Link(
            node_name,
            self._layout,
            buffers,
            self._transport,
            self._doorbell,
            stream_min_rows=self._stream_kv_rows,
            device=device_end,
        )
        self._opened[node_name] = link
        return LinkOffer(
            node_name=node_name,
            handshake=self._handshake,
            metadata=self._transport.metadata(),
            num_lanes=NUM_LANES,
            max_rows=self._layout.max_rows,
            partial_regions=(buffers.partial_region,),
            doorbell_address=self._doorbell.address,
            device_lanes=device_end.lanes if device_end is not None else None,
        )

    def complete(self, node_name: str, answer: LinkAnswer) -> Link | LinkFailed:
        """Check the answer, connect and prepare the writes."""
        link = self._opened.get(node_name)
        try:
            if link is None:
                raise NotFoundError("the link was not opened")
            if answer.handshake.node_name != node_name:
                raise HandshakeError(f"{answer.handshake.node_name} answered instead")
            self._handshake.check(answer.handshake)
            self._check_page_tokens(answer)
            self._check_regions(answer)
            link.connect(answer)
        except KernelFlumeError as error:
            self._discard(node_name)
            return LinkFailed(node_name, str(error))
        return self._opened.pop(node_name, link)

    def _check_page_tokens(self, answer: LinkAnswer) -> None:
        """A page holds one block of one context, which any node may hold: blocks are of one size."""
        theirs, others = answer.page_tokens, self._page_tokens() or answer.page_tokens
        if theirs != others:
            raise HandshakeError(
                f"page_tokens differs: {answer.handshake.node_name} has {theirs}, "
                f"the other attention nodes of {self._handshake.node_name} have {others}"
            )

    def _check_regions(self, answer: LinkAnswer) -> None:
        sizes = (
            [region.num_bytes for region in answer.query_regions],
            [region.num_bytes for region in answer.append_regions],
        )
        wanted = (
            [self._layout.query_region_bytes] * NUM_LANES,
            [self._layout.append_region_bytes] * NUM_LANES,
        )
        if sizes != wanted:
            raise HandshakeError(
                f"lane regions differ: {answer.handshake.node_name} has {sizes}, "
                f"{self._handshake.node_name} needs {wanted}"
            )

    def _discard(self, node_name: str) -> None:
        link = self._opened.pop(node_name, None)
        if link is not None:
            link.close()
