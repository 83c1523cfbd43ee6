"""The words that graphs and step loops signal each other by."""

from __future__ import annotations

import pytest

from kernelflume.cuda.flags import FlagKind, StepFlags


def test_a_graph_that_nobody_drives_runs_through() -> None:
    flags = StepFlags(3, pinned=False)
    assert all(flags.is_set(kind, layer) for kind in FlagKind for layer in range(3))


def test_a_step_begins_with_no_flag_and_sets_them_one_by_one() -> None:
    flags = StepFlags(3, pinned=False)
    flags.clear()
    flags.set(FlagKind.KEYS_VALUES, 1)
    found = [(kind, layer) for kind in FlagKind for layer in range(3) if flags.is_set(kind, layer)]
    assert found == [(FlagKind.KEYS_VALUES, 1)]
    flags.set_all(FlagKind.ATTENTION)
    assert all(flags.is_set(FlagKind.ATTENTION, layer) for layer in range(3))
    assert not flags.is_set(FlagKind.QUERY, 2)


@pytest.mark.parametrize("num_layers", [1, 16, 17, 80])
def test_every_flag_has_an_address_and_kinds_share_no_cache_line(num_layers: int) -> None:
    flags = StepFlags(num_layers, pinned=False)
    lines = [{flags.address(kind, layer) // 4 // 16 for layer in range(num_layers)} for kind in FlagKind]
    addresses = {flags.address(kind, layer) for kind in FlagKind for layer in range(num_layers)}
    assert len(addresses) == len(FlagKind) * num_layers
    start = flags.address(FlagKind.QUERY, 0)
    assert all((flags.address(kind, 0) - start) % 64 == 0 for kind in FlagKind)
    assert sum(map(len, lines)) >= len(FlagKind)


def test_a_layer_that_is_not_there_has_no_address() -> None:
    with pytest.raises(IndexError, match="layer 3 of 3"):
        StepFlags(3, pinned=False).address(FlagKind.QUERY, 3)
