"""Fsyncs per super-step, in the loop of `steps`.

SQLite is counted by a VFS shim, in a process of its own (`python -m bench.fsyncs NAME URL STEPS`),
so that the shim is never there when time is measured. PostgreSQL counts its own.
"""

import subprocess
import sys
import time

from bench.contenders import Contender, perdure, stock_postgres, stock_sqlite
from bench.databases import ask
from bench.report import Section, Table
from bench.rounds import Bench, say
from bench.steps import loop

CONTENDERS = (
    stock_sqlite("async"),
    stock_sqlite("sync"),
    perdure("sqlite", "auto"),
    perdure("sqlite", "sync"),
    perdure("sqlite", "async"),
    perdure("sqlite", "exit"),
    stock_postgres("async"),
    stock_postgres("sync"),
    perdure("postgres", "auto"),
    perdure("postgres", "sync"),
)


def fsyncs(bench: Bench) -> Section:
    steps = bench.pick(200, 50)
    counters = {"sqlite": _sqlite, "postgres": _postgres}
    rows = []
    for who in bench.field(*CONTENDERS):
        with bench.databases.fresh(who.database) as url:
            count = counters[who.database or "sqlite"](who, url, steps)
        say(f"fsyncs  {who.name:<28} {count / steps:.2f} per step")
        rows.append([who.name, f"{count / steps:.2f}", str(count)])
    table = Table(["", "per step", "total"], rows)
    return Section([table])


def _sqlite(who: Contender, url: str, steps: int) -> int:
    command = [sys.executable, "-m", "bench.fsyncs", who.name, url, str(steps)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def _postgres(who: Contender, url: str, steps: int) -> int:
    loop(who, url, "first", 1)  # tables and migrations
    before = wal_syncs(url)
    loop(who, url, "counted", steps)
    return wal_syncs(url) - before


_CLIENTS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
"""


def wal_syncs(url: str) -> int:
    """A backend hands in its counts when it ends, so wait until nobody else is there."""
    while ask(url, _CLIENTS) > 1:
        time.sleep(0.05)
    time.sleep(1)  # the WAL writer hands its own in about once a second
    return int(ask(url, "SELECT wal_sync FROM pg_stat_wal"))


def _count_in_this_process(name: str, url: str, steps: int) -> int:
    from tests.support.disk import Disk

    who = next(c for c in CONTENDERS if c.name == name)
    disk = Disk.install()
    return int(loop(who, url, "counted", steps, clock=lambda: disk.syncs))


if __name__ == "__main__":
    print(_count_in_this_process(sys.argv[1], sys.argv[2], int(sys.argv[3])))
