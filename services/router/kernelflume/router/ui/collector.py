"""One collector for all who look at the page: it looks at the cluster only while somebody looks at it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import OverloadedError, UnavailableError
from kernelflume.router.ui.history import History
from kernelflume.router.ui.sight import Sight
from kernelflume.router.ui.state import (
    attention_section,
    cluster_section,
    event_section,
    latency_section,
    sequence_section,
    weight_section,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from kernelflume.router.latencies import RecentLatencies
    from kernelflume.router.ui.sight import SightReader
    from kernelflume.runtime.clock import Clock

logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
"""Between two looks: at most two updates a second reach a viewer."""
_LOOKS_A_SCALER_CALL = 4
"""The scaler is asked at every fourth look: it reads all of the store for each answer."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the state, and which version of it this is."""

    version: int
    text: str
    """JSON."""


class Collector:
    """Keeps the state by sections while there are viewers. Used in one event loop."""

    def __init__(
        self,
        reader: SightReader,
        *,
        first_token: RecentLatencies,
        between_tokens: RecentLatencies,
        model: str,
        version: str,
        max_viewers: int,
        clock: Clock,
        wall_time: Callable[[], float] = time.time,
    ) -> None:
        """Make a collector that does nothing yet.

        Args:
            reader: looks at the cluster.
            first_token: times to first tokens.
            between_tokens: times between tokens.
            model: name that the model is served under.
            version: of the router.
            max_viewers: viewers at once; one more is refused.
            clock: for the age of what is known.
            wall_time: Unix time in seconds, for what people read.
        """
        self._reader = reader
        self._first_token = first_token
        self._between_tokens = between_tokens
        self._model = model
        self._version = version
        self._max_viewers = max_viewers
        self._clock = clock
        self._wall_time = wall_time
        self._sight = Sight()
        self._history = History()
        self._sections: dict[str, Section] = {}
        self._num_viewers = 0
        self._num_looks = 0
        self._looked_at = -INTERVAL_S
        self._looking = asyncio.Lock()
        self._looked = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def num_viewers(self) -> int:
        """Viewers at present."""
        return self._num_viewers

    @property
    def num_looks(self) -> int:
        """Times that the cluster was looked at."""
        return self._num_looks

    async def state(self) -> dict[str, Any]:
        """Return the whole state, at most ``INTERVAL_S`` old.

        Raises:
            UnavailableError: the store cannot be reached, so that nobody knows the nodes.
        """
        if self._task is None or not self._sections:
            await self._look(with_scaler=True)
        if self._sight.store_fault:
            raise UnavailableError(self._sight.store_fault)
        return {"time": round(self._wall_time(), 3)} | {
            name: json.loads(section.text) for name, section in self._sections.items()
        }

    def enter(self) -> None:
        """Count a viewer; ``watch`` or ``leave`` must follow.

        Raises:
            OverloadedError: there are too many.
            UnavailableError: the router is shutting down.
        """
        if self._closed:
            raise UnavailableError("the router is shutting down")
        if self._num_viewers >= self._max_viewers:
            raise OverloadedError(
                f"{self._num_viewers} viewers look at this page already, the most that ui-max-viewers allows",
                retry_after_s=5.0,
            )
        self._num_viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def watch(self) -> AsyncGenerator[tuple[float, Mapping[str, str]]]:
        """Yield the Unix time and the sections that are new, as JSON by their names, after every look.

        A viewer that is slow gets the newest state when it is back; nothing is queued for it.
        """
        seen: dict[str, int] = {}
        num_looks = -1
        while not self._closed:
            if num_looks != self._num_looks:
                num_looks = self._num_looks
                news = {
                    name: section.text
                    for name, section in self._sections.items()
                    if seen.get(name) != section.version
                }
                seen = {name: section.version for name, section in self._sections.items()}
                if seen:
                    yield self._wall_time(), news
                    continue
            async with self._looked:
                if num_looks == self._num_looks and not self._closed:
                    await self._looked.wait()

    def leave(self) -> None:
        """Count a viewer no more; the last one ends the looking."""
        self._num_viewers -= 1
        if not self._num_viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """End every viewer's stream, and look no more."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with self._looked:
            self._looked.notify_all()
        await self._reader.close()

    async def _run(self) -> None:
        self._history.resume(at=self._wall_time())
        while True:
            try:
                await self._look(with_scaler=self._num_looks % _LOOKS_A_SCALER_CALL == 0)
            except Exception:
                # Viewers wait for the next look: the loop must outlive whatever one look ran into.
                logger.exception("looking at the cluster for the live page failed")
            await asyncio.sleep(INTERVAL_S)

    async def _look(self, *, with_scaler: bool) -> None:
        """Look at the cluster, unless that was just done."""
        async with self._looking:
            if self._clock.now() - self._looked_at < INTERVAL_S / 2:
                return
            before = self._sight
            sight = await self._reader.read(before, with_scaler=with_scaler)
            self._looked_at = self._clock.now()
            self._history.note(before, sight, at=self._wall_time())
            self._sight = sight
            self._num_looks += 1
            self._write()
        async with self._looked:
            self._looked.notify_all()

    def _write(self) -> None:
        sight = self._sight
        sections = {
            "cluster": cluster_section(sight, model=self._model, version=self._version),
            "attention": attention_section(sight),
            "weight": weight_section(sight),
            "sequences": sequence_section(sight),
            "latency": latency_section(self._first_token, self._between_tokens),
            "events": event_section(self._history.events(), sight.topology),
        }
        for name, fields in sections.items():
            text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
            known = self._sections.get(name)
            if known is None or known.text != text:
                self._sections[name] = Section(self._num_looks, text)
