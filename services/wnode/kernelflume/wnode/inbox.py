"""Commands on their way to the step loop, and the thread that prepares what must not be prepared in it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.core.errors import KernelFlumeError, PeerLostError
from kernelflume.core.names import split_name
from kernelflume.core.routing import NodeState
from kernelflume.core.sampling import FinishReason
from kernelflume.transport.doorbell import Doorbell, parse_address
from kernelflume.wnode.ledger import AdoptedTable
from kernelflume.wnode.messages import (
    Adopt,
    Cancel,
    CloseLink,
    Command,
    CompleteLink,
    ForgetLink,
    GoOn,
    HandOver,
    LinkFailed,
    OpenLink,
    StepOutput,
    Stop,
    Submit,
    TokenOutput,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from kernelflume.core.routing import RoutingSnapshot
    from kernelflume.wnode.connector import Connector
    from kernelflume.wnode.grammar.matcher import Matcher
    from kernelflume.wnode.link import Link
    from kernelflume.wnode.messages import Event


logger = logging.getLogger(__name__)

_TAKE_TIMEOUT_S = 30.0
"""Longer than any step: the step loop looks at its inbox between two steps."""


@dataclass(frozen=True, slots=True)
class LinkConnected:
    """A link is complete; it is warmed once the step loop receives its notices."""

    link: Link
    taken: threading.Event = field(default_factory=threading.Event)
    """Set by the step loop when it has the link."""


@dataclass(frozen=True, slots=True)
class TableBuilt:
    """A snapshot is ready to be adopted by a swap."""

    table: AdoptedTable


@dataclass(frozen=True, slots=True)
class ConstrainedSubmit:
    """A request whose grammar was read, and followed to the end of what was generated before."""

    submit: Submit
    matcher: Matcher


InboxItem = (
    Submit
    | ConstrainedSubmit
    | Cancel
    | HandOver
    | GoOn
    | CloseLink
    | ForgetLink
    | Stop
    | LinkConnected
    | TableBuilt
)


class Inbox:
    """A queue from one command thread to the step loop; appending to and popping a deque is atomic."""

    def __init__(self) -> None:
        self._items: deque[InboxItem] = deque()
        self._newest: AdoptedTable | None = None
        self._forgotten: dict[str, str] = {}
        """Reasons of the ``ForgetLink`` in the queue, by node name."""

    def put(self, item: InboxItem) -> None:
        """Add an item."""
        if isinstance(item, TableBuilt):
            self._newest = item.table
        elif isinstance(item, ForgetLink):
            self._forgotten[item.node_name] = item.reason
        self._items.append(item)

    def gone(self, node_name: str) -> str:
        """Return why an attention node will not answer, as far as the queue says so, else ''."""
        if node_name in self._forgotten:
            return self._forgotten[node_name]
        newest = self._newest
        if newest is not None and split_name(node_name)[0] not in newest.known:
            return "it left the routing table and is silent"
        return ""

    @property
    def is_empty(self) -> bool:
        """True while nothing waits to be taken."""
        return not self._items

    def take(self) -> list[InboxItem]:
        """Return and remove all items; costs next to nothing when there is none."""
        taken: list[InboxItem] = []
        while self._items:
            item = self._items.popleft()
            if isinstance(item, ForgetLink):
                self._forgotten.pop(item.node_name, None)
            taken.append(item)
        return taken


class CommandThread:
    """Reads the shell's commands, does the slow ones, and hands the rest to the step loop."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        connector: Connector,
        doorbell: Doorbell,
        send: Callable[[Event], None],
        *,
        open_matcher: Callable[[bytes], Matcher],
    ) -> None:
        self._connection = connection
        self._inbox = inbox
        self._connector = connector
        self._doorbell = doorbell
        self._bell = parse_address(doorbell.address)
        self._send = send
        self._open_matcher = open_matcher
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                command: Command = self._connection.recv()
            except (EOFError, OSError):  # the shell is gone
                command = Stop()
            self._dispatch(command)
            if isinstance(command, Stop):
                return

    def _dispatch(self, command: Command) -> None:
        match command:
            case OpenLink():
                self._send(self._connector.open(command.node_name))
            case CompleteLink():
                result = self._connector.complete(command.node_name, command.answer)
                if isinstance(result, LinkFailed):
                    self._send(result)
                else:
                    self._warm(result)
            case Adopt():
                self._hand_over(TableBuilt(build_table(command.snapshot)))
            case Submit() if command.grammar:
                self._submit_constrained(command)
            case _:
                self._hand_over(command)

    def _submit_constrained(self, command: Submit) -> None:
        try:
            matcher = self._open_matcher(command.grammar)
        except (KernelFlumeError, RuntimeError) as error:
            logger.exception("request %s: its grammar cannot be read", command.request_id)
            failed = TokenOutput(command.request_id, (), FinishReason.ABORT, error=str(error))
            self._send(StepOutput((failed,)))
            return
        for token in command.resumption.output_token_ids:
            if not matcher.accept(token):
                self._refuse(command, matcher.failure)
                return
        self._hand_over(ConstrainedSubmit(command, matcher))

    def _refuse(self, command: Submit, reason: str) -> None:
        refused = TokenOutput(command.request_id, (), FinishReason.ABORT, error=reason, invalid=True)
        self._send(StepOutput((refused,)))

    def _warm(self, link: Link) -> None:
        connected = LinkConnected(link)
        self._hand_over(connected)
        connected.taken.wait(_TAKE_TIMEOUT_S)
        try:
            link.warm()
        except PeerLostError as error:
            self._hand_over(CloseLink(link.node_name))
            self._send(LinkFailed(link.node_name, str(error)))

    def _hand_over(self, item: InboxItem) -> None:
        self._inbox.put(item)
        self._doorbell.ring(self._bell)


def build_table(snapshot: RoutingSnapshot) -> AdoptedTable:
    """Reduce a snapshot to what the step loop reads."""
    nodes = snapshot.in_state(NodeState.ACTIVE)
    active = tuple(node.node_id for node in nodes)
    draining = (node.node_id for node in snapshot.in_state(NodeState.DRAINING))
    thresholds = {
        node.node_id: node.threshold_tokens for node in nodes if node.threshold_tokens < node.capacity_tokens
    }
    return AdoptedTable(snapshot.epoch, active, frozenset((*active, *draining)), thresholds)
