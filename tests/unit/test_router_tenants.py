"""Whom a request is from, and what that keeps apart."""

from __future__ import annotations

from kernelflume.router.tenants import EVERYBODY, Tenant


def test_salts_of_two_keys_never_meet_whatever_requests_ask_for() -> None:
    salts = [
        Tenant(tenant_id, "name").cache_salt(own)
        for tenant_id in ("a", "ab", "1:a", "everybody")
        for own in (None, "b", "bc", "a", "1:a")
    ]
    salts += [EVERYBODY.cache_salt("c"), EVERYBODY.cache_salt(None), *map(EVERYBODY.cache_salt, salts)]
    assert len(set(salts)) == len(salts)


def test_without_keys_all_share() -> None:
    assert EVERYBODY.cache_salt(None) == ""
