"""Attention nodes as processes of this machine that end with the scaler: the embedded default."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.errors import UnavailableError
from kernelflume.runtime.logfile import last_line
from kernelflume.scaler.providers.nodeids import NodeIds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from kernelflume.scaler.providers.starting import NodeProcess, Starter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    process: NodeProcess
    log_path: Path
    log_start: int
    """Size of the log file before this start."""


class ProcessProvider:
    """Has one process and one log file for each node, all of which end with the scaler."""

    adopts = False
    """Each node is started here."""
    reuses_ids = False
    """Numbers count on."""

    def __init__(self, starter: Starter, *, log_dir: Path) -> None:
        """Make a provider without nodes.

        Args:
            starter: starts the processes; owned by this provider from now on.
            log_dir: folder for ``<node id>.log``; made if missing.
        """
        self._starter = starter
        self._log_dir = log_dir
        self._children: dict[str, _Child] = {}
        self._node_ids = NodeIds()

    def victim_order(self, node_ids: Sequence[str]) -> None:
        """Any node can be ended."""

    async def launch(self, taken: Collection[str]) -> str:
        """Start a process under the next node id that was never used."""
        node_id = self._node_ids.next(taken)
        log_path = self._log_dir / f"{node_id}.log"
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as log:
                log_start = log.tell()
                process = await self._starter.start(node_id, log)
        except (OSError, UnavailableError) as error:
            raise UnavailableError(f"attention node {node_id} cannot be started: {error}") from error
        self._children[node_id] = _Child(process=process, log_path=log_path, log_start=log_start)
        logger.info("attention node %s started as process %s, log %s", node_id, process.pid, log_path)
        return node_id

    def ended(self) -> Mapping[str, str]:
        """Return the nodes whose process ended unasked, with its last log line as the reason."""
        return {
            node_id: _describe(child)
            for node_id, child in self._children.items()
            if child.process.exited.done()
        }

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        """Send SIGTERM, after the grace SIGKILL, and wait until the process is gone."""
        child = self._children.get(node_id)
        if child is None:
            return
        child.process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await asyncio.shield(child.process.exited)
        except TimeoutError:
            logger.warning("attention node %s did not end within %g s and is killed", node_id, grace_s)
            child.process.kill()
            await asyncio.shield(child.process.exited)
        self._children.pop(node_id, None)

    async def close(self, *, grace_s: float) -> None:
        """End all processes at the same time."""
        await asyncio.gather(*(self.terminate(node_id, grace_s=grace_s) for node_id in list(self._children)))
        await self._starter.close()


def _describe(child: _Child) -> str:
    code = child.process.exited.result()
    line = last_line(child.log_path, start=child.log_start)
    last = f"; it last logged: {line}" if line else ""
    if code is None:
        said = f"has ended, and the fork server that could tell how is gone{last}"
    elif code < 0:
        # What is killed has no say: the end of its log is news of before, not the reason.
        said = f"was ended by {signal.Signals(-code).name}{last}"
    else:
        said = f"ended with code {code}{f': {line}' if line else ''}"
    return f"{said} (log: {child.log_path})"
