"""Which of the tests that depend on the database run on D1, and which of them in `make test`.

A test is named by its file and function, or by its file alone for all of them. Tests of what only
one database has take `sqlite_url` or `postgres_url`: locks, files, connections, and journals of an
older perdure, since none wrote to D1.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.sweep import EVERY_POINT

SAMPLE = (
    "checkpoint/test_conformance.py",
    "checkpoint/test_saver_state_machine.py",
    "cli/test_d1_doctor.py",
    "cli/test_d1_journal.py",
    "commands/test_signals.py",
    "commands/test_streams.py",
    "effects/test_recorded.py",
    "effects/test_transactional.py",
    "contract/test_effects.py",
    "contract/test_fence.py",
    "contract/test_killed_anywhere.py",
    "contract/test_lost_replies.py",
    "contract/test_migrations.py",
    "contract/test_schedules.py::test_a_crash_between_the_start_and_the_move_starts_no_second_run",
    "contract/test_signals.py",
    "contract/test_streams.py",
    "contract/test_takeover.py::test_a_worker_killed_on_another_host_is_replaced_after_its_lease",
    "contract/test_takeover.py::test_a_worker_killed_on_this_host_is_replaced_at_once",
    "contract/test_transactional.py",
    "contract/test_waits.py::test_a_look_does_not_depend_on_how_many_runs_sleep",
    "execution/test_fence.py",
    "execution/test_limited_database.py",
    "execution/test_requests.py",
    "execution/test_state_machine.py",
    "examples/test_campaign_d1.py",
    "examples/test_campaign_month.py::test_a_month_on_d1_in_which_a_fifth_of_all_requests_fails",
    "journal/test_connect.py",
    "journal/test_d1_faults.py",
    "journal/test_d1_late_batches.py",
    "journal/test_d1_rows.py",
    "journal/test_d1_worker.py",
    "journal/test_journal.py",
    "journal/test_migrations.py",
    "neighbours/test_cloudflare_d1.py",
    "observe/test_traces.py::test_what_a_collector_missed_while_down_two_processes_give_it_once",
    "testing/test_d1_server.py",
)
"""What `make test` runs on D1: two minutes of two cores. `make test-all` runs all."""

NO_STORE = "not on D1: LangGraph has no store there, so it cannot be in the journal's database"
"""Why half of `contract/test_reflections_crash.py` is skipped."""

NOT_ON_D1: dict[str, str] = {
    "contract/test_migrations.py::"
    "test_killed_at_any_statement_it_leaves_nothing_and_the_next_connect_finishes_it": (
        "all statements are one batch; journal/test_migrations.py kills around each request"
    ),
    "examples/test_campaign_month.py::test_a_month_in_which_everything_goes_wrong": (
        "the next test there is the same with a fifth of all requests failing"
    ),
    "contract/test_reflections.py::"
    "test_memories_in_the_journals_database_are_committed_with_the_outcome": (
        "LangGraph has no store there"
    ),
    "server/test_langmem_remote.py": "LangGraph has no store there",
    "testing/test_crashtest.py::test_sleeps_pass_and_questions_are_answered": (
        "crashtest makes a database for each trial"
    ),
}
"""Tests that do not run on D1, and why."""


def named(nodeid: str, names: Iterable[str]) -> str | None:
    """The name that is a test's own, if there is one."""
    file, _, function = nodeid.removeprefix("tests/").partition("::")
    own = (file, f"{file}::{function.partition('[')[0]}")
    return next((name for name in names if name in own), None)


# -- What `make test` leaves to `make test-all`: it has twenty minutes of two cores.

ON_SQLITE = (
    "examples/test_campaign_approval.py",
    "examples/test_campaign_contacts.py",
    "examples/test_campaign_incoming.py",
    "examples/test_campaign_mailbox.py",
    "examples/test_campaign_refused.py",
    "examples/test_campaign_replies.py",
    "examples/test_campaign_touches.py",
    "examples/test_campaign_web.py",
    "checkpoint/test_saver_langgraph.py",
    "cli/test_processes.py",
    (
        "contract/test_stopping.py::"
        "test_a_worker_in_the_middle_of_a_step_finishes_it_and_another_finishes_the_run"
    ),
    "contract/test_stopping.py::test_a_worker_with_a_step_that_never_returns_exits_after_its_grace",
    "contract/test_serving.py",
    "contract/test_stream_restarts.py",
    "contract/test_streams.py::test_a_stream_resumes_after_any_of_its_ids",
    "contract/test_webhooks.py",
    "langmem/test_processes.py",
    "server/test_authentication.py",
    "server/test_embedding.py",
    "server/test_langmem_remote.py",
    "server/test_own_api.py",
    "server/test_protocol_v2.py",
    "server/test_remote_graph.py",
    "server/test_resource_authorization.py",
    "server/test_run_authorization.py",
    "server/test_run_streams.py",
    "server/test_server.py",
    "server/test_use_stream.py",
    "testing/test_crashtest.py",
)
LEFT_OUT: tuple[str, ...] = ()


def is_left_out(item: pytest.Item) -> bool:
    """Whether `make test` leaves a test out."""
    if EVERY_POINT:
        return False
    on_postgres = item.get_closest_marker("postgres") is not None
    return bool(named(item.nodeid, LEFT_OUT) or (on_postgres and named(item.nodeid, ON_SQLITE)))
