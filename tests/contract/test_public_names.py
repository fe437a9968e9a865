"""The tests here, and the helpers that they import, use public names only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = {
    "perdure",
    "perdure.commands",
    "perdure.commands.threads",  # records of threads and tokens have no method of their own
    "perdure.commands.tokens",
    "perdure.d1",
    "perdure.errors",
    "perdure.evals",
    "perdure.langchain",
    "perdure.langmem",
    "perdure.observe",
    "perdure.testing",
    "perdure.types",
}
FROM_INSIDE = {
    "tests.contract.delete_child",  # gives each database the limits of a small one
    "tests.support.hostile_journal",  # finds everything that a page could show
    "tests.support.ui_addresses",
}
"""Helpers that need to know what they help to test from inside."""


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports when it is imported itself."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def internals(path: Path) -> frozenset[str]:
    """The modules of perdure that are not public, of a file and the helpers that it imports."""
    found = set[str]()
    for name in imports(path):
        helper = ROOT / f"{name.replace('.', '/')}.py"
        if name.startswith("tests.") and helper.is_file() and name not in FROM_INSIDE:
            found |= internals(helper)
        elif is_internal(name):
            found.add(name)
    return frozenset(found)


def is_internal(name: str) -> bool:
    """Whether this is a module of perdure, and not a public one. Not all names are modules."""
    if not name.startswith("perdure.") or name in PUBLIC or name.startswith("perdure.testing."):
        return False
    path = ROOT / "src" / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parent.glob("test_*.py")), ids=lambda p: p.stem
)
def test_a_contract_uses_public_names_only(path: Path) -> None:
    assert not internals(path)
