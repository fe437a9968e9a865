"""What `make test` leaves to `make test-all`: it has twenty minutes of two cores.

The files in `ON_SQLITE` try what reaches the journal by the same calls on every database, so they
do without PostgreSQL. What is in `LEFT_OUT` repeats a promise that another test keeps. To run
one of these by hand: `PERDURE_EVERY_POINT=1 pytest ...`.
"""

from __future__ import annotations

import pytest

from tests.support.on_d1 import named
from tests.support.sweep import EVERY_POINT

ON_SQLITE = (
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
    "server/test_abuse.py",
    "server/test_embedding.py",
    "server/test_gate.py",
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
