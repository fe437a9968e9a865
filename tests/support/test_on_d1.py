"""The lists of tests that run on D1 name tests that there are."""

from pathlib import Path

import pytest

from tests.support.on_d1 import NOT_ON_D1, SAMPLE, named

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("name", [*SAMPLE, *NOT_ON_D1])
def test_a_listed_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    text = (TESTS / file).read_text()
    assert not function or f"def {function}(" in text


def test_a_test_is_named_by_its_file_or_its_function() -> None:
    nodeid = "tests/journal/test_a.py::test_one[d1-x::y[0]]"
    assert named(nodeid, ["journal/test_a.py"]) == "journal/test_a.py"
    assert named(nodeid, ["journal/test_a.py::test_one"]) == "journal/test_a.py::test_one"
    assert named(nodeid, ["journal/test_a.py::test_two", "test_a.py"]) is None
