"""One step's exchange with the attention nodes: queries out, partials in, keys and values out.

Paper sections 3.2 and 5.1 for one layer: ``dispatch_query`` as soon as queries exist, ``collect_partials``
and merge once the local work is done; keys and values leave off the critical path, those of many rows by
``stream_kv`` while the next layers are computed, the rest by ``dispatch_kv`` once a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.core.errors import PeerLostError
from kernelflume.tensor.partials import Partial, merge_into
from kernelflume.transport.memory import settle
from kernelflume.transport.wire import APPEND_DTYPE, PLAN_DTYPE

if TYPE_CHECKING:
    from kernelflume.wnode.batch import StepBatch
    from kernelflume.wnode.link import Link
    from kernelflume.wnode.links import LinkTable


@dataclass(slots=True)
class _Reader:
    """An attention node that holds earlier tokens of some rows."""

    link: Link
    plan: np.ndarray
    """[num_sequences] of PLAN_DTYPE"""
    num_rows: int
    rows: slice | torch.Tensor
    """Where the rows lie in the step: side by side, or [num_rows] int64."""
    staging: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


@dataclass(slots=True)
class _Writer:
    """An attention node that stores the keys and values of some rows."""

    link: Link
    entries: np.ndarray
    """[num_sequences] of APPEND_DTYPE"""
    num_rows: int
    rows: slice | torch.Tensor
    num_pages: int
    slot: int | None = None
    """The append slot, once one was free."""
    num_streamed: int = 0
    """Layers that were sent."""
    loss: PeerLostError | None = None
    """Why the node cannot take them."""


class StepExchange:
    """Planned once a step, then executed layer by layer. Raises ``PeerLostError`` when a node is gone."""

    def __init__(self, batch: StepBatch, links: LinkTable, step: int, device: torch.device) -> None:
        self._links = links
        self._step = step
        self._readers = _plan_readers(batch, links, device)
        self._writers = _plan_writers(batch, links, device)

    @property
    def streams_kv(self) -> bool:
        """True when keys and values of this step go layer by layer, to some node at least."""
        return any(writer.link.stream.takes(writer.num_rows) for writer in self._writers)

    @property
    def has_readers(self) -> bool:
        """True when attention nodes compute between ``dispatch_query`` and ``collect_partials``."""
        return bool(self._readers)

    def dispatch_query(self, layer: int, query: torch.Tensor) -> None:
        """Send each node the queries of the rows it holds tokens of.

        Args:
            layer: the layer.
            query: [num_rows, num_query_heads, head_dim], RoPE applied.
        """
        for reader in self._readers:
            if isinstance(reader.rows, slice):
                reader.staging.copy_(query[reader.rows])
            else:
                torch.index_select(query, 0, reader.rows, out=reader.staging)
            settle(query.device)
            reader.link.post_query(layer, self._step, reader.num_rows, reader.plan if layer == 0 else None)

    def collect_partials(self, layer: int, own: Partial) -> torch.Tensor:
        """Wait for every node's partial and merge it into the rows' own.

        Args:
            layer: the layer.
            own: the self-partial, changed in place.

        Returns:
            [num_rows, num_query_heads, head_dim], the attention over all tokens of each row's sequence.
        """
        if self._readers:
            self._links.wait_until(lambda: not self._missing(layer), lambda: self._missing(layer))
        for reader in self._readers:
            out, lse = own.out[reader.rows], own.lse[reader.rows]
            merge_into(out, lse, reader.out, reader.lse)
            if not isinstance(reader.rows, slice):  # gathered: put them back
                own.out[reader.rows] = out
                own.lse[reader.rows] = lse
        return own.out

    def stream_kv(self, layer: int, keys_values: torch.Tensor) -> None:
        """Send a layer's keys and values on their way, to the nodes that store many rows.

        They count for nothing until ``dispatch_kv``: a step that is given up leaves no trace.

        Args:
            layer: the newest layer whose keys and values are there.
            keys_values: [num_layers, num_rows, 2, num_kv_heads, head_dim]
        """
        for writer in self._writers:
            if writer.loss is None and writer.link.stream.takes(writer.num_rows):
                try:
                    self._stream(writer, keys_values, layer + 1)
                except PeerLostError as error:
                    writer.loss = error

    def dispatch_kv(self, keys_values: torch.Tensor) -> list[PeerLostError]:
        """Send each node the keys and values it stores and does not have yet, and have it file them.

        A node that is gone does not keep the others from theirs: the step stands, and only sequences with
        ranges on that node are recomputed.

        Args:
            keys_values: [num_layers, num_rows, 2, num_kv_heads, head_dim]

        Returns:
            The nodes that were lost.
        """
        lost: list[PeerLostError] = []
        for writer in self._writers:
            try:
                self._write(writer, keys_values)
            except PeerLostError as error:
                lost.append(error)
        return lost

    def _stream(self, writer: _Writer, keys_values: torch.Tensor, num_layers: int) -> None:
        """Send the layers up to ``num_layers`` that were not sent, unless all slots are under way."""
        link = writer.link
        if writer.slot is None:
            writer.slot = link.free_slot()
            if writer.slot is None:
                return
        staging = link.append_staging(writer.slot, writer.num_rows)
        layout = link.layout
        layer_bytes = layout.append_layer_bytes(layout.bucket_rows(writer.num_rows))
        for layer in range(writer.num_streamed, num_layers):
            staging[layer].copy_(keys_values[layer, writer.rows])
            link.post_layer(writer.slot, layer, writer.num_rows)
            self._links.kv_traffic.layer_bytes += layer_bytes
        writer.num_streamed = num_layers

    def _write(self, writer: _Writer, keys_values: torch.Tensor) -> None:
        link = writer.link
        if writer.loss is not None:
            raise writer.loss
        if writer.slot is None:
            self._links.wait_until(lambda: link.free_slot() is not None, lambda: [link])
            writer.slot = link.free_slot()
        slot = writer.slot
        assert slot is not None  # noqa: S101 - just waited for
        if link.stream.takes(writer.num_rows):
            self._stream(writer, keys_values, len(keys_values))
            self._links.wait_until(lambda: link.stream.is_done(slot), lambda: [link])
            link.tell_append(slot, writer.num_rows, writer.entries, writer.num_pages)
            return
        staging = link.append_staging(slot, writer.num_rows)
        staging.copy_(keys_values[:, writer.rows])
        settle(staging.device)
        link.post_append(slot, writer.num_rows, writer.entries, writer.num_pages)
        self._links.kv_traffic.step_bytes += link.layout.append_bytes(
            link.layout.bucket_rows(writer.num_rows)
        )

    def _missing(self, layer: int) -> list[Link]:
        return [reader.link for reader in self._readers if not reader.link.has_partial(layer, self._step)]


def _need(links: LinkTable, node_id: str) -> Link:
    link = links.of_node(node_id)
    if link is None:
        raise PeerLostError(node_id, "not connected")
    return link


def _plan_readers(batch: StepBatch, links: LinkTable, device: torch.device) -> list[_Reader]:
    plans: dict[str, list[tuple[int, int, int]]] = {}
    rows: dict[str, list[int]] = {}
    first = 0
    for chunk in batch.chunks:
        route = chunk.route
        for node_id in route.node_ids:
            num_held = route.num_tokens_on(node_id)
            if num_held:
                plans.setdefault(node_id, []).append((chunk.sequence.sequence_id, chunk.num_rows, num_held))
                rows.setdefault(node_id, []).extend(range(first, first + chunk.num_rows))
        first += chunk.num_rows
    readers = []
    for node_id, plan in plans.items():
        link = _need(links, node_id)
        num_rows = len(rows[node_id])
        out, lse = link.partial_views(num_rows)
        readers.append(
            _Reader(
                link,
                np.array(plan, PLAN_DTYPE),
                num_rows,
                _row_index(rows[node_id], device),
                link.query_staging(num_rows),
                out,
                lse,
            )
        )
    return readers


def _plan_writers(batch: StepBatch, links: LinkTable, device: torch.device) -> list[_Writer]:
    entries: dict[str, list[tuple[int, int, int]]] = {}
    rows: dict[str, list[int]] = {}
    pages: dict[str, int] = {}
    row = 0
    for chunk in batch.chunks:
        position = chunk.start
        for write in chunk.writes:
            entries.setdefault(write.node_id, []).append(
                (chunk.sequence.sequence_id, write.num_rows, position)
            )
            rows.setdefault(write.node_id, []).extend(range(row, row + write.num_rows))
            pages[write.node_id] = pages.get(write.node_id, 0) + write.num_new_pages
            row += write.num_rows
            position += write.num_rows
    return [
        _Writer(
            _need(links, node_id),
            np.array(listed, APPEND_DTYPE),
            len(rows[node_id]),
            _row_index(rows[node_id], device),
            pages[node_id],
        )
        for node_id, listed in entries.items()
    ]


def _row_index(rows: list[int], device: torch.device) -> slice | torch.Tensor:
    """Index ascending rows: as a slice, which copies nothing, where they lie side by side."""
    first, end = rows[0], rows[-1] + 1
    return (
        slice(first, end)
        if end - first == len(rows)
        else torch.tensor(rows, dtype=torch.int64, device=device)
    )
