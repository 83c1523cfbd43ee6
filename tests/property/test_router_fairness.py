"""The fair queue against a simulation: shares of tokens, bounds, and nobody forgotten."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelflume.router.fairness import FairQueue

Waiter = tuple[str, int]


@pytest.mark.parametrize("costs", [(10, 10), (10, 1000), (500, 20)])
def test_two_that_always_wait_get_tokens_by_their_weights(costs: tuple[int, int]) -> None:
    queue: FairQueue[Waiter] = FairQueue(100)
    weights = {"a": 3.0, "b": 1.0}
    served: Counter[str] = Counter()
    for index in range(8):
        for name, weight in weights.items():
            queue.push(name, weight, (name, index))
    for index in range(4000):
        waiter = queue.pop()
        assert waiter is not None
        name = waiter[0]
        cost = costs[name == "b"]
        queue.charge(name, cost)
        served[name] += cost
        queue.push(name, weights[name], (name, 8 + index))
        queue.ended(name)
    assert abs(served["a"] / 3 - served["b"]) <= max(costs)


def test_one_that_comes_back_again_and_again_gains_nothing() -> None:
    queue: FairQueue[str] = FairQueue(100)
    served: Counter[str] = Counter()
    for _ in range(50):
        queue.push("steady", 1.0, "steady")
    queue.push("visitor", 1.0, "visitor")
    for _ in range(40):
        name = queue.pop()
        assert name is not None
        cost = 1000 if name == "visitor" else 100
        queue.charge(name, cost)
        served[name] += cost
        queue.ended(name)
        if name == "visitor":  # idle for a moment before its next request
            queue.push("visitor", 1.0, "visitor")
    assert abs(served["visitor"] - served["steady"]) <= 1000


def test_who_was_away_has_saved_nothing_up() -> None:
    queue: FairQueue[str] = FairQueue(100)
    for _ in range(30):
        queue.push("busy", 1.0, "busy")
    for _ in range(10):
        queue.pop()
        queue.charge("busy", 100)
    for _ in range(10):
        queue.push("late", 1.0, "late")
    order = []
    for _ in range(10):
        name = queue.pop()
        assert name is not None
        queue.charge(name, 100)
        order.append(name)
    assert abs(order.count("late") - order.count("busy")) <= 1


def test_whoever_fills_the_queue_is_refused() -> None:
    queue: FairQueue[Waiter] = FairQueue(3)
    for index in range(3):
        assert queue.push("greedy", 1.0, ("greedy", index)) is None
    assert queue.push("greedy", 1.0, ("greedy", 3)) == ("greedy", 3)
    assert queue.push("modest", 1.0, ("modest", 0)) == ("greedy", 2)
    assert len(queue) == 3


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["push", "pop", "remove", "end"]))))
def test_counts_always_add_up(steps: list[tuple[str, str]]) -> None:
    queue: FairQueue[Waiter] = FairQueue(5)
    waiting: list[Waiter] = []
    running: Counter[str] = Counter()
    for number, (name, step) in enumerate(steps):
        if step == "push":
            waiting.append((name, number))
            refused = queue.push(name, 1.0, (name, number))
            if refused is not None:
                waiting.remove(refused)
        elif step == "pop":
            waiter = queue.pop()
            assert (waiter is None) == (not waiting)
            if waiter is not None:
                # First come, first served among a tenant's own.
                assert waiter == next(one for one in waiting if one[0] == waiter[0])
                waiting.remove(waiter)
                running[waiter[0]] += 1
                queue.charge(waiter[0], number)
        elif step == "remove" and waiting:
            gone = waiting.pop()
            assert queue.remove(gone[0], gone)
            assert not queue.remove(gone[0], gone)
        elif step == "end" and running[name]:
            running[name] -= 1
            queue.ended(name)
        assert len(queue) == len(waiting) <= 5
        assert all(queue.num_running(tenant) == running[tenant] for tenant in "abcd")
    assert sorted(queue.clear()) == sorted(waiting)
