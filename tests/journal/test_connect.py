"""A database that cannot be the journal is refused by `connect`, with an error that names the
place, the reason and what to do; one that can be is opened however its URL is written."""

from __future__ import annotations

import os
import pwd
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.errors import BadURL, Error, Unavailable
from perdure.journal import connect, sqlite_file
from perdure.testing.postgres import Server, local_postgres
from tests.support.databases import EMPTY, Databases
from tests.support.entries import add, entries, stored

# -- the URL


@pytest.fixture
def url(empty_url: str) -> str:
    """A database whose tables are still to be made."""
    return empty_url


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "No database given"),
        ("agents.db", "is not the start of a database URL"),
        ("mysql://localhost/agents", "is not the start of a database URL"),
        ("https://perdure.example.workers.dev/", "is d1://host/"),
        ("sqlite:agents.db", "names no file"),
        ("sqlite://agents.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///agents.db?sync=full", "unknown option 'sync'"),
        ("sqlite:///agents.db?synchronous=off", "synchronous is full"),
        ("postgresql://user:secret@host/agents?nonsense=1", "malformed"),
    ],
)
def test_a_url_that_means_nothing_is_refused(
    url: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_URL", raising=False)
    with pytest.raises(BadURL, match=reason) as refused:
        connect(url)
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///agents.db", "agents.db"),
        ("sqlite:///{}/agents.db?synchronous=extra", "agents.db"),
        ("sqlite:///{}/my%20agents%3F%25.db", "my agents?%.db"),
    ],
    ids=["relative to the working directory", "absolute", "percent signs"],
)
def test_a_url_names_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    connect(url.format(tmp_path)).close()
    assert (tmp_path / name).is_file()


def test_in_memory_each_journal_is_its_own() -> None:
    one, other = connect("sqlite:///:memory:"), connect("sqlite:///:memory:")
    assert one.do(add(1)) == [1]
    assert other.do(entries()) == []
    one.close()
    other.close()
    assert not Path(":memory:").exists()


def test_the_environment_names_the_database_when_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERDURE_URL", f"sqlite:///{tmp_path}/environment.db")
    connect().close()
    assert (tmp_path / "environment.db").is_file()
    connect(f"sqlite:///{tmp_path}/argument.db").close()
    assert (tmp_path / "argument.db").is_file()


# -- SQLite


@pytest.mark.parametrize(
    ("path", "reason"), [("/missing/agents.db", "missing does not exist"), ("", "is a folder")]
)
def test_what_can_hold_no_file_is_named_and_nothing_is_made(
    tmp_path: Path, path: str, reason: str
) -> None:
    with pytest.raises(BadURL, match=f"{tmp_path}.*{reason}"):
        connect(f"sqlite:///{tmp_path}{path}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"These are notes, not a database. " * 99, b"short"])
def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(BadURL, match="not a database"):
        connect(f"sqlite:///{file}")
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def as_nobody(work: Callable[[], None]) -> None:
    """Run `work` in a forked process without root's rights, to which nothing is forbidden."""
    if (pid := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                nobody = pwd.getpwnam("nobody")
                os.setgroups([])
                os.setgid(nobody.pw_gid)
                os.setuid(nobody.pw_uid)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def refused(path: Path, reason: str) -> Callable[[], None]:
    def work() -> None:
        with pytest.raises(BadURL, match=reason):
            connect(f"sqlite:///{path}")

    return work


pytest_fork = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest_fork
def test_a_file_or_folder_that_may_not_be_written_is_refused(open_folder: Path) -> None:
    file = open_folder / "agents.db"
    connect(f"sqlite:///{file}").close()
    file.chmod(0o444)
    as_nobody(refused(file, "agents.db is not writable"))
    file.chmod(0o666)
    open_folder.chmod(0o555)
    as_nobody(refused(file, "folder .* is not writable"))
    as_nobody(refused(open_folder / "new.db", "folder .* is not writable"))


@pytest_fork
def test_a_folder_that_may_not_be_entered_is_refused(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir()
    (closed / "inner").mkdir()
    closed.chmod(0o000)
    as_nobody(refused(closed / "agents.db", "not"))
    as_nobody(refused(closed / "inner" / "agents.db", "not"))
    closed.chmod(0o700)


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    mounts = [("/", "ext4"), ("/mnt/share", "nfs4"), ("/mnt/share/local", "xfs"), ("/mnt", "tmpfs")]
    assert sqlite_file.file_system("/srv/agents", mounts) == "ext4"
    assert sqlite_file.file_system("/mnt/share", mounts) == "nfs4"
    assert sqlite_file.file_system("/mnt/share/agents", mounts) == "nfs4"
    assert sqlite_file.file_system("/mnt/share/local/agents", mounts) == "xfs"
    assert sqlite_file.file_system("/mnt/shared", mounts) == "tmpfs"
    assert sqlite_file.file_system("/home", []) is None
    assert sqlite_file.file_system("/", sqlite_file._mounts()) is not None, "of this machine"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sqlite_file, "_mounts", lambda: [("/", "ext4"), (str(tmp_path), kind)])
    with pytest.raises(BadURL, match=rf"network file system \({kind}\).*PostgreSQL"):
        connect(f"sqlite:///{tmp_path}/agents.db")
    assert list(tmp_path.iterdir()) == []


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 38, 5))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.38.5")
    with pytest.raises(BadURL, match=r"3\.38\.5 is too old.*3\.39\.0"):
        connect(f"sqlite:///{tmp_path}/agents.db")


def test_a_file_locked_by_somebody_else_is_an_error_at_the_deadline(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    other = sqlite3.connect(tmp_path / "agents.db", isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Error, match="locked"):
        connect(url, deadline=0.1)
    other.execute("ROLLBACK")
    other.close()
    connect(url).close()


# -- PostgreSQL


@pytest.mark.parametrize(
    ("package", "url", "words"),
    [
        ("psycopg", "postgresql://localhost/agents", "pip install 'psycopg[binary]"),
        ("httpx", f"d1://:{'s' * 32}@localhost/", "Cloudflare D1 needs"),
    ],
)
def test_without_the_package_of_a_database_its_extra_is_named(
    package: str, url: str, words: str
) -> None:
    program = f"""
        import sys
        sys.modules["{package}"] = None
        from perdure import connect
        try:
            connect("{url}")
        except Exception as error:
            print(type(error).__name__, error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("BadURL")
    assert words in ended.stdout


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://postgres:secret@127.0.0.1:1/agents", "refused"),
        ("postgresql://postgres:secret@no-such-host.invalid/agents", "no-such-host.invalid"),
    ],
)
def test_a_server_that_is_not_there_is_an_error_at_the_deadline(
    url: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Unavailable, match=reason) as error:
        connect(url, deadline=0.5)
    assert caplog.text.count("Trying again") == 1
    assert "secret" not in str(error.value) + caplog.text


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://postgres:secret@127.0.0.1:{port}/nowhere", '"nowhere" does not exist'),
        ("postgresql://stranger:secret@127.0.0.1:{port}/postgres", '"stranger" does not exist'),
    ],
)
def test_a_database_or_role_that_is_not_there_is_an_error_at_once(
    postgres_server: Server, url: str, reason: str
) -> None:
    with pytest.raises(BadURL, match=reason) as error:
        connect(url.format(port=postgres_server.port))
    assert "secret" not in str(error.value)


def test_a_read_only_database_is_refused(postgres_url: str) -> None:
    name = postgres_url.rsplit("/", 1)[-1]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    with pytest.raises(BadURL, match=r"read-only.*primary"):
        connect(postgres_url)


@pytest.mark.slow
def test_a_standby_is_refused(open_folder: Path) -> None:
    with local_postgres(open_folder) as server:
        name = server.database().rsplit("/", 1)[-1]
        connect(f"{server.url.rsplit('/', 1)[0]}/{name}").close()
    (open_folder / "data" / "standby.signal").touch()
    with local_postgres(open_folder) as server, pytest.raises(Unavailable, match="read replica"):
        connect(f"{server.url.rsplit('/', 1)[0]}/{name}", deadline=0.5)


# -- the schema


@pytest.mark.slow
def test_processes_that_open_a_fresh_database_at_the_same_time_all_succeed(
    postgres_server: Server, d1_databases: Databases, tmp_path: Path
) -> None:
    program = """
        import os, sys
        from perdure import connect
        from tests.support.entries import add
        print("ready", flush=True)
        for url in sys.stdin:
            journal = connect(url.strip())
            journal.do(add(os.getpid()))
            journal.close()
            print("done", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    urls = [f"sqlite:///{tmp_path}/{n}.db" for n in range(10)]
    urls += [postgres_server.database() for _ in range(3)]
    urls += [d1_databases.empty() for _ in range(EMPTY)]
    with ExitStack() as stack:
        children: list[Any] = [
            stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(4)
        ]
        assert [child.stdout.readline() for child in children] == ["ready\n"] * 4
        for url in urls:
            for child in children:
                child.stdin.write(url + "\n")
                child.stdin.flush()
            assert [child.stdout.readline() for child in children] == ["done\n"] * 4
            assert stored(url) == sorted(child.pid for child in children)
