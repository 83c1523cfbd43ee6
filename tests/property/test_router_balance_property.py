"""What holds of every decision to move choices for balance, whatever the nodes and the choices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.roles import WeightNodeRole
from kernelflume.router.placement.balance import (
    REQUEST_ROWS,
    BalanceMove,
    BalanceParameters,
    RunningChoice,
    balance,
)
from kernelflume.router.placement.nodes import WeightNodeView

NAMES = "abcd"
MAX_ROUNDS = 500
PENDING = st.one_of(st.just(0), st.integers(0, 20 * REQUEST_ROWS))
DRAWS = st.floats(0, 1, exclude_max=True)
PARAMETERS = st.builds(
    BalanceParameters, factor=st.floats(1, 4), max_moves=st.integers(1, 5), cooldown_s=st.floats(0, 60)
)


@dataclass(frozen=True)
class World:
    """Weight nodes, and the choices of one router that run on them."""

    nodes: tuple[WeightNodeView, ...]
    choices: tuple[RunningChoice, ...]

    def after(self, moves: list[BalanceMove], *, seconds: float) -> World:
        """Return the world in which these moves were made, so many seconds later."""
        nodes = {node.address: node for node in self.nodes}
        choices = {choice.choice_id: choice for choice in self.choices}
        choices = {
            name: replace(choice, since_moved_s=choice.since_moved_s + seconds)
            for name, choice in choices.items()
        }
        for move in moves:
            for address, number in ((move.source, -1), (move.target, 1)):
                node = nodes[address]
                nodes[address] = replace(
                    node,
                    num_requests=node.num_requests + number,
                    num_own_requests=node.num_own_requests + number,
                )
            moved = choices[move.choice_id]
            choices[move.choice_id] = replace(moved, address=move.target, since_moved_s=seconds)
        return World(tuple(nodes.values()), tuple(choices.values()))


def rows(node: WeightNodeView) -> int:
    return node.num_requests * REQUEST_ROWS + node.num_pending_tokens


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    nodes, choices = [], []
    for name in names:
        own = draw(st.integers(0, 8))
        nodes.append(
            WeightNodeView(
                address=name,
                role=draw(st.sampled_from(WeightNodeRole)),
                serving=draw(st.integers(0, 4)) > 0,
                num_requests=own + draw(st.one_of(st.just(0), st.integers(0, 12))),
                num_own_requests=own,
                num_tokens=0,
                num_pending_tokens=draw(PENDING),
                queue_full=draw(st.integers(0, 4)) == 0,
            )
        )
        choices += [
            RunningChoice(
                choice_id=f"{name}{number}",
                address=name,
                num_tokens=draw(st.integers(1, 1000)),
                num_tokens_left=draw(st.sampled_from([1, 1000])),
                is_settled=draw(st.integers(0, 4)) > 0,
                since_moved_s=draw(st.one_of(st.just(inf), st.floats(0, 120))),
            )
            for number in range(draw(st.integers(0, own)))
        ]
    return World(tuple(nodes), tuple(choices))


@given(worlds(), PARAMETERS, DRAWS)
def test_only_choices_that_may_move_go_and_only_to_nodes_that_may_take_them(
    world: World, parameters: BalanceParameters, draw: float
) -> None:
    moves = balance(world.nodes, world.choices, parameters, draw=draw)
    nodes = {node.address: node for node in world.nodes}
    choices = {choice.choice_id: choice for choice in world.choices}
    assert len(moves) <= parameters.max_moves
    assert len({move.choice_id for move in moves}) == len(moves)
    for move in moves:
        choice, source, target = choices[move.choice_id], nodes[move.source], nodes[move.target]
        assert choice.address == move.source != move.target
        assert choice.is_settled
        assert choice.num_tokens_left > 1
        assert choice.since_moved_s >= parameters.cooldown_s
        assert source.serving
        assert target.serving
        assert target.role.takes_decoding
        assert not target.queue_full
        assert move.reason.is_for_balance


@given(worlds(), PARAMETERS, DRAWS)
def test_no_node_gets_more_work_than_the_one_that_is_relieved_keeps(
    world: World, parameters: BalanceParameters, draw: float
) -> None:
    moves = balance(world.nodes, world.choices, parameters, draw=draw)
    work = {node.address: rows(node) for node in world.nodes}
    most = max(work.values(), default=0)
    for move in moves:
        assert work[move.source] > parameters.factor * work[move.target]
        work[move.source] -= REQUEST_ROWS
        work[move.target] += REQUEST_ROWS
        assert work[move.source] >= work[move.target]
        assert max(work.values()) <= most


@given(worlds(), PARAMETERS, st.lists(DRAWS, min_size=1, max_size=5), st.sampled_from([0.0, 100.0]))
def test_under_a_load_that_stays_moves_end_and_none_is_taken_back(
    world: World, parameters: BalanceParameters, draws: list[float], seconds: float
) -> None:
    parameters = replace(parameters, cooldown_s=0.0 if seconds == 0.0 else parameters.cooldown_s)
    left: dict[str, set[str]] = {}
    num_quiet = num_rounds = 0
    while num_quiet <= 2 * len(draws):  # longer than any cool-down here
        draw = draws[num_rounds % len(draws)]
        num_rounds += 1
        assert num_rounds < MAX_ROUNDS
        moves = balance(world.nodes, world.choices, parameters, draw=draw)
        num_quiet = 0 if moves else num_quiet + 1
        for move in moves:
            assert move.target not in left.setdefault(move.choice_id, set())
            left[move.choice_id].add(move.source)
        world = world.after(moves, seconds=seconds)


@given(worlds(), PARAMETERS, DRAWS)
def test_nothing_moves_where_work_is_even(world: World, parameters: BalanceParameters, draw: float) -> None:
    even = [replace(node, num_requests=20, num_pending_tokens=300) for node in world.nodes]
    assert balance(even, world.choices, parameters, draw=draw) == []
    one_more = [replace(node, num_requests=node.num_requests + index % 2) for index, node in enumerate(even)]
    assert balance(one_more, world.choices, parameters, draw=draw) == []


@given(worlds(), PARAMETERS, DRAWS)
def test_nothing_moves_while_it_is_off(world: World, parameters: BalanceParameters, draw: float) -> None:
    assert balance(world.nodes, world.choices, replace(parameters, factor=0.0), draw=draw) == []


@given(worlds(), PARAMETERS, DRAWS)
def test_the_order_of_nodes_and_choices_does_not_matter(
    world: World, parameters: BalanceParameters, draw: float
) -> None:
    moves = balance(world.nodes, world.choices, parameters, draw=draw)
    assert balance(world.nodes[::-1], world.choices[::-1], parameters, draw=draw) == moves
