"""The docs list the tests of LangGraph that fail on perdure, as `make upstream` checks them."""

from __future__ import annotations

from upstream.__main__ import Comparison, Result, function_of
from upstream.differences import PAGE, Difference, load, render, replace_block

PASSED, FAILED = "passed", "failed"


def test_the_docs_have_the_list_that_is_checked() -> None:
    page = PAGE.read_text()
    assert replace_block(page, "upstream differences", render(load())) == page


def test_each_test_is_listed_with_one_reason() -> None:
    for part in ("saver", "bound"):
        listed = [name for one in load() for name in one.of(part)]
        assert sorted(set(listed)) == sorted(listed)
        assert all(function_of(name) == name and "::" in name for name in listed)


def compared(expected: list[Difference], **ours: str) -> Comparison:
    stock = {f"test_a.py::{name}": Result() for name in ours}
    found = {f"test_a.py::{name}": Result(outcome, {"bound"}) for name, outcome in ours.items()}
    return Comparison("bound", stock, found, expected)


def test_a_failure_that_is_not_listed_and_a_listed_test_that_passes_are_both_found() -> None:
    listed = [Difference("why", bound=("test_a.py::old", "test_a.py::known"))]
    found = compared(listed, new=FAILED, known=FAILED, old=PASSED, fine=PASSED)
    assert found.unexpected == ["test_a.py::new"]
    assert found.unexpected_passes == ["test_a.py::old"]
    assert "of 4 tests (4 with their parameters)" in found.summary
    assert "2 pass (2)" in found.summary


def test_what_fails_without_perdure_or_does_not_use_it_does_not_count() -> None:
    stock = {"a.py::one": Result(FAILED), "a.py::two": Result()}
    ours = {"a.py::one": Result(FAILED, {"bound"}), "a.py::two": Result(FAILED, {"saver"})}
    assert Comparison("bound", stock, ours, []).tests == []
    assert Comparison("saver", stock, ours, []).unexpected == ["a.py::two"]
