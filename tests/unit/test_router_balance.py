"""Which choices move for balance, and how often the router looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from pydantic import ValidationError

from kernelflume.core.roles import WeightNodeRole
from kernelflume.router.balancer import Balancer
from kernelflume.router.placement.balance import (
    REQUEST_ROWS,
    BalanceMove,
    BalanceParameters,
    RunningChoice,
    balance,
)
from kernelflume.router.placement.decision import MoveReason
from kernelflume.router.placement.nodes import WeightNodeView
from kernelflume.router.roster import Roster
from kernelflume.router.settings import PlacementSettings

if TYPE_CHECKING:
    from kernelflume.router.weightnodes import WeightNodes

ON = BalanceParameters(factor=1.5, max_moves=10)


def node(
    address: str,
    requests: int,
    *,
    own: int | None = None,
    pending: int = 0,
    role: WeightNodeRole = WeightNodeRole.BOTH,
    serving: bool = True,
    full: bool = False,
) -> WeightNodeView:
    return WeightNodeView(
        address=address,
        role=role,
        serving=serving,
        num_requests=requests,
        num_own_requests=requests if own is None else own,
        num_tokens=0,
        num_pending_tokens=pending,
        queue_full=full,
    )


def choices(address: str, number: int, *, since_moved_s: float = 1e9) -> list[RunningChoice]:
    """Return choices of which the later ones have more tokens."""
    return [
        RunningChoice(
            choice_id=f"{address}{index}",
            address=address,
            num_tokens=100 + index,
            num_tokens_left=1000,
            since_moved_s=since_moved_s,
        )
        for index in range(number)
    ]


def sources_and_targets(moves: list[BalanceMove]) -> list[str]:
    return [move.source + move.target for move in moves]


# --- the decision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_a", "on_b", "num_moves"),
    [(1, 0, 0), (2, 0, 1), (3, 1, 1), (6, 0, 3), (5, 3, 1), (6, 4, 0), (16, 10, 1), (15, 10, 0)],
)
def test_as_many_move_as_the_nodes_are_out_of_balance(on_a: int, on_b: int, num_moves: int) -> None:
    nodes = [node("a", on_a), node("b", on_b)]
    moves = balance(nodes, [*choices("a", on_a), *choices("b", on_b)], ON)
    assert sources_and_targets(moves) == ["ab"] * num_moves
    assert all(move.reason is MoveReason.MORE_REQUESTS for move in moves)


def test_what_is_cheapest_to_tell_moves_first() -> None:
    moves = balance([node("a", 5), node("b", 0)], choices("a", 5), ON)
    assert [move.choice_id for move in moves] == ["a0", "a1"]


def test_prompts_to_compute_drive_others_away() -> None:
    nodes = [node("a", 2, pending=10 * REQUEST_ROWS), node("b", 1)]
    moves = balance(nodes, choices("a", 2), ON)
    assert [move.reason for move in moves] == [MoveReason.MORE_PROMPT_TOKENS] * 2


def test_prompts_to_compute_keep_others_away() -> None:
    nodes = [node("a", 6), node("b", 1, pending=10 * REQUEST_ROWS), node("c", 3)]
    assert sources_and_targets(balance(nodes, choices("a", 6), ON)) == ["ac"]


@pytest.mark.parametrize(
    "target",
    [
        node("b", 0, role=WeightNodeRole.PREFILL),
        node("b", 0, serving=False),  # it drains, or is gone
        node("b", 0, full=True),
    ],
)
def test_some_nodes_get_nothing(target: WeightNodeView) -> None:
    assert balance([node("a", 9), target], choices("a", 9), ON) == []


def test_no_more_move_at_a_time_than_may() -> None:
    assert len(balance([node("a", 20), node("b", 0)], choices("a", 20), BalanceParameters(factor=1.0))) == 2


def test_what_has_just_moved_stays() -> None:
    nodes = [node("a", 3), node("b", 0)]
    assert balance(nodes, choices("a", 3, since_moved_s=29.0), ON) == []
    assert len(balance(nodes, choices("a", 3, since_moved_s=30.0), ON)) == 1


def test_of_several_routers_each_makes_its_share_of_the_moves() -> None:
    nodes, own = [node("a", 8, own=4), node("b", 0)], choices("a", 4)
    assert len(balance(nodes, own, ON)) == 2  # of four that are due
    nodes, own = [node("a", 2, own=1), node("b", 0)], choices("a", 1)
    assert [len(balance(nodes, own, ON, draw=draw)) for draw in (0.0, 0.49, 0.5, 0.99)] == [0, 0, 1, 1]


def test_off_by_default_and_a_factor_below_one_is_refused() -> None:
    assert not PlacementSettings().balance.is_on
    assert PlacementSettings(balance_factor=1.0).balance.is_on
    with pytest.raises(ValidationError, match="balance-factor is below 1"):
        PlacementSettings(balance_factor=0.5)


# --- the looks ------------------------------------------------------------------------------------------


class FakeNodes:
    def __init__(self) -> None:
        self.all = [node("a", 9), node("b", 0)]

    def views(self) -> list[WeightNodeView]:
        return self.all


class FakeMover:
    """A choice that does what it is told, when the test says so."""

    def __init__(self, choice: RunningChoice) -> None:
        self.choice = choice
        self.moves: list[BalanceMove] = []
        self.is_balancing = False

    def running(self) -> RunningChoice | None:
        return self.choice

    def move(self, move: BalanceMove) -> None:
        self.moves.append(move)
        self.is_balancing = True


def test_none_is_ordered_while_others_move_nor_at_the_look_after() -> None:
    roster = Roster()
    movers = [FakeMover(choice) for choice in choices("a", 9)]
    for mover in movers:
        roster.add(mover.choice.choice_id, mover)
    balancer = Balancer(BalanceParameters(factor=1.5), cast("WeightNodes", FakeNodes()), roster)

    def num_ordered() -> int:
        balancer.look()
        return sum(len(mover.moves) for mover in movers)

    assert num_ordered() == 2
    assert num_ordered() == 2  # the look after
    assert num_ordered() == 2  # they still move
    for mover in movers:
        mover.is_balancing = False
    assert num_ordered() == 2  # the look after that
    assert num_ordered() == 4
    for mover in movers:
        roster.remove(mover.choice.choice_id)
        mover.is_balancing = False
    balancer.look()
    assert num_ordered() == 4
    assert len(roster) == 0
