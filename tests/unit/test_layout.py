"""Rules of the repository that no other tool keeps."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernelflume.cli.main import app
from kernelflume.cli.services import SERVICES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / "libs" / "kernelflume", *sorted((ROOT / "services").glob("*/kernelflume"))]
MODULES = [
    path
    for package in PACKAGES
    for path in sorted(package.rglob("*.py"))
    if not path.stem.endswith(("_pb2", "_pb2_grpc"))
]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_part_is_found() -> None:
    assert [package.parent.name for package in PACKAGES] == ["libs", "anode", "router", "scaler", "wnode"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.parent.name)
def test_the_namespace_package_has_no_init(package: Path) -> None:
    # It would hide the parts of the namespace that lie in other folders.
    assert not (package / "__init__.py").exists()


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text()))


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in MODULES} - set(PACKAGES)
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_links_between_documents_hold() -> None:
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("compose/*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
            assert "://" in link or (document.parent / link).exists(), f"{document.name}: {link}"


def test_every_dependency_is_pinned() -> None:
    def names(requirements: list[str]) -> set[str]:
        found = (re.match(r"[A-Za-z0-9._-]+", text) for text in requirements)
        return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}

    optional = PROJECT["project"]["optional-dependencies"].values()
    wanted = names([*PROJECT["project"]["dependencies"], *(item for group in optional for item in group)])
    lines = (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in pinned), (
        "exact releases only"
    )
    assert wanted - {"kernelflume"} <= names(pinned)


def test_the_readme_s_commands_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"^(?:\.venv/bin/)?kernelflume (\w+)", text, re.MULTILINE):
        # A service takes the place of the process that starts it, which would be this one.
        assert name in SERVICES or CliRunner().invoke(app, [name, "--help"]).exit_code == 0, name
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`?make ([a-z]+)", text)) <= set(targets)


def test_every_section_of_the_paper_that_is_cited_is_in_the_documents() -> None:
    listed = re.findall(r"^\| ([0-9.]+)", (ROOT / "docs" / "paper.md").read_text(), re.MULTILINE)
    modules = [*MODULES, *(ROOT / "benchmarks").glob("*.py")]
    cited = [
        section
        for module in modules
        for found in re.findall(
            r"[Pp]aper sections? ([0-9.]*[0-9](?: and [0-9.]*[0-9])?)", module.read_text()
        )
        for section in found.split(" and ")
    ]
    assert set(cited) == set(listed)
