"""Commands and their wording are the same on each database: their tests run on SQLite."""

import pytest


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url
