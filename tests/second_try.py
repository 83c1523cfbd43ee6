"""A second try for tests whose parts are real: processes, sockets and clocks of a machine that may be busy.

pytest-rerunfailures tries again and names what needed it. The hooks here say which tests those are, and see
to two things that it leaves alone: what a failed test shared with others, such as a stack whose nodes it
killed, is built anew, and the second try has a time limit of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_exception_interact",
    "pytest_runtest_teardown",
    "pytest_timeout_set_timer",
]

FOLDERS = ("tests/integration", "tests/e2e")
"""Where tests have real parts. A unit or property test that fails once has found a fault."""
_FAILED = pytest.StashKey[bool]()
_TIME_LIMIT = pytest.StashKey[Any]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("usepdb"):  # who debugs wants the first failure
        return
    folders = [config.rootpath / folder for folder in FOLDERS]
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Remember the limit; the plugin, which comes after, sets it."""
    item.stash[_TIME_LIMIT] = settings


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Set the time limit again: pytest-timeout takes it away at the first failure."""
    if isinstance(node, pytest.Item) and node.get_closest_marker("flaky"):
        node.stash[_FAILED] = True
        if _TIME_LIMIT in node.stash:
            node.config.hook.pytest_timeout_set_timer(item=node, settings=node.stash[_TIME_LIMIT])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Take down fixtures of every scope after a failure, for nobody knows what is left of them."""
    if item.stash.get(_FAILED, False):
        item.stash[_FAILED] = False
        item.session._setupstate.teardown_exact(None)
