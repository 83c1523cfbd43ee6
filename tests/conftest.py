"""Fixtures that all tests share."""

from tests.valkey import valkey, valkey_url

__all__ = ["valkey", "valkey_url"]
