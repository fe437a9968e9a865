"""Fixtures that every test may use: a journal of its own on each real database.

A journal is a copy of one whose tables are there already, or one that another test used and that
was cleaned, because making one takes longer than most tests. What tests the making itself takes an
`empty_` one.
"""

import gc
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

import perdure
from perdure.effects import decorator
from perdure.testing.d1 import Workerd, local_d1
from perdure.testing.postgres import Server, local_postgres
from tests.support.databases import DATABASES, Databases, Journals
from tests.support.fork_server import ForkServer
from tests.support.on_d1 import NOT_ON_D1, SAMPLE, is_left_out, named
from tests.support.trusted_roots import read_once

read_once()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Run in the background of a script: the processes that tests start would be deaf to it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgres)
        if "d1_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.d1)
        if item.get_closest_marker("d1"):
            if excluded := named(item.nodeid, NOT_ON_D1):
                item.add_marker(pytest.mark.skip(reason=f"not on D1: {NOT_ON_D1[excluded]}"))
            elif named(item.nodeid, SAMPLE):
                item.add_marker(pytest.mark.d1_sample)
    if left_out := [item for item in items if is_left_out(item)]:
        config.hook.pytest_deselected(items=left_out)
        gone = {*left_out}
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: looking for garbage need not look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _own_effects() -> Iterator[None]:
    """Effects that a test defines are its own: another test may use their names."""
    yield
    effects = decorator.EFFECTS
    for name in [name for name, one in effects.items() if "<locals>" in one.function.__qualname__]:
        del effects[name]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One PostgreSQL for this process (each xdist worker has its own).

    Without `fsync`, which only matters to a machine that loses power: a killed server loses nothing
    that it handed to the operating system.
    """
    with local_postgres(fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_journals(postgres_server: Server) -> Journals:
    return Journals(postgres_server)


@pytest.fixture(scope="session")
def d1_server() -> Iterator[Workerd]:
    """One workerd with several D1 databases for this process (each xdist worker has its own)."""
    with local_d1() as server:
        yield server


@pytest.fixture(scope="session")
def d1_databases(d1_server: Workerd) -> Iterator[Databases]:
    databases = Databases(d1_server)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with an empty journal, to be copied."""
    path = tmp_path_factory.mktemp("template") / "journal.db"
    perdure.connect(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """The process that forks those that tests kill, one for each xdist worker."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_journals: Journals) -> Iterator[str]:
    """A PostgreSQL database with an empty journal."""
    url = postgres_journals.take()
    yield url
    postgres_journals.give_back(url)


@pytest.fixture
def empty_postgres_url(postgres_server: Server) -> Iterator[str]:
    """A PostgreSQL database with nothing in it."""
    postgres_server.start()  # in case the test before this one left it stopped
    url = postgres_server.database()
    yield url
    postgres_server.start()
    postgres_server.drop(url)


@pytest.fixture
def d1_url(d1_databases: Databases) -> str:
    """A D1 database with an empty journal."""
    return d1_databases.with_journal()


@pytest.fixture
def empty_d1_url(d1_databases: Databases) -> str:
    """A D1 database with nothing in it."""
    return d1_databases.empty()


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A SQLite file with an empty journal."""
    shutil.copy(sqlite_template, tmp_path / "journal.db")
    return f"sqlite:///{tmp_path}/journal.db"


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/journal.db"


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest) -> str:
    """A journal. A test that takes it runs once per database."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(params=DATABASES[1:])
def served_url(request: pytest.FixtureRequest) -> str:
    """A journal on a database that is a server of its own, once for each of them."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def restart(request: pytest.FixtureRequest, served_url: str) -> Callable[[], None]:
    """Restarts the server of `served_url`, without waiting for what it does."""
    kind = "d1" if served_url.startswith("d1") else "postgres"
    server: Server | Workerd = request.getfixturevalue(f"{kind}_server")
    return server.restart


@pytest.fixture(scope="module", params=DATABASES[1:])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """One journal for all tests of a module, each on threads of its own."""
    if request.param == "d1":
        databases: Databases = request.getfixturevalue("d1_databases")
        with databases.kept() as url:
            yield url
    else:
        server: Server = request.getfixturevalue("postgres_server")
        url = server.database()
        yield url
        server.drop(url)


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database without a journal. A test that takes it runs once per database."""
    found: str = request.getfixturevalue(f"empty_{request.param}_url")
    return found
