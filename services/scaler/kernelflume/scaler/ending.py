"""Ending attention nodes through the provider, whatever that does: it may raise, and it may hang."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelflume.scaler.actors import Actors

logger = logging.getLogger(__name__)


async def end_nodes(actors: Actors, node_ids: Iterable[str]) -> None:
    """Terminate nodes side by side. They are out of the table, so none of them may hold an operation up."""
    await asyncio.gather(*(_end_node(actors, node_id) for node_id in node_ids))


async def _end_node(actors: Actors, node_id: str) -> None:
    bound_s = actors.terminate_grace_s + actors.terminate_margin_s
    try:
        async with asyncio.timeout(bound_s):
            await actors.provider.terminate(node_id, grace_s=actors.terminate_grace_s)
    except TimeoutError:
        logger.warning("attention node %s: the provider has not ended it within %g s", node_id, bound_s)
    except Exception:
        logger.exception("attention node %s: the provider failed to end it", node_id)
