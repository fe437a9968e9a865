"""The bugs of `planted.py` can still be planted, each in one place, for a test that is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.contract.planted import BUGS, Bug, places

HERE = Path(__file__).parent


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_has_one_place_and_a_test(bug: Bug) -> None:
    assert len(places(bug.text)) == 1, f"{bug.text!r} is {len(places(bug.text))} times in src"
    file, _, name = bug.test.partition("::")
    tree = ast.parse((HERE / file).read_text())
    assert not name or name.partition("[")[0] in {getattr(node, "name", "") for node in tree.body}


def test_names_are_different() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 40
