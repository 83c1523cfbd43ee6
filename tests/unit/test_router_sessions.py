"""What the router remembers of sessions and prompts."""

from __future__ import annotations

import random

from kernelflume.core.blocks import block_keys
from kernelflume.router.prefixes import ContextKeys, Known, PrefixIndex, key_ends
from kernelflume.router.sessions import SessionTable, session_key
from kernelflume.runtime.clock import ManualClock

BLOCK = 4


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(50_000), k=count)  # noqa: S311 - a repeatable prompt


def context(token_ids: list[int], *, salt: str = "") -> ContextKeys:
    keys = ContextKeys(BLOCK, salt=salt)
    keys.extend(token_ids)
    return keys


def test_the_latest_sessions_are_remembered_for_a_while() -> None:
    clock = ManualClock()
    table = SessionTable(max_sessions=2, ttl_s=10.0, clock=clock)
    a, b, c = (session_key("t", name) for name in "abc")
    table.pin(a, "1")
    clock.advance(4)
    table.pin(b, "2")
    table.pin(a, "3")
    table.pin(c, "4")
    assert [table.address(key) for key in (a, b, c)] == ["3", None, "4"]
    clock.advance(9)
    table.pin(c, "5")
    clock.advance(2)
    assert [table.address(key) for key in (a, c)] == [None, "5"]
    assert len(table) == 1


def test_tenants_have_sessions_of_their_own() -> None:
    keys = {session_key(tenant, name) for tenant in ("", "t", "u") for name in ("", "s", "\ud800")}
    assert len(keys) == 9
    assert session_key("t", "s" * 100_000) == session_key("t", "s" * 100_000)


def test_keys_are_those_of_weight_nodes_but_fewer_of_a_long_context() -> None:
    token_ids = tokens(9_000)
    theirs = block_keys(token_ids, BLOCK, salt="s")
    whole = context(token_ids, salt="s")
    assert whole.keys == [theirs[end // BLOCK - 1] for end in whole.ends]
    assert whole.ends == list(key_ends(9_000, BLOCK))
    steps = {end: later - end for end, later in zip(whole.ends, whole.ends[1:], strict=False)}
    assert (steps[4], steps[256 * BLOCK], steps[1024 * BLOCK]) == (BLOCK, 4 * BLOCK, 16 * BLOCK)
    for cut in (0, 3, 1_023, 1_024, 5_001, 9_000):
        grown = ContextKeys(BLOCK, salt="s")
        grown.extend(token_ids[:cut])
        grown.extend(token_ids[cut:])
        assert (grown.keys, grown.ends) == (whole.keys, whole.ends)
    assert not set(whole.keys) & set(context(token_ids).keys)


def test_the_longest_beginning_that_was_computed_is_known() -> None:
    index = PrefixIndex(1_000)
    first = context(tokens(42))
    assert index.look(first) == Known()
    index.add(first, "w-1")
    assert index.look(context(tokens(42) + tokens(10, seed=1))) == Known(40, "w-1")
    assert index.look(context(tokens(42)[:30])) == Known(28, None)
    assert index.look(context(tokens(42, seed=2))) == Known()
    # The pool had less of it.
    index.correct(first, 16)
    assert index.look(first).num_tokens == 16


def test_a_common_beginning_pins_no_session() -> None:
    index = PrefixIndex(1_000)
    system = tokens(40)
    mine = system + tokens(24, seed=1)
    index.add(context(mine), "w-1")
    assert index.look(context(system + tokens(24, seed=2))) == Known(40, None)
    assert index.look(context(mine + tokens(8, seed=3))) == Known(64, "w-1")
    # The session goes on elsewhere, and its next turn follows it there.
    longer = mine + tokens(40, seed=4)
    index.add(context(longer), "w-2")
    assert index.look(context(longer + tokens(9, seed=5))).address == "w-2"


def test_what_was_used_longest_ago_is_forgotten_from_its_end() -> None:
    index = PrefixIndex(12)
    old, new = context(tokens(40)), context(tokens(24, seed=1))
    index.add(old, "w-1")
    index.add(new, "w-1")
    assert len(index) == 12
    assert index.look(new).num_tokens == 24
    assert index.look(old) == Known(24, None)
