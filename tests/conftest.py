"""Fixtures that every test may use: a fresh journal URL on each real database."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing.postgres import Server, local_postgres

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background of a script: the processes that tests start would be deaf to it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One PostgreSQL for this process (each xdist worker has its own), with `fsync` on."""
    with local_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """A fresh, empty PostgreSQL database."""
    postgres_server.start()  # in case the test before this one left it stopped
    url = postgres_server.database()
    yield url
    postgres_server.start()
    postgres_server.drop(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/journal.db"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A fresh journal URL. A test that takes it runs once per database."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found
