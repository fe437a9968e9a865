"""For test modules whose subject does not depend on the database: `url` is that of SQLite."""

from __future__ import annotations

import pytest


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url
