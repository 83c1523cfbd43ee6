"""Which running choices move to another weight node, so that none has much more to do than another.

A weight node's work is rows: one a step for each request that runs, and one for each prompt token that is yet
to be computed. How long contexts are does not matter to it, for attention nodes hold and scan them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from kernelflume.router.placement.decision import MoveReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.placement.nodes import WeightNodeView

REQUEST_ROWS = 256
"""Rows that a request is taken to need yet: so many prompt tokens to compute weigh what one request does."""
_MIN_TOKENS_LEFT = 16
"""A move takes about a step: a choice that may end in a few is not worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceParameters:
    """When choices move, and how many."""

    factor: float = 0.0
    """A choice leaves a node with more than so many times the work of the one with the least; 0: never."""
    max_moves: int = 2
    """Most choices that move at once."""
    cooldown_s: float = 30.0
    """How long a choice stays after a move, or after one that failed."""

    @property
    def is_on(self) -> bool:
        """True where choices move for balance."""
        return self.factor > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChoice:
    """One choice that runs, as balancing sees it."""

    choice_id: str
    address: str
    """Of the weight node that it runs on."""
    num_tokens: int
    """Of its prompt and output, which the next node would have to be told."""
    num_tokens_left: int
    """Most tokens that may follow."""
    is_settled: bool = True
    """It generates there, and nobody has asked it to leave."""
    since_moved_s: float = inf
    """Time since its last move ended."""

    def may_move(self, cooldown_s: float) -> bool:
        """Tell whether moving it is worth while."""
        return (
            self.is_settled and self.num_tokens_left >= _MIN_TOKENS_LEFT and self.since_moved_s >= cooldown_s
        )


@dataclass(frozen=True, slots=True)
class BalanceMove:
    """One choice that is to move."""

    choice_id: str
    source: str
    """Address of the node that it leaves."""
    target: str
    reason: MoveReason


def balance(
    nodes: Sequence[WeightNodeView],
    choices: Sequence[RunningChoice],
    parameters: BalanceParameters,
    *,
    draw: float = 0.0,
) -> list[BalanceMove]:
    """Decide which choices move now; it must not be asked again before these moves have come to their end.

    A choice moves from a node with more work to the one with the least that may take it, and only where it
    leaves the first with no less than the second has then. So no node gets more work than one had before, and
    moves come to an end by themselves.

    Args:
        nodes: all known weight nodes.
        choices: of this router, those that run.
        parameters: when and how many.
        draw: at random from [0, 1). Other routers decide on the same load at the same time: of the moves that
            are due from a node each makes its own requests' share, rounded at random.
    """
    if not parameters.is_on:
        return []
    scale = _Scale(nodes, parameters.factor)
    movable = [choice for choice in choices if choice.may_move(parameters.cooldown_s)]
    by_source: dict[str, list[RunningChoice]] = {}
    # What costs the least to tell comes last, from where it is taken first.
    for choice in sorted(movable, key=lambda one: (-one.num_tokens, one.choice_id)):
        by_source.setdefault(choice.address, []).append(choice)
    quotas: dict[str, int] = {}
    moves: list[BalanceMove] = []
    while len(moves) < parameters.max_moves:
        pair = scale.next_pair([source for source, left in by_source.items() if left])
        if pair is None:
            break
        source, target = pair
        if source not in quotas:
            quotas[source] = scale.quota(source, target, draw)
        if not quotas[source]:
            del by_source[source]
            continue
        quotas[source] -= 1
        reason = scale.reason(source, target)
        moves.append(BalanceMove(by_source[source].pop().choice_id, source, target, reason))
        scale.move(source, target)
    return moves


class _Scale:
    """The work of nodes, while a decision is made on it."""

    def __init__(self, nodes: Sequence[WeightNodeView], factor: float) -> None:
        serving = [node for node in nodes if node.serving]
        self._factor = factor
        self._nodes = {node.address: node for node in serving}
        self._num_requests = {node.address: node.num_requests for node in serving}
        self._targets = [node.address for node in serving if node.role.takes_decoding and not node.queue_full]

    def next_pair(self, sources: Sequence[str]) -> tuple[str, str] | None:
        """Return the source with the most work and the target with the least, if they are out of balance."""
        known = [source for source in sources if source in self._nodes]
        if not known or not self._targets:
            return None
        source = min(known, key=lambda address: (-self._rows(address), address))
        target = min(self._targets, key=lambda address: (self._rows(address), address))
        return (source, target) if self._is_unbalanced(self._rows(source), self._rows(target)) else None

    def quota(self, source: str, target: str, draw: float) -> int:
        """Return how many of the moves due from a node are this router's."""
        num_due = (self._rows(source) - self._rows(target)) // (2 * REQUEST_ROWS)
        node = self._nodes[source]
        share = node.num_own_requests / node.num_requests if node.num_requests else 0.0
        return int(num_due * share + draw)

    def reason(self, source: str, target: str) -> MoveReason:
        """Return why a choice leaves a node that has too much work."""
        more, fewer = self._num_requests[source], self._num_requests[target]
        if self._is_unbalanced(more * REQUEST_ROWS, fewer * REQUEST_ROWS):
            return MoveReason.MORE_REQUESTS
        return MoveReason.MORE_PROMPT_TOKENS

    def move(self, source: str, target: str) -> None:
        """Count a request there that was counted here."""
        self._num_requests[source] -= 1
        self._num_requests[target] += 1

    def _rows(self, address: str) -> int:
        return self._num_requests[address] * REQUEST_ROWS + self._nodes[address].num_pending_tokens

    def _is_unbalanced(self, more: int, fewer: int) -> bool:
        return more - fewer >= 2 * REQUEST_ROWS and more > self._factor * fewer
