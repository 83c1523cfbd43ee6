from __future__ import annotations

import pytest

from kernelflume.core.names import node_name, split_name


def test_a_name_tells_the_node_and_its_start() -> None:
    assert node_name("a-1", "0f") == "a-1#0f"
    assert split_name("a-1#0f") == ("a-1", "0f")


@pytest.mark.parametrize(("name", "parts"), [("a-1", ("a-1", "")), ("#0f", ("", "0f")), ("", ("", ""))])
def test_a_part_that_is_missing_is_empty(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts
