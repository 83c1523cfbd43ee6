"""Fixtures and settings that all tests share."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

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
    "same_numbers",
    "valkey",
    "valkey_url",
]

# A busy machine may take any time for an example; none is failed for it. The same examples are tried in every
# run: `--hypothesis-profile=search` looks for others.
_PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("kernelflume", derandomize=True, **_PATIENT)
settings.register_profile("search", **_PATIENT)
settings.load_profile("kernelflume")

# Nearly no test asks for a grammar: starting what compiles them would keep each node's processor for seconds.
os.environ.setdefault("KERNELFLUME_WNODE_PREPARE_GRAMMARS", "false")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Let every test draw the random numbers that it drew in the last run."""
    random.seed(0)
    if "torch" in sys.modules:  # what does without stays without
        sys.modules["torch"].manual_seed(0)
