"""What a step asks of one lane of an attention node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelflume.anode.gpu.page_table import PageTable


class LaneWork(NamedTuple):
    """One lane's share of a step."""

    table: PageTable
    """Pages of each row that asks; empty where none does."""
    slots: np.ndarray
    """int64 [rows stored]: the pool's slot of each, -1 for one that is dropped."""


NO_WORK = LaneWork(PageTable.none(), np.empty(0, np.int64))
