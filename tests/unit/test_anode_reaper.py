from __future__ import annotations

from kernelflume.anode.reaper import LeaseReaper


def test_a_link_ends_when_its_lease_is_missing_for_the_grace() -> None:
    reaper = LeaseReaper(grace_s=10)
    assert reaper.observe(["w#1", "v#1"], {"w#1", "v#1"}, 0) == ()
    assert reaper.observe(["w#1", "v#1"], {"v#1"}, 1) == ()
    assert reaper.observe(["w#1", "v#1"], {"v#1"}, 10.9) == ()
    assert reaper.observe(["w#1", "v#1"], {"v#1"}, 11) == ("w#1",)


def test_another_incarnation_of_the_node_does_not_count() -> None:
    reaper = LeaseReaper(grace_s=10)
    reaper.observe(["w#1"], {"w#2"}, 0)
    assert reaper.observe(["w#1"], {"w#2"}, 10) == ("w#1",)


def test_a_lease_that_comes_back_starts_the_grace_anew() -> None:
    reaper = LeaseReaper(grace_s=10)
    reaper.observe(["w#1"], (), 0)
    reaper.observe(["w#1"], {"w#1"}, 9)
    reaper.observe(["w#1"], (), 10)
    assert reaper.observe(["w#1"], (), 19) == ()
    assert reaper.observe(["w#1"], (), 20) == ("w#1",)


def test_an_outage_of_the_store_counts_for_nothing() -> None:
    reaper = LeaseReaper(grace_s=10)
    reaper.observe(["w#1"], (), 0)
    assert reaper.observe(["w#1"], None, 100) == ()
    # The store is back, empty: leases need a moment to be renewed.
    assert reaper.observe(["w#1"], (), 101) == ()
    assert reaper.observe(["w#1"], (), 111) == ("w#1",)


def test_a_link_that_is_gone_is_forgotten() -> None:
    reaper = LeaseReaper(grace_s=10)
    reaper.observe(["w#1"], (), 0)
    reaper.observe([], (), 5)
    assert reaper.observe(["w#1"], (), 12) == ()
