"""The number of attention nodes that a person asked for, kept in the store for the next scaler."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.scaler.policy import PolicyState
    from kernelflume.scaler.table import Table
    from kernelflume.store.base import SettingStore

logger = logging.getLogger(__name__)

_NAME = "held_attention_nodes"
_MAX_DIGITS = 6
"""Of a number of nodes."""


class HeldNumber:
    """Owner of the setting; an empty text stands for none. Used by the controller and the succession."""

    def __init__(self, store: SettingStore, table: Table) -> None:
        self._store = store
        self._table = table
        self.text = ""
        """The number, where the store has a usable one."""
        self._stored = ""

    async def recall(self) -> None:
        """Read what an earlier scaler kept.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        text = await self._store.read_setting(_NAME) or ""
        if text and not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
            logger.warning("the number of nodes kept in the store cannot be used: %.50r", text)
            self.text, self._stored = "", text  # to be written over
            return
        self.text = self._stored = text

    async def follow(self, state: PolicyState) -> None:
        """Keep the number that holds now, if it has changed.

        Raises:
            UnavailableError: the store cannot be reached.
            ConflictError: another scaler leads.
        """
        held = "" if state.manual_since_s is None or state.target is None else str(state.target)
        await self.put(held)

    async def put(self, text: str) -> None:
        """Keep a number; see ``follow``."""
        if text != self._stored:
            await self._store.write_setting(_NAME, text, fencing_token=self._table.fencing_token)
        self.text = self._stored = text
