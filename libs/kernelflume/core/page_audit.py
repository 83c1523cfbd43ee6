"""Whether every page of every attention node is accounted for: what nodes hold, against what the table says.

Nothing is read here. What was read at slightly different moments disagrees about what moves meanwhile, so
whoever asks a living cluster compares twice and believes what both comparisons show (``lasting``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.ranges import TokenRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kernelflume.core.ranges import SequenceRoute

_MOST_NAMED = 8
"""Pages that one fault names."""


class FaultKind(StrEnum):
    """What can be wrong."""

    LOST_PAGE = "lost page"
    """Neither free, nor cached, nor held by a sequence: nobody will ever use it again."""
    PAGE_COUNTED_TWICE = "page counted twice"
    """In more than one of those states."""
    WRONG_PIN = "wrong pin"
    """Of a page that is neither held nor cached, or one of two of the same page."""
    TOO_MANY_PINS = "too many pins"
    """More pages are pinned than the node allows."""
    WRONG_HOLDERS = "wrong number of holders"
    """As many sequences hold the page as the node does not count."""
    WRONG_PAGES = "wrong pages"
    """A sequence's pages are not those that its tokens need."""
    DEAD_WEIGHT_NODE = "dead weight node"
    """Sequences of a weight node without a lease; their time runs out by itself (link_grace_s)."""
    LEFT_OVER = "left over"
    """The weight node of the sequence does not run it."""
    NO_ROUTE = "no route"
    """The table has no route of the sequence."""
    OTHER_RANGES = "other ranges"
    """The node holds other tokens of the sequence than its route, or its weight node, says."""
    NOT_HELD = "not held"
    """A route names the node, which holds nothing of the sequence."""
    STALE_ROUTE = "stale route"
    """The table has a route of a sequence that no living weight node runs."""


@dataclass(frozen=True, slots=True, order=True)
class SequenceName:
    """A sequence; ids are a weight node's own."""

    weight_node: str
    sequence_id: int

    def __str__(self) -> str:
        return f"sequence {self.sequence_id} of {self.weight_node}"


@dataclass(frozen=True, slots=True)
class HeldPages:
    """What an attention node holds of one sequence."""

    ranges: tuple[TokenRange, ...]
    pages: tuple[int, ...]
    """In the order of its tokens; all full but the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePages:
    """All pages of one attention node at one moment."""

    node_id: str
    page_tokens: int
    num_holders: Sequence[int]
    """Of each page, from 0 on."""
    cached: Sequence[int]
    """Pages that are kept though no sequence holds them."""
    free: Sequence[int]
    pinned: Sequence[int] = ()
    """Pages, held or cached, that requests pinned."""
    max_pinned: int = 0
    """Most of them."""
    sequences: Mapping[SequenceName, HeldPages]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPages:
    """One look at a cluster."""

    nodes: tuple[NodePages, ...]
    weight_nodes: frozenset[str]
    """Names of those that live."""
    routes: Mapping[SequenceName, SequenceRoute]
    """Of the table."""
    running: Mapping[SequenceName, SequenceRoute]
    """What the living weight nodes say themselves."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong. Equal ones of two looks are the same fault that lasts."""

    node_id: str
    """Empty where it concerns the table alone."""
    kind: FaultKind
    detail: str

    def __str__(self) -> str:
        where = f"{self.node_id}: " if self.node_id else ""
        return f"{where}{self.kind}: {self.detail}"


def audit(cluster: ClusterPages) -> tuple[Fault, ...]:
    """Compare every attention node's pages with the table and the weight nodes; return what is wrong."""
    faults = [fault for node in cluster.nodes for fault in (*_pages(node), *_sequences(node, cluster))]
    faults += [
        Fault("", FaultKind.STALE_ROUTE, str(name))
        for name in cluster.routes
        if name.weight_node not in cluster.weight_nodes or name not in cluster.running
    ]
    return tuple(sorted(faults))


def lasting(first: Iterable[Fault], second: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return the faults that two looks at a living cluster both show."""
    return tuple(sorted(set(first) & set(second)))


def _pages(node: NodePages) -> Iterator[Fault]:
    """Every page is free, cached or held, and held as often as the node counts."""
    num_pages = len(node.num_holders)
    states = Counter(node.free)
    states.update(node.cached)
    states.update(page for page, holders in enumerate(node.num_holders) if holders)
    named = Counter(page for held in node.sequences.values() for page in held.pages)
    yield from _named(
        node.node_id, FaultKind.LOST_PAGE, [page for page in range(num_pages) if not states[page]]
    )
    yield from _named(
        node.node_id, FaultKind.PAGE_COUNTED_TWICE, sorted(page for page in states if states[page] > 1)
    )
    yield from _pins(node)
    for page in range(num_pages):
        if named[page] != node.num_holders[page]:
            detail = f"page {page} counts {node.num_holders[page]}, and {named[page]} sequences name it"
            yield Fault(node.node_id, FaultKind.WRONG_HOLDERS, detail)
    outside = sorted(page for page in {*states, *named} if not 0 <= page < num_pages)
    if outside:
        yield Fault(node.node_id, FaultKind.WRONG_PAGES, f"there are no pages {_listed(outside)}")


def _pins(node: NodePages) -> Iterator[Fault]:
    """A pin is of a page that is held or cached, and there are not more of them than may be."""
    kept = {*node.cached, *(page for page, holders in enumerate(node.num_holders) if holders)}
    times = Counter(node.pinned)
    wrong = sorted(page for page in times if times[page] > 1 or page not in kept)
    yield from _named(node.node_id, FaultKind.WRONG_PIN, wrong)
    if len(node.pinned) > node.max_pinned:
        detail = f"{len(node.pinned)} pages, where {node.max_pinned} may be pinned"
        yield Fault(node.node_id, FaultKind.TOO_MANY_PINS, detail)


def _named(node_id: str, kind: FaultKind, pages: Sequence[int]) -> Iterator[Fault]:
    """Name faulty pages one by one, so that those which last are told from those that come and go."""
    for page in pages:
        yield Fault(node_id, kind, f"page {page}")


def _sequences(node: NodePages, cluster: ClusterPages) -> Iterator[Fault]:
    """Every sequence is a living weight node's, whose route says the same."""
    for name, held in node.sequences.items():
        num_tokens = sum(part.num_tokens for part in held.ranges)
        if len(held.pages) != -(-num_tokens // node.page_tokens) or len(set(held.pages)) != len(held.pages):
            detail = f"{name} has {num_tokens} tokens in pages {_listed(held.pages)}"
            yield Fault(node.node_id, FaultKind.WRONG_PAGES, detail)
        if name.weight_node not in cluster.weight_nodes:
            yield Fault(node.node_id, FaultKind.DEAD_WEIGHT_NODE, str(name))
            continue
        if name not in cluster.running:
            yield Fault(node.node_id, FaultKind.LEFT_OVER, str(name))
            continue
        running = _ranges_on(cluster.running[name], node.node_id)
        if running != held.ranges:
            yield _other(node, name, held, running, "its weight node")
        route = cluster.routes.get(name)
        if route is None:
            yield Fault(node.node_id, FaultKind.NO_ROUTE, str(name))
            continue
        told = _ranges_on(route, node.node_id)
        grows = route.tail_node_id == node.node_id
        if told != held.ranges and not (grows and _is_older(told, held.ranges)):
            yield _other(node, name, held, told, "the table")
    for name, route in cluster.running.items():
        told = _ranges_on(route, node.node_id)
        if told and name not in node.sequences:
            yield Fault(node.node_id, FaultKind.NOT_HELD, f"{name} has {_spans(told)} by its weight node")


def _other(
    node: NodePages, name: SequenceName, held: HeldPages, told: Sequence[TokenRange], teller: str
) -> Fault:
    detail = f"{name} has {_spans(held.ranges)} here, and {_spans(told)} by {teller}"
    return Fault(node.node_id, FaultKind.OTHER_RANGES, detail)


def _is_older(told: Sequence[TokenRange], held: Sequence[TokenRange]) -> bool:
    """Tell whether ``held`` is what ``told`` has grown to: the table is told of tails now and then alone."""
    if len(told) < len(held):
        told = (*told, held[-1])  # a tail that was empty then
    *sealed, tail = told
    return sealed == list(held[:-1]) and tail.start == held[-1].start and tail.end <= held[-1].end


def _ranges_on(route: SequenceRoute | None, node_id: str) -> tuple[TokenRange, ...]:
    """Return what a route places on a node, with ranges that touch as one; empty ones aside."""
    spans: list[TokenRange] = []
    for owned in route.ranges if route is not None else ():
        if owned.node_id != node_id or not owned.tokens.num_tokens:
            continue
        if spans and spans[-1].end == owned.tokens.start:
            spans[-1] = TokenRange(spans[-1].start, owned.tokens.end)
        else:
            spans.append(owned.tokens)
    return tuple(spans)


def _spans(ranges: Iterable[TokenRange]) -> str:
    return " ".join(f"[{part.start},{part.end})" for part in ranges) or "nothing"


def _listed(pages: Sequence[int]) -> str:
    listed = ", ".join(map(str, pages[:_MOST_NAMED]))
    return listed if len(pages) <= _MOST_NAMED else f"{listed} and {len(pages) - _MOST_NAMED} more"
