"""Agents of every shape survive being killed: a few points of each, of those `make crash-matrix`
kills all."""

from __future__ import annotations

import pytest

from matrix.__main__ import INTRO, MADE, SHAPES, Line, render
from matrix.evidence import PAGE
from matrix.graphs import INPUTS
from perdure.testing.crashtest import CrashTest
from tests.support.crashtest_server import warm as warm
from tests.support.written_pages import says

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.slow
def test_the_stock_saver_duplicates_what_perdure_does_not() -> None:
    test = CrashTest("matrix.graphs:chain", INPUTS["chain"], stock=True, recovery=0, limit=12)
    assert test.run().counts["duplicated"] > 0


def test_the_page_says_what_was_counted() -> None:
    counts = {"points": 10, "trials": 20, "duplicated": 5}
    lines = [Line("chain", database, "perdure", counts) for database in ("SQLite", "PostgreSQL")]
    page = render(lines, 60.0)
    assert "40 kills at 20 points: 10 duplicated, 0 lost" in page
    assert f"| {SHAPES['chain']} | 10 duplicated of 40 |" in page


def test_the_committed_page_says_what_its_source_says() -> None:
    page = PAGE.read_text()
    for part in (INTRO, MADE, *SHAPES.values()):
        assert says(page, part), part
