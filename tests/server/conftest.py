"""Which tests of the server run on PostgreSQL: in `make test` those that reach the journal in a way
of their own, in `make test-all` every one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sweep import EVERY_POINT

HERE = Path(__file__).parent
ON_SQLITE = {
    "test_abuse.py",
    "test_embedding.py",
    "test_gate.py",
    "test_langmem_remote.py",
    "test_own_api.py",
    "test_protocol_v2.py",
    "test_remote_graph.py",
    "test_resource_authorization.py",
    "test_run_authorization.py",
    "test_run_streams.py",
    "test_server.py",
    "test_stream_restarts.py",
    "test_use_stream.py",
}
"""What they try is in the server alone: the database is behind the same calls as elsewhere."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EVERY_POINT:
        return
    left_out = [
        item
        for item in items
        if item.path.parent == HERE
        and item.path.name in ON_SQLITE
        and item.get_closest_marker("postgres")
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
