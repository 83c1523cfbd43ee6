"""The weight node's links by attention node, and the waits on them. Owned by the engine's thread."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from kernelflume.core.errors import HandshakeError, PeerLostError
from kernelflume.runtime.clock import Clock, Deadline
from kernelflume.transport.wire import decode
from kernelflume.wnode.kv_traffic import KvTraffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernelflume.transport.base import Notice
    from kernelflume.transport.waiter import Waiter
    from kernelflume.wnode.link import Link

logger = logging.getLogger(__name__)

_PROBE_INTERVAL_S = 0.1
"""A peer that is waited for is probed this often: only a send tells that it is gone."""

_QUARANTINE_S = 60.0
"""How long the memory of a link stays that was closed while something was under way: longer than any node
goes on with a query that was given up."""


class LinkTable:
    """Links by node name, the arrival of notices, and waiting for them."""

    def __init__(
        self,
        waiter: Waiter,
        clock: Clock,
        *,
        exchange_timeout_s: float,
        gone: Callable[[str], str],
    ) -> None:
        """Make a table without links.

        Args:
            waiter: receives notices.
            clock: for deadlines.
            exchange_timeout_s: longest wait for a node's answer.
            gone: why an attention node of that name will not answer, '' where nothing is known: a step that
                waits for one cannot take the command that says so.
        """
        self._waiter = waiter
        self._clock = clock
        self._exchange_timeout_s = exchange_timeout_s
        self._gone = gone
        self._links: dict[str, Link] = {}
        self._by_id: dict[str, dict[str, Link]] = {}
        """The same by node id and name: a node started anew may be connected beside its last start."""
        self._closed: deque[tuple[float, Link]] = deque()
        self.kv_traffic = KvTraffic()
        self.waited_s = 0.0
        """Time spent in ``wait_until`` since ``begin_step``."""
        self.waited_for_s: dict[str, float] = {}
        """The same by the node that was waited for; waits for several nodes overlap."""

    def begin_step(self) -> None:
        """Count waits from nothing."""
        self.waited_s = 0.0
        self.waited_for_s.clear()

    def add(self, link: Link) -> None:
        """Take a link in; its notices are received from now on."""
        self._forget(link.node_name)
        self._links[link.node_name] = link
        self._by_id.setdefault(link.node_id, {})[link.node_name] = link

    def close(self, node_name: str) -> None:
        """Close a link, if there is one, and keep its memory for as long as a write may be under way."""
        now = self._clock.now()
        while self._closed and self._closed[0][0] <= now:
            self._closed.popleft()
        link = self._forget(node_name)
        if link is not None:
            was_quiet = link.is_quiet
            link.close()
            if not was_quiet:
                self._closed.append((now + _QUARANTINE_S, link))

    def get(self, node_name: str) -> Link | None:
        """Return the link to a node, or None."""
        return self._links.get(node_name)

    def of_node(self, node_id: str) -> Link | None:
        """Return the warm link to a node by its id, or None."""
        for link in self._by_id.get(node_id, {}).values():
            if link.is_warm:
                return link
        return None

    @property
    def page_tokens(self) -> int:
        """Tokens of a page: one number for all nodes, as the connector sees to; 0 without a link."""
        return next((link.page_tokens for link in self.all()), 0)

    def all(self) -> list[Link]:
        """Return every link."""
        return list(self._links.values())

    def poll(self, timeout_s: float = 0.0, *, idle: bool = False) -> None:
        """Receive what arrived, waiting up to ``timeout_s`` for something."""
        self._receive(self._waiter.wait_notices(timeout_s, idle=idle))

    def wait_until(self, condition: Callable[[], bool], waited_for: Callable[[], Iterable[Link]]) -> None:
        """Receive notices until ``condition`` holds.

        Args:
            condition: asked after every notice.
            waited_for: the links that have not answered yet; probed while nothing comes.

        Raises:
            PeerLostError: one of them is gone, will not answer, or did not answer within the
                exchange's deadline.
        """
        if condition():
            return
        started = self._clock.now()
        deadline = Deadline(self._clock, self._exchange_timeout_s)
        missing = [link.node_id for link in waited_for()]
        try:
            while not condition():
                if len(missing) > 1:
                    missing = self._count_waits(missing, waited_for(), started)
                if deadline.expired:
                    slow = next(iter(waited_for())).node_name
                    raise PeerLostError(slow, f"no answer within {self._exchange_timeout_s:g} s")
                notices = self._waiter.wait_notices(min(_PROBE_INTERVAL_S, deadline.remaining_s))
                self._receive(notices)
                if not notices:
                    for link in waited_for():
                        if reason := self._gone(link.node_name):
                            raise PeerLostError(link.node_name, reason)
                        link.probe()
        finally:
            waited_s = self._clock.now() - started
            self.waited_s += waited_s
            for node_id in missing:
                self.waited_for_s[node_id] = self.waited_for_s.get(node_id, 0.0) + waited_s

    def _count_waits(self, before: list[str], waited_for: Iterable[Link], started_s: float) -> list[str]:
        """Count the waits for nodes that have answered since; return those that are still waited for."""
        still = [link.node_id for link in waited_for]
        if len(still) < len(before):
            waited_s = self._clock.now() - started_s
            for node_id in set(before).difference(still):
                self.waited_for_s[node_id] = self.waited_for_s.get(node_id, 0.0) + waited_s
        return still

    def _forget(self, node_name: str) -> Link | None:
        link = self._links.pop(node_name, None)
        if link is not None:
            same_id = self._by_id[link.node_id]
            del same_id[node_name]
            if not same_id:
                del self._by_id[link.node_id]
        return link

    def _receive(self, notices: list[Notice]) -> None:
        for peer, payload in notices:
            link = self._links.get(peer)
            if link is None:  # of a link that was closed
                continue
            try:
                link.receive(decode(payload))
            except HandshakeError as error:
                logger.warning("ignored a notice of %s: %s", peer, error)
