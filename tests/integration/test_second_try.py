"""Which tests are tried once more after a failure, and with what: pytest itself runs small files of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = [
    f"-p{name}"
    for name in ("pytest_asyncio.plugin", "pytest_rerunfailures", "pytest_timeout", "no:cacheprovider")
]
ROOT = Path(__file__).parents[2]
SHARED = """
import itertools
import pytest
import pytest_asyncio

built = itertools.count(1)
tries = itertools.count(1)

@pytest.fixture(scope="module")
def stack():
    yield {"build": next(built), "nodes": 2}

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(stack):
    yield stack
"""
"""A stack that tests share, through a fixture of pytest-asyncio too."""


def run_pytest(folder: Path, code: str, *arguments: str, under: str) -> tuple[int, str]:
    """Run tests with the project's own settings and hooks; returns the exit status and what was printed."""
    tests = folder / "tests" / under
    tests.mkdir(parents=True)
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (folder / "tests" / "conftest.py").write_text(
        "from tests.second_try import *\nfrom tests.second_try import __all__\n"
    )
    (folder / "tests" / "second_try.py").write_text((ROOT / "tests" / "second_try.py").read_text())
    (tests / "test_sample.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGINS, *arguments],
        cwd=folder,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_second_try_finds_a_new_stack(tmp_path: Path) -> None:
    code = f"""{SHARED}
def test_before(stack):
    assert stack["build"] == 1

@pytest.mark.asyncio(loop_scope="module")
async def test_kills_a_node(stack, runner):
    stack["nodes"] -= 1
    assert next(tries) == 2, "a passing trouble"
    assert (stack["build"], stack["nodes"], runner["build"]) == (2, 1, 2)

def test_after(stack):
    assert (stack["build"], stack["nodes"]) == (2, 1)
"""
    status, said = run_pytest(tmp_path, code, under="integration")
    assert status == 0, said
    assert "3 passed, 1 rerun in" in said
    assert "RERUN tests/integration/test_sample.py::test_kills_a_node" in said
    assert "a passing trouble" in said


def test_what_fails_twice_has_failed_and_the_next_test_finds_a_new_stack(tmp_path: Path) -> None:
    code = f"""{SHARED}
def test_never(stack):
    assert stack["build"] == 0

def test_after(stack):
    assert stack["build"] == 3
"""
    status, said = run_pytest(tmp_path, code, under="e2e")
    assert status == 1, said
    assert "1 failed, 1 passed, 1 rerun in" in said


@pytest.mark.parametrize("under", ["unit", "property"])
def test_tests_without_real_parts_have_one_try(tmp_path: Path, under: str) -> None:
    code = f"""{SHARED}
def test_once(stack):
    assert next(tries) == 2
"""
    status, said = run_pytest(tmp_path, code, under=under)
    assert status == 1, said
    assert "1 failed in" in said


def test_a_shared_stack_that_did_not_come_up_or_end_is_tried_again(tmp_path: Path) -> None:
    code = """
import itertools
import pytest

starts = itertools.count(1)
ends = itertools.count(1)

@pytest.fixture(scope="module")
def stack():
    assert next(starts) > 1, "no port"
    yield
    assert next(ends) > 1, "left a process"

async def test_of_it(stack):
    pass
"""
    status, said = run_pytest(tmp_path, code, under="integration")
    # One second try: the fixture of the first try never came up, and the second one's end fails.
    assert status == 1, said
    assert "no port" in said
    assert "1 passed, 1 error, 1 rerun in" in said


def test_both_tries_have_the_whole_time_limit(tmp_path: Path) -> None:
    code = """
import time

def test_hangs():
    time.sleep(100)
"""
    status, said = run_pytest(tmp_path, code, "--timeout", "2", under="integration")
    assert status == 1, said
    assert said.count("Timeout (>2.0s)") >= 2
    assert "1 failed, 1 rerun in" in said


def test_a_project_that_is_broken_is_not_tried_twice_over(tmp_path: Path) -> None:
    code = """
import pytest

@pytest.mark.parametrize("number", range(30))
def test_broken(number):
    assert number < 0
"""
    status, said = run_pytest(tmp_path, code, under="integration")
    assert status == 1, said
    assert "30 failed, 8 rerun in" in said
