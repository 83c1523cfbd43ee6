from __future__ import annotations

from kernelflume.router.identifiers import Identifiers


def test_ids_are_32_digits_each_of_its_own() -> None:
    identifiers = Identifiers()
    ids = [identifiers.new() for _ in range(1000)]  # of more than one call to the system
    assert len(set(ids)) == 1000
    assert {len(bytes.fromhex(one)) for one in ids} == {16}
