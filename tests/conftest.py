"""Fixtures and settings that all tests share."""

import os

from hypothesis import settings

from tests.certificates import authority, folder, node
from tests.second_try import (
    pytest_collection_modifyitems,
    pytest_exception_interact,
    pytest_runtest_teardown,
    pytest_timeout_set_timer,
)
from tests.valkey import valkey, valkey_url

__all__ = [
    "authority",
    "folder",
    "node",
    "pytest_collection_modifyitems",
    "pytest_exception_interact",
    "pytest_runtest_teardown",
    "pytest_timeout_set_timer",
    "valkey",
    "valkey_url",
]

# A busy machine may take any time for an example; none is failed for it.
settings.register_profile("kernelflume", deadline=None)
settings.load_profile("kernelflume")

# Nearly no test asks for a grammar: starting what compiles them would keep each node's processor for seconds.
os.environ.setdefault("KERNELFLUME_WNODE_PREPARE_GRAMMARS", "false")
