"""Which of the tests that depend on the database run on D1, and which of them in `make test`.

A test is named by its file and function, or by its file alone for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

SAMPLE: tuple[str, ...] = (
    "examples/test_campaign_d1.py",
    "examples/test_campaign_month.py::test_a_month_on_d1_in_which_a_fifth_of_all_requests_fails",
)
"""What `make test` runs on D1: two minutes of two cores. `make test-all` runs all."""

NO_STORE = "not on D1: LangGraph has no store there, so it cannot be in the journal's database"
"""Why half of `langmem/test_crash.py` is skipped."""

NOT_ON_D1: dict[str, str] = {
    "journal/test_migrations.py::"
    "test_killed_at_any_statement_it_leaves_nothing_and_the_next_connect_finishes_it": (
        "all statements are one batch; the next test there kills around each request"
    ),
    "examples/test_campaign_month.py::test_a_month_in_which_everything_goes_wrong": (
        "the next test there is the same with a fifth of all requests failing"
    ),
    "examples/test_campaign_database.py::test_who_reads_does_not_wait_for_who_writes": (
        "no transaction stays open"
    ),
    "examples/test_campaign_faults.py::test_a_reader_does_not_wait_for_an_open_transaction": (
        "no transaction stays open"
    ),
}
"""Tests that do not run on D1, and why."""


def named(nodeid: str, names: Iterable[str]) -> str | None:
    """The name that is a test's own, if there is one."""
    file, _, function = nodeid.removeprefix("tests/").partition("::")
    own = (file, f"{file}::{function.partition('[')[0]}")
    return next((name for name in names if name in own), None)
