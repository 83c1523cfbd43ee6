"""Whether this node can have lanes that kernels exchange through, and how they are made."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kernelflume.anode.gpu.device_pages import DevicePages
from kernelflume.core.errors import ConfigurationError
from kernelflume.cuda.requirements import EXCHANGE_PACKAGES, flashinfer_limit, missing_packages

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.anode.gpu.device_link import DeviceLink
    from kernelflume.anode.kvpool import KvPool
    from kernelflume.core.regions import DeviceLanes
    from kernelflume.transport.nixl import NixlTransport

logger = logging.getLogger(__name__)

_NEEDED = {"flashinfer": "flashinfer-python", **EXCHANGE_PACKAGES}


def device_link_opener(
    pool: KvPool, transport: NixlTransport
) -> Callable[[DeviceLanes], DeviceLink | None] | None:
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

    def open_link(offer: DeviceLanes) -> DeviceLink | None:
        try:
            return DeviceLink(offer, pages, transport)
        except ConfigurationError as error:  # no compiler here, say: the posted path needs none
            logger.warning("no device path: %s", error)
            return None

    return open_link
