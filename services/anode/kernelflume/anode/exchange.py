"""What the step loop does with notices: file appends, answer queries, free sequences, for every link at once.

A query that can be computed goes before a waiting append; a free is carried out at once, and an append that
comes after it stores nothing. One link's fault ends that link alone.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.anode.block_notices import BlockNotices
from kernelflume.anode.control import Connected, WorkerStatistics
from kernelflume.anode.gpu.launcher import launch_step, retract_step
from kernelflume.anode.kernels import Share
from kernelflume.anode.kvpool import HeldSequence
from kernelflume.anode.lane import NUM_STAGING
from kernelflume.anode.links import MAX_PUBLISHES, MAX_STEPS_UNDER_WAY
from kernelflume.anode.page_listing import list_pages
from kernelflume.anode.scan_meter import ScanMeter
from kernelflume.core.errors import HandshakeError, PeerLostError
from kernelflume.core.names import split_name
from kernelflume.runtime.clock import Deadline
from kernelflume.tensor.partials import Partial
from kernelflume.transport import wire
from kernelflume.transport.lanes import NUM_APPEND_SLOTS
from kernelflume.transport.memory import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kernelflume.anode.control import PageListing
    from kernelflume.anode.kernels import StepAttention
    from kernelflume.anode.kvpool import KvPool
    from kernelflume.anode.lane import LaneBuffers
    from kernelflume.anode.links import Link
    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.base import Notice, Transport
    from kernelflume.transport.doorbell import Doorbell

logger = logging.getLogger(__name__)

POST_DEADLINE_S = 5.0
"""A write that is not done by then means that the peer stopped polling."""
_FLUSH_S = 2e-3
"""Progress given to a write at once; without it the peer's notice would wait for the next turn."""
_DRIVE_S = 2e-3
"""How long a turn goes on while steps under way need it, before other business is looked after."""
_QUARANTINE_S = 60.0
"""How long the memory of a dropped link stays: its weight node may not know yet, and goes on writing there
(deregistering does not stop a write under way). Longer than any weight node's step deadline."""
_NO_END = 1 << 32
"""Behind every position that a notice can name."""


class Exchange:
    """All links of one attention node. Owned by the thread that owns the transport."""

    def __init__(self, *, transport: Transport, doorbell: Doorbell, pool: KvPool, clock: Clock) -> None:
        self._transport = transport
        self._doorbell = doorbell
        self._pool = pool
        self._clock = clock
        self._blocks = BlockNotices(pool)
        self._scans = ScanMeter(num_layers=pool.geometry.num_layers)
        self._links: dict[str, Link] = {}
        self._inbox: deque[Notice] = deque()
        self._quarantine: deque[tuple[float, list[LaneBuffers]]] = deque()
        self._queries_served = 0
        self._tokens_appended = 0
        self._notices_rejected = 0
        self._links_lost = 0
        self._strangers: set[str] = set()
        """Weight nodes without a link whose notices were logged already."""

    @property
    def links(self) -> tuple[str, ...]:
        """Names of the weight nodes that are linked."""
        return tuple(self._links)

    def adopt(self, link: Link) -> Connected:
        """Take a prepared link into service."""
        self._links[link.weight_node] = link
        self._strangers.clear()
        if link.doorbell is not None:
            self._doorbell.connect(link.weight_node, link.doorbell)
        logger.info("linked %s: %d lanes of %d rows", link.weight_node, len(link.lanes), link.layout.max_rows)
        return Connected(
            metadata=self._transport.metadata(),
            query_regions=tuple(buffers.query_region for buffers in link.buffers),
            append_regions=tuple(buffers.append_region for buffers in link.buffers),
            doorbell_address=self._doorbell.address,
            num_free_pages=self._pool.num_free_pages,
            device_lanes=link.device.lanes if link.device is not None else None,
        )

    def replace(self, weight_node: str) -> None:
        """Drop what another start of this weight node, or the same one, had here."""
        node_id, _ = split_name(weight_node)
        for name in [link.weight_node for link in self._links.values() if link.node_id == node_id]:
            self.drop(name, f"replaced by {weight_node}")

    def drop(self, weight_node: str, reason: str) -> int:
        """Forget a weight node and free its sequences; return how many those were."""
        link = self._links.pop(weight_node, None)
        if link is None:
            return 0
        num_sequences = len(link.sequences)
        if link.device is not None:
            link.device.close_views()
        link.end_all(self._pool)
        self._transport.disconnect(weight_node)
        self._doorbell.disconnect(weight_node)
        for buffers in link.buffers:
            buffers.deregister(self._transport)
        if link.device is not None:
            link.device.close()
        self._quarantine.append((self._clock.now() + _QUARANTINE_S, link.buffers))
        logger.info("dropped %s and %d sequences: %s", weight_node, num_sequences, reason)
        return num_sequences

    def turn(self, notices: Iterable[Notice]) -> None:
        """File notices, then work until nothing is left to do, or has not been for a while."""
        self._pool.book.expire()
        for link in self._links.values():
            link.release_dropped(self._pool)
        self._receive(notices)
        deadline = Deadline(self._clock, _DRIVE_S)
        while True:
            while self._inbox or self._work():
                while self._inbox:
                    self._file(self._inbox.popleft())
                self._receive(self._transport.poll())
            if not self.is_driving or deadline.expired:
                break
            self._receive(self._transport.poll())
        while self._quarantine and self._quarantine[0][0] <= self._clock.now():
            self._quarantine.popleft()

    @property
    def is_driving(self) -> bool:
        """True while a step under way needs this loop at once, at flags that wake nobody."""
        return any(link.driven is not None and not link.driven.is_idle for link in self._links.values())

    def statistics(self) -> WorkerStatistics:
        """Return exact figures."""
        links = [link.statistics() for link in self._links.values()]
        quarantined = sum(buffers.num_bytes for _, lanes in self._quarantine for buffers in lanes)
        return WorkerStatistics(
            num_pages=self._pool.num_pages,
            num_free_pages=self._pool.num_free_pages,
            num_tokens=self._pool.num_tokens,
            pool_bytes=self._pool.num_bytes,
            buffer_bytes=sum(link.buffer_bytes for link in self._links.values()) + quarantined,
            queries_served=self._queries_served,
            tokens_appended=self._tokens_appended,
            notices_rejected=self._notices_rejected,
            links_lost=self._links_lost,
            scan_bytes_per_s=self._scans.bytes_per_s(self._clock.now()),
            num_cached_pages=self._pool.blocks.num_idle,
            num_cached_tokens=self._pool.blocks.num_idle_tokens,
            tokens_found=self._blocks.tokens_found,
            tokens_shared=self._blocks.tokens_shared,
            pages_evicted=self._pool.blocks.num_evicted,
            pages_expired=self._pool.blocks.num_expired,
            num_pinned_tokens=self._pool.blocks.num_pinned * self._pool.page_tokens,
            max_pinned_tokens=self._pool.blocks.max_pinned * self._pool.page_tokens,
            pin_counts=replace(self._pool.blocks.pin_counts),
            links=tuple(links),
        )

    def pages(self) -> PageListing:
        """Tell every page: what holds it, that it is cached, or that it is free."""
        return list_pages(self._pool, self._links.values())

    def _receive(self, notices: Iterable[Notice]) -> None:
        """Put notices into the inbox, but for those that a graph waits for: they overtake all else."""
        for notice in notices:
            link = self._links.get(notice.peer)
            if link is not None and wire.is_lane_data(notice.payload):
                self._guarded(link, functools.partial(self._pass_on, link, notice.payload))
            else:
                self._inbox.append(notice)

    @staticmethod
    def _pass_on(link: Link, payload: bytes) -> None:
        if link.device is None:
            raise HandshakeError("data for lanes that the link does not have")
        link.device.receive(wire.LaneData.decode(payload))

    def _drive(self) -> bool:
        """Pass on what steps under way have computed."""
        has_worked = False
        for link in list(self._links.values()):
            if link.driven is not None:
                has_worked = self._guarded(link, link.driven.drive) or has_worked
        return has_worked

    def _file(self, notice: Notice) -> None:
        link = self._links.get(notice.peer)
        if link is None:
            self._reject_stranger(notice.peer)
            return
        self._guarded(link, lambda: self._file_of(link, wire.decode(notice.payload)))

    def _file_of(self, link: Link, notice: wire.WireNotice) -> None:
        match notice:
            case wire.Query():
                self._file_query(link, notice)
            case wire.Append():
                self._file_append(link, notice)
            case wire.Free():
                self._free(link, notice)
            case wire.Find():
                self._name_waiting()
                self._notify(link, self._blocks.find(notice))
            case wire.Share():
                self._notify(link, self._blocks.share(link, notice))
            case wire.Publish():
                _check(len(link.publishes) < MAX_PUBLISHES, f"more than {MAX_PUBLISHES} namings")
                link.publishes.append(notice)
            case wire.Step():
                _check(len(link.waiting_steps) < MAX_STEPS_UNDER_WAY, f"step {notice.step} too early")
                link.waiting_steps.append(notice)
            case wire.Retract():
                self._retract_step(link, notice.step)
            case wire.Warm(answer=False):
                self._answer_warm(link)
            case _:
                raise HandshakeError(f"{type(notice).__name__} is no notice for an attention node")

    def _file_query(self, link: Link, query: wire.Query) -> None:
        _check(query.lane < len(link.lanes), f"lane {query.lane}")
        _check(query.layer < link.layout.geometry.num_layers, f"layer {query.layer}")
        _check(0 < query.num_rows <= link.layout.max_rows, f"{query.num_rows} rows")
        if query.plan is not None:
            rows = query.plan["num_rows"]
            _check(_counts(rows, query.num_rows), "a plan of other rows")
        lane = link.lanes[query.lane]
        waiting = lane.query
        if query.step < lane.step or (waiting is not None and query.step < waiting.step):
            self._reject(link.weight_node, f"query of step {query.step} is stale")
            return
        # A weight node gives a step up before it starts the next: the older query is of no use any more.
        lane.query = query

    def _file_append(self, link: Link, append: wire.Append) -> None:
        _check(append.lane < len(link.lanes), f"lane {append.lane}")
        _check(append.slot < NUM_APPEND_SLOTS, f"slot {append.slot}")
        _check(0 < append.num_rows <= link.layout.max_rows, f"{append.num_rows} rows")
        rows = append.entries["num_rows"]
        _check(_counts(rows, append.num_rows), "entries of other rows")
        lane = link.lanes[append.lane]
        ahead = append.counter - lane.appends_filed
        _check(
            0 < ahead <= NUM_APPEND_SLOTS and append.counter not in lane.appends, f"append {append.counter}"
        )
        lane.appends[append.counter] = append

    def _work(self) -> bool:
        """Do one piece, so that a query that comes meanwhile goes first; False when there is none."""
        if self._drive():
            return True
        lanes = [(link, index) for link in self._links.values() for index in range(len(link.lanes))]
        for link, index in lanes:
            query = link.lanes[index].take_ready_query()
            if query is not None:
                self._guarded(link, functools.partial(self._answer_query, link, index, query))
                return True
        for link in self._links.values():
            step = link.take_ready_step()
            if step is not None:
                self._guarded(link, functools.partial(self._launch_step, link, step))
                return True
        return any(self._file_next(link) for link in list(self._links.values()))

    def _file_next(self, link: Link) -> bool:
        """Name or store what is next of a link; False when there is nothing that is all there."""
        publish = link.take_ready_publish()
        if publish is not None:
            self._guarded(link, functools.partial(self._publish, link, publish))
            return True
        for index, lane in enumerate(link.lanes):
            append = lane.take_ready_append()
            if append is not None:
                self._guarded(link, functools.partial(self._store_append, link, index, append))
                return True
        return False

    def _answer_query(self, link: Link, index: int, query: wire.Query) -> None:
        lane, buffers = link.lanes[index], link.buffers[index]
        if query.plan is not None:
            self._await_all(link)
            lane.step, lane.num_rows = query.step, query.num_rows
            lane.attention = self._plan(link, index, query.step, query.plan)
            lane.scan_bytes = self._countable_bytes(query)
        if query.step != lane.step or lane.attention is None or query.num_rows != lane.num_rows:
            self._notify(link, self._partial(query, wire.RowStatus.MISMATCH))
            return
        bucket = link.layout.bucket_index(query.num_rows)
        self._await_staging(link, index)
        into = buffers.partial(lane.staging, bucket)
        started_at_s = self._clock.now()
        lane.attention.run(query.layer, Partial(into.out[: query.num_rows], into.lse[: query.num_rows]))
        settle(self._pool.device)
        if lane.scan_bytes:
            self._scans.note(lane.scan_bytes, started_at_s=started_at_s, ended_at_s=self._clock.now())
        self._queries_served += 1
        self._post(link, index, bucket, self._partial(query, wire.RowStatus.OK))

    def _plan(self, link: Link, index: int, step: int, plan: np.ndarray) -> StepAttention | None:
        """Prepare a step; None when other tokens are held than the weight node thinks."""
        shares = []
        for sequence_id, num_rows, num_held in plan.tolist():
            sequence = link.sequences.get(sequence_id)
            num_tokens = sequence.num_tokens if sequence is not None else 0
            if num_tokens != num_held:
                logger.warning(
                    "%s plans %d tokens of sequence %d in step %d; %d are held",
                    link.weight_node, num_held, sequence_id, step, num_tokens,
                )  # fmt: skip
                return None
            shares.append(Share(num_rows, sequence if sequence is not None else HeldSequence()))
        num_rows = sum(share.num_rows for share in shares)
        return link.kernels[index].plan(link.buffers[index].queries[:num_rows], shares)

    def _countable_bytes(self, query: wire.Query) -> int:
        """Return the bytes that a layer of a planned step reads, 0 where they are not worth timing."""
        assert query.plan is not None  # noqa: S101 - the caller has just planned by it
        return self._scans.countable_bytes(
            num_rows=query.num_rows,
            num_calls=len(query.plan),
            layer_bytes=int(query.plan["num_held"].sum()) * self._pool.geometry.kv_row_bytes,
        )

    def _store_append(self, link: Link, index: int, append: wire.Append) -> None:
        self._await_all(link)
        rows = link.buffers[index].append_rows(append.slot, append.num_rows)
        failed: dict[int, None] = {}
        taken: list[tuple[int, np.ndarray, np.ndarray]] = []
        row = 0
        for sequence_id, num_rows, start in append.entries.tolist():
            slots = link.take_slots(sequence_id, start, num_rows, self._pool)
            if slots is None:
                failed[sequence_id] = None
            else:
                taken.append((sequence_id, slots, np.arange(row, row + num_rows)))
            row += num_rows
        # A sequence may fail after an earlier entry of its own was taken, and those slots be another's now.
        kept = [(slots, rows_of) for sequence_id, slots, rows_of in taken if sequence_id not in failed]
        if kept:
            slots = np.concatenate([slots for slots, _ in kept])
            if len(slots) < append.num_rows:
                rows = rows[:, torch.from_numpy(np.concatenate([rows_of for _, rows_of in kept]))]
            self._pool.store(slots, rows)
            settle(self._pool.device)
            self._tokens_appended += len(slots)
        answer = wire.Appended(
            append.lane, append.slot, append.counter, self._pool.num_free_pages, tuple(failed)
        )
        self._notify(link, answer)

    def _store_appends(self, link: Link, counter: int) -> None:
        """File what came up to an append at once: what relies on it cannot wait for its turn."""
        while link.lanes[0].appends_filed < counter:
            append = link.lanes[0].take_ready_append()
            if append is None:
                return
            self._store_append(link, 0, append)

    def _launch_step(self, link: Link, notice: wire.Step) -> None:
        """Launch what answers a step of captured graphs."""
        driven = link.driven
        if driven is not None:
            self._await(link, lambda: driven.can_launch(notice.step))
        answer = launch_step(link, notice, self._pool)
        if answer.status is wire.RowStatus.OK:
            self._queries_served += link.layout.geometry.num_layers
            self._tokens_appended += len(link.stored[-1].positions)
        self._notify(link, answer)

    def _retract_step(self, link: Link, step: int) -> None:
        """Forget what a step stored, also when it was not launched yet."""
        while link.waiting_steps and link.waiting_steps[0].step <= step:
            waiting = link.waiting_steps.popleft()
            self._store_appends(link, waiting.appends)
            # Its queries come all the same, or it is let go.
            self._launch_step(link, waiting)
        if link.device is not None:
            link.device.release(step)
            self._await_filed(link)  # it writes to what is another's afterwards
        retract_step(link, step, self._pool)

    def _await_all(self, link: Link) -> None:
        self._await_filed(link)
        self._await_driven()

    def _await_filed(self, link: Link) -> None:
        """A launched step may still be writing to pages, at most until its weight node's step ends."""
        device = link.device
        if device is not None:
            self._await(link, lambda: device.is_idle)

    def _await_stored(self, link: Link, ends: Mapping[int, int]) -> None:
        """Wait for launched steps that store tokens of a sequence before an end, or read one dropped since.

        Their weight node has settled those, so nothing but this node is in their way. Any other step may
        need nodes that wait here for another weight node's, and they for this one.
        """
        device = link.device
        if device is not None:
            steps = [*link.steps_storing(ends), *link.steps_reading(ends)]
            self._await(link, lambda: all(map(device.has_ended, steps)))
            link.release_dropped(self._pool)

    def _await_driven(self) -> None:
        """Bring all steps to their end that need this loop: what follows may wait for the whole device."""
        for link in list(self._links.values()):
            if link.driven is not None:
                self._guarded(link, functools.partial(self._await_filed, link))

    def _await(self, link: Link, condition: Callable[[], bool]) -> None:
        """Go on driving until something holds that a link's steps under way bring about.

        Raises:
            PeerLostError: it does not hold in time.
        """
        deadline = Deadline(self._clock, POST_DEADLINE_S)
        while not condition():
            if link.device is not None:
                link.device.check()
            if deadline.expired:
                raise PeerLostError(link.weight_node, f"a step did not end within {POST_DEADLINE_S:g} s")
            self._receive(self._transport.poll())
            self._drive()

    def _publish(self, link: Link, notice: wire.Publish) -> None:
        blocks = notice.blocks  # nobody may find what a launched step has still to write
        end = max((blocks["start"].astype(np.int64) + blocks["num_tokens"]).tolist(), default=0)
        self._await_stored(link, {notice.sequence: end})
        self._notify(link, self._blocks.publish(link, notice))

    def _name_waiting(self) -> None:
        """Name what was told before somebody asks: it relies on appends, which give way to all queries.

        A client that was answered may ask again at once, and by another weight node.
        """
        for link in list(self._links.values()):
            while link.publishes and self._file_next(link):
                pass

    def _free(self, link: Link, notice: wire.Free) -> None:
        # An empty one only asks whether this node is there.
        self._await_stored(link, dict.fromkeys(notice.sequences, _NO_END))
        for sequence_id in notice.sequences:
            for publish in link.take_publishes(sequence_id):  # what it relies on does not come any more
                self._notify(link, self._blocks.publish(link, publish))
            link.end(sequence_id, self._pool)
        self._notify(link, wire.Freed(self._pool.num_free_pages))

    def _answer_warm(self, link: Link) -> None:
        self._await_staging(link, 0)
        answer = wire.Warm(answer=True, num_free_pages=self._pool.num_free_pages)
        self._post(link, 0, len(link.buckets) - 1, answer)
        if link.device is not None:
            self._await_staging(link, 0)
            link.device.open(link.weight_node)

    def _partial(self, query: wire.Query, status: wire.RowStatus) -> wire.Partial:
        return wire.Partial(
            query.lane, query.layer, query.step, status, query.num_rows, self._pool.num_free_pages
        )

    def _post(self, link: Link, index: int, bucket: int, notice: wire.WireNotice) -> None:
        lane = link.lanes[index]
        write = lane.staging * len(link.buckets) + bucket
        self._transport.post(link.plans[index], write, notice.encode())
        self._ring(link)
        lane.posted[lane.staging] = write
        lane.staging = (lane.staging + 1) % NUM_STAGING
        self._await_write(link, index, write, _FLUSH_S)

    def _notify(self, link: Link, notice: wire.WireNotice) -> None:
        self._transport.notify(link.weight_node, notice.encode())
        self._ring(link)

    def _ring(self, link: Link) -> None:
        if not self._doorbell.ring_peer(link.weight_node):
            raise PeerLostError(link.weight_node, "its process is gone")

    def _await_staging(self, link: Link, index: int) -> None:
        lane = link.lanes[index]
        if not self._await_write(link, index, lane.posted[lane.staging], POST_DEADLINE_S):
            raise PeerLostError(link.weight_node, f"a partial was not taken within {POST_DEADLINE_S:g} s")

    def _await_write(self, link: Link, index: int, write: int, timeout_s: float) -> bool:
        """Make progress until a write is done; False at the time-out."""
        deadline = Deadline(self._clock, timeout_s)
        while not self._transport.is_done(link.plans[index], write):
            if deadline.expired:
                return False
            self._receive(self._transport.poll())
            os.sched_yield()
        return True

    def _guarded(self, link: Link, action: Callable[[], object]) -> bool:
        """Do something for a link, which its failure ends; tell whether it returned something true."""
        try:
            return bool(action())
        except PeerLostError as error:
            self._links_lost += 1
            self.drop(link.weight_node, error.reason)
        except HandshakeError as error:
            self._reject(link.weight_node, str(error))
            self.drop(link.weight_node, "it broke the protocol")
        except Exception:
            logger.exception("unexpected error in the link of %s", link.weight_node)
            self._links_lost += 1
            self.drop(link.weight_node, "an unexpected error")
        return False

    def _reject_stranger(self, peer: str) -> None:
        """Log it once: a weight node that was dropped may probe ten times a second until it knows."""
        if peer in self._strangers:
            self._notices_rejected += 1
            return
        self._strangers.add(peer)
        self._reject(peer, "not linked")

    def _reject(self, peer: str, why: str) -> None:
        self._notices_rejected += 1
        logger.warning("rejected a notice of %s: %s", peer, why)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise HandshakeError(f"a notice names {what}, which the link does not have")


def _counts(rows: np.ndarray, num_rows: int) -> bool:
    """Tell whether every sequence has a row, and all have ``num_rows`` together."""
    return bool(rows.all()) and int(rows.sum()) == num_rows
