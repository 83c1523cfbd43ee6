from __future__ import annotations

import pytest

from kernelflume.anode.ranges import HeldRanges
from kernelflume.core.errors import LifecycleError
from kernelflume.core.ranges import TokenRange


def test_positions_that_follow_extend_the_last_range() -> None:
    held = HeldRanges()
    held.append(0, 5)
    held.append(5, 1)
    assert held.ranges == (TokenRange(0, 6),)
    assert held.num_tokens == held.end == 6


def test_positions_may_jump_over_what_another_node_holds() -> None:
    held = HeldRanges()
    held.append(10, 5)
    held.append(40, 2)
    assert held.ranges == (TokenRange(10, 15), TokenRange(40, 42))
    assert held.num_tokens == 7
    assert held.end == 42


@pytest.mark.parametrize(("start", "num_tokens"), [(14, 1), (0, 3), (15, 0), (15, -1)])
def test_positions_never_go_back(start: int, num_tokens: int) -> None:
    held = HeldRanges()
    held.append(10, 5)
    with pytest.raises(LifecycleError, match="cannot follow"):
        held.append(start, num_tokens)
    assert held.ranges == (TokenRange(10, 15),)
    assert held.num_tokens == 5
