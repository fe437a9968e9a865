"""A PostgreSQL primary with a streaming standby on loopback, and what a failover does to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from perdure.testing import postgres
from perdure.testing.postgres import Server
from tests.support.polling import until


class Pair:
    """Two servers of one cluster. `url` names both, the first primary first."""

    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary, self.standby = primary, standby
        self.url = hosts(primary, standby)
        [[self._source]] = execute(standby, "SHOW primary_conninfo")

    def detach(self) -> None:
        """Stop replication: what the primary commits from here on is on no standby."""
        execute(self.standby, "ALTER SYSTEM SET primary_conninfo = ''")
        execute(self.standby, "SELECT pg_reload_conf()")
        until(
            lambda: not execute(self.primary, "SELECT 1 FROM pg_stat_replication"),
            "the end of replication",
        )

    def attach(self) -> None:
        """Let replication go on."""
        source = self._source.replace("'", "''")
        execute(self.standby, f"ALTER SYSTEM SET primary_conninfo = '{source}'")
        execute(self.standby, "SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Make the standby a primary, on a new time line. The first one may be alive."""
        execute(self.standby, "SELECT pg_promote()")

    def fail_over(self) -> None:
        """Kill the primary and promote the standby."""
        self.primary.stop("immediate")
        self.promote()

    def catch_up(self) -> None:
        """Wait until the standby has replayed what the primary has committed."""
        [[at]] = execute(self.primary, "SELECT pg_current_wal_lsn()::text")
        behind = f"SELECT pg_last_wal_replay_lsn() >= '{at}'"
        until(lambda: execute(self.standby, behind) == [(True,)], "the standby")


def hosts(*servers: Server) -> str:
    """One URL with several hosts; libpq takes the first that accepts writes."""
    places = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://postgres@{places}/postgres?target_session_attrs=read-write"


def execute(server: Server, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def waiting_for_standby(server: Server) -> list[int]:
    """The backends of perdure whose COMMIT waits for a synchronous standby."""
    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' "
        "AND application_name = 'perdure'"
    )
    return [pid for (pid,) in execute(server, waiting)]


@contextmanager
def replicated(*, synchronous: bool) -> Iterator[Pair]:
    """A primary and a standby; the database is `postgres`, and empty."""
    identity = postgres._server_identity()
    with ExitStack() as stack:
        primary = stack.enter_context(postgres.local_postgres(fsync=False))
        home = postgres._temporary_home(stack, identity)
        programs = Path(primary._command[0]).parent
        hba = primary._data / "pg_hba.conf"
        hba.write_text(hba.read_text() + "host replication all 127.0.0.1/32 trust\n")
        execute(primary, "SELECT pg_reload_conf()")
        backup: list[str | Path] = [programs / "pg_basebackup", "-D", home / "data", "-R"]
        backup += ["-c", "fast", "-d", primary.url.rsplit("/", 1)[0], "--no-sync"]
        done = postgres._run(backup, identity)
        assert not done.returncode, done.stdout
        standby = Server(programs, home / "data", identity, fsync=False)
        stack.callback(standby.stop, "immediate")
        stack.enter_context(postgres._watched(programs / "pg_ctl", home / "data", True, identity))
        standby.start()
        if synchronous:
            execute(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
            execute(primary, "SELECT pg_reload_conf()")
        state = "SELECT sync_state FROM pg_stat_replication"
        wanted = [("sync",)] if synchronous else [("async",)]
        until(lambda: execute(primary, state) == wanted, "replication")
        yield Pair(primary, standby)
