"""From the notice that a step begins to the launch of what answers it."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.anode.gpu.page_table import PageTable
from kernelflume.anode.gpu.work import LaneWork
from kernelflume.anode.kvpool import HeldSequence
from kernelflume.anode.links import StoredStep
from kernelflume.core.errors import HandshakeError, KvPoolExhaustedError
from kernelflume.transport.wire import RowStatus, Step, Stepped

if TYPE_CHECKING:
    from kernelflume.anode.kvpool import KvPool
    from kernelflume.anode.links import Link
    from kernelflume.transport.wire import LaneStep

logger = logging.getLogger(__name__)


def launch_step(link: Link, step: Step, pool: KvPool) -> Stepped:
    """Give what a step stores its slots, plan its attention, and launch both behind waits.

    Args:
        link: the weight node's.
        step: what it announced.
        pool: where the sequences lie.

    Returns:
        The answer: MISMATCH, and nothing was launched, when other tokens are held than planned.

    Raises:
        HandshakeError: the link has no such lanes.
        PeerLostError: a wait of an earlier step failed.
    """
    device = link.device
    if device is None or not device.is_open or len(step.lanes) > device.num_lanes:
        raise HandshakeError(f"a step of {len(step.lanes)} lanes, which the link does not have")
    device.check()
    failed: dict[int, None] = {}
    work = []
    for lane in step.lanes:
        if max(len(lane.plan), len(lane.entries)) > device.layout.max_rows:
            raise HandshakeError(f"a step of more than {device.layout.max_rows} rows")
        _own_last_pages(link, lane, pool)
        if device.files_in_layer:
            # Keys and values that come in every layer are part of the step's attention.
            slots = _take_slots(link, lane, pool, failed)
            new = frozenset(lane.entries["sequence"].tolist()) - failed.keys()
            table = _planned(link, step, lane, pool.page_tokens, failed, new=new)
        else:
            table = _planned(link, step, lane, pool.page_tokens, failed, new=frozenset())
            slots = _take_slots(link, lane, pool, failed) if table is not None else np.empty(0, np.int64)
        if table is None:
            return Stepped(step.step, RowStatus.MISMATCH, pool.num_free_pages)
        work.append(LaneWork(table, slots))
    device.launch(work, step.step)
    stored = {
        sequence_id: position
        for lane in step.lanes
        for sequence_id, _, position in lane.entries.tolist()
        if sequence_id not in failed
    }
    link.stored.append(StoredStep(step.step, stored))
    return Stepped(step.step, RowStatus.OK, pool.num_free_pages, tuple(failed))


def retract_step(link: Link, step: int, pool: KvPool) -> None:
    """Forget the tokens that a step which was given up has stored; later steps must be forgotten before."""
    if not link.stored or link.stored[-1].number != step:
        return  # it was not launched here
    for sequence_id in link.stored.pop().positions:
        sequence = link.sequences.get(sequence_id)
        if sequence is not None:
            pool.retract(sequence)
            if not sequence.num_tokens:  # it may come back, but its weight node would not free it here
                del link.sequences[sequence_id]


def _own_last_pages(link: Link, lane: LaneStep, pool: KvPool) -> None:
    """Copy the pages that what is stored would be the first to copy: the step is to read the copies.

    The others that hold such a page may end while the step is under way, and another sequence write there.
    Copies wait for no step: those under way may need other nodes, which wait here for a step of this one.
    """
    for sequence_id, _, _ in lane.entries.tolist():
        sequence = link.sequences.get(sequence_id)
        if sequence is not None and pool.must_copy(sequence):
            with suppress(KvPoolExhaustedError):  # its row finds no slot either, and is told to have failed
                pool.own_last(sequence)


def _planned(
    link: Link,
    step: Step,
    lane: LaneStep,
    page_tokens: int,
    failed: dict[int, None],
    *,
    new: frozenset[int],
) -> PageTable | None:
    """Say where the planned sequences lie; None when other tokens are held than planned.

    ``new`` names those that a token of this very step was added to, which the plan does not count. Adds the
    sequences that have ended here to those that failed.
    """
    sequences = []
    for sequence_id, _, num_planned in lane.plan.tolist():
        sequence = link.sequences.get(sequence_id)
        if sequence is None and link.has_ended(sequence_id):
            # The step was announced before its weight node heard that a token found no page here. The row
            # attends to nothing, and the answer says so: its weight node makes nothing of it.
            failed[sequence_id] = None
            sequences.append(HeldSequence())
            continue
        num_held = sequence.num_tokens - (sequence_id in new) if sequence is not None else 0
        if sequence is None or num_held != num_planned:
            logger.warning(
                "%s plans %d tokens of sequence %d in step %d; %d are held",
                link.weight_node, num_planned, sequence_id, step.step, num_held,
            )  # fmt: skip
            return None
        sequences.append(sequence)
    return PageTable.of(sequences, page_tokens)


def _take_slots(link: Link, lane: LaneStep, pool: KvPool, failed: dict[int, None]) -> np.ndarray:
    """Give every stored row a slot, -1 where there is none; adds the sequences that failed."""
    slots = np.full(len(lane.entries), -1, np.int64)
    for row, (sequence_id, _, start) in enumerate(lane.entries.tolist()):
        slot = link.take_slot(sequence_id, start, pool)
        if slot is None:
            failed[sequence_id] = None
        else:
            slots[row] = slot
    return slots
