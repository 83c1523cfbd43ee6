"""Whether this node can have lanes that captured graphs exchange through, and how they are made."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kernelflume.anode.gpu.device_pages import DevicePages
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.regions import DeviceLanes, LanePath
from kernelflume.cuda.requirements import EXCHANGE_PACKAGES, flashinfer_limit, missing_packages

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.anode.gpu.graph_link import GraphLink
    from kernelflume.anode.kvpool import KvPool
    from kernelflume.transport.nixl import NixlTransport

logger = logging.getLogger(__name__)

_NEEDED = {"flashinfer": "flashinfer-python", **EXCHANGE_PACKAGES}


def device_link_opener(
    pool: KvPool, transport: NixlTransport
) -> Callable[[DeviceLanes], GraphLink | None] | None:
    """Return what makes such lanes for a weight node, or None where the posted path serves alone."""
    pages = pool.storage
    if not isinstance(pages, DevicePages):
        return None
    missing = missing_packages(_NEEDED)
    if missing:
        logger.warning("no device path: %s missing; install kernelflume[gpu]", ", ".join(missing))
        return None
    if reason := flashinfer_limit(pages.geometry):
        logger.info("no device path: FlashInfer %s", reason)
        return None
    from kernelflume.anode.gpu.device_link import DeviceLink  # noqa: PLC0415 - needs what was looked for above
    from kernelflume.anode.gpu.host_link import HostLink  # noqa: PLC0415 - as above

    def open_link(offer: DeviceLanes) -> GraphLink | None:
        if offer.path not in tuple(LanePath):
            logger.warning("no lanes for the %s path of a weight node: it posts its decode steps", offer.path)
            return None
        try:
            if offer.path == LanePath.HOST:
                return HostLink(offer, pages, transport)
            return DeviceLink(offer, pages, transport)
        except ConfigurationError as error:  # no compiler here, say: the posted path needs none
            logger.warning("no device path: %s", error)
            return None

    return open_link
