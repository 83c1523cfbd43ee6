"""Ids of nodes that a provider names itself: a-1, a-2, ... and no number twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_NODE_ID = re.compile(r"a-(\d+)")


class NodeIds:
    """Counts on: routes and log lines that name a node mean one start of it only."""

    def __init__(self) -> None:
        self._last_number = 0

    def next(self, taken: Collection[str]) -> str:
        """Return an id above all of ``taken`` and all that were returned before."""
        numbers = (int(match[1]) for name in taken if (match := _NODE_ID.fullmatch(name)))
        self._last_number = max(self._last_number, *numbers, 0) + 1
        return f"a-{self._last_number}"
