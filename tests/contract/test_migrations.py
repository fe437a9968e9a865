"""A journal that is made or refused is never half made, and never touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import perdure
from perdure.errors import SchemaTooNew
from perdure.testing import crash_at, watch_points
from tests.support.raw import execute
from tests.support.sweep import sample


def tables(url: str) -> list[str]:
    if url.startswith("postgresql"):
        rows = execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    else:
        rows = execute(url, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    return sorted(row[0] for row in rows if not row[0].startswith("_cf_"))  # workerd's own


def killed_at(url: str, point: str, n: int) -> None:
    """Make a journal in a forked process that dies the n-th time it is at this point."""
    if (pid := os.fork()) == 0:
        try:
            with crash_at(point, n):
                perdure.connect(url)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_at_any_statement_it_leaves_nothing_and_the_next_connect_finishes_it(
    empty_url: str, tmp_path: Path
) -> None:
    whole, reached = f"sqlite:///{tmp_path}/whole.db", list[str]()
    before = watch_points(reached.append)
    perdure.connect(whole).close()
    watch_points(before)
    count = reached.count("migrate.before")
    assert count > 50
    for n in sample(range(1, count + 1), 6):
        killed_at(empty_url, "migrate.before", n)
        assert tables(empty_url) == []
    killed_at(empty_url, "migrate.after", count)  # before COMMIT
    assert tables(empty_url) == []
    with perdure.Client(empty_url) as client:
        assert client.blocking.signal("t", "news", 1)
        assert not client.blocking.doctor().findings
    assert tables(empty_url) == tables(whole)


def test_a_newer_schema_is_refused_and_not_touched(empty_url: str) -> None:
    with perdure.Client(empty_url) as client:
        client.blocking.signal("t", "news", 1)
        known = client.schema_version()
    execute(empty_url, "INSERT INTO perdure_schema VALUES (9999)")
    with pytest.raises(SchemaTooNew, match="Upgrade perdure") as error:
        perdure.connect(empty_url)
    assert (error.value.found, error.value.known) == (9999, known)
    execute(empty_url, "DELETE FROM perdure_schema WHERE version = 9999")
    assert execute(empty_url, "SELECT thread_id FROM perdure_signals") == [("t",)]
    assert perdure.Client(empty_url).schema_version() == known
