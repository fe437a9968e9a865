"""What it costs to look for runs that are due, while more and more of them sleep."""

import asyncio
import random
import sqlite3
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import psycopg

import perdure
from bench.databases import Kind, sqlite_path
from bench.engines import LABEL
from bench.hands import sleeper
from bench.report import Bar, Section, Series, Table, millis, times
from bench.rounds import Bench, say
from perdure.operations import claims
from perdure.operations.look import look

SOME = 25


class Crowd:
    """A journal in which many runs sleep."""

    def __init__(self, kind: Kind, url: str, size: int) -> None:
        self.kind, self.size = kind, size
        self._url = url
        asyncio.run(_one_sleeps(url))
        _execute(url, *_copies(kind, url, size))
        self.runtime = perdure.Runtime(url)
        self.runtime.register(sleeper(), name="sleeper")

    @property
    def name(self) -> str:
        return f"{LABEL[self.kind]} {self.size:,}"

    def look(self, wanted: int) -> float:
        """Seconds to look for what is due, and to take it."""
        now = asyncio.run(_now(self.runtime))
        chosen = random.sample(range(1, self.size), wanted)
        ids = ", ".join(f"'sleeper-{n}'" for n in chosen)
        if wanted:
            _execute(self._url, f"UPDATE perdure_runs SET due_at = {now - 1} WHERE id IN ({ids})")
        journal, serializer = self.runtime.journal, self.runtime.saver.serializer
        start = perf_counter()
        times = claims.LeaseTimes(now, now + 10**9)
        journal.do(look(times, ["sleeper@"], until=now + 200, suspects=True, slots=True, topics=()))
        taking = claims.claim(serializer, "bench", times, ["sleeper@"], SOME)
        found = journal.do(taking)
        took = perf_counter() - start
        assert len(found) == wanted, f"{len(found)} runs were claimed, not {wanted}"
        if wanted:  # back to sleep
            _execute(
                self._url,
                f"UPDATE perdure_runs SET due_at = {now + 10**9}, state = 'waiting', worker = NULL "
                f"WHERE id IN ({ids})",
            )
        return took


def due(bench: Bench) -> Section:
    sizes = (1_000, 10_000, 100_000) if bench.quick else (1_000, 100_000, 1_000_000)
    kinds: list[Kind] = [k for k in LABEL if not any(w in LABEL[k].lower() for w in bench.without)]
    nothing, some = Series(), Series()
    crowds: list[Crowd] = []
    with ExitStack() as stack:
        for kind in kinds:
            for size in sizes:
                url = stack.enter_context(bench.databases.fresh(kind))
                start = perf_counter()
                crowds.append(Crowd(kind, url, size))
                stack.callback(crowds[-1].runtime.close)
                say(f"due  {crowds[-1].name} asleep after {perf_counter() - start:.1f} s")
        for n in range(bench.pick(60, 10)):
            for crowd in crowds:
                took, took_some = crowd.look(0), crowd.look(SOME)
                if n:  # the first look fills caches
                    nothing.add(crowd.name, took)
                    some.add(crowd.name, took_some)
    say("due  measured")
    tables = [
        _table("Nothing due", kinds, sizes, nothing),
        _table(f"{SOME} due", kinds, sizes, some),
    ]
    bars = [
        Bar(
            f"looking for due runs, {what}, {sizes[-1]:,} asleep against {sizes[0]:,}, {LABEL[k]}",
            2.0,
            _grown(found, k, sizes),
        )
        for what, found in (("nothing due", nothing), (f"{SOME} due", some))
        for k in kinds
    ]
    return Section(tables, bars)


def _table(title: str, kinds: list[Kind], sizes: tuple[int, ...], found: Series) -> Table:
    head = ["", f"{sizes[-1]:,} ÷ {sizes[0]:,}", *(f"{size:,} asleep" for size in sizes)]
    rows = [
        [
            f"perdure {LABEL[kind]}",
            times(_grown(found, kind, sizes)),
            *(millis(found.median(f"{LABEL[kind]} {size:,}")) for size in sizes),
        ]
        for kind in kinds
    ]
    return Table(head, rows, title)


def _grown(found: Series, kind: Kind, sizes: tuple[int, ...]) -> float:
    """Medians compared, not rounds: a look takes less than a millisecond."""
    few, many = (f"{LABEL[kind]} {size:,}" for size in (sizes[0], sizes[-1]))
    return found.median(many) / found.median(few)


async def _one_sleeps(url: str) -> None:
    async with perdure.Runtime(url) as runtime:
        runtime.register(sleeper(), name="sleeper")
        run = await runtime.start("sleeper", {"n": 0, "until": 1})
        await runtime.tick()
        assert (await runtime.get(run.id)).state == "waiting"


async def _now(runtime: perdure.Runtime) -> int:
    from perdure.journal.clock import journal_time

    return await runtime.journal.ado(journal_time())


def copies(columns: list[str], numbers: str) -> str:
    """A statement that copies the row of one sleeping run, once for each `i` of `numbers`."""
    other = {
        "thread_id": "'thread-' || i",
        "id": "'sleeper-' || i",
        "due_at": "due_at + i",
        "created_at": "created_at + i",
        "change": "i",
    }
    picked = ", ".join(other.get(column, column) for column in columns)
    one = "(SELECT * FROM perdure_runs WHERE state = 'waiting' LIMIT 1) AS one"
    return f"INSERT INTO perdure_runs ({', '.join(columns)}) SELECT {picked} FROM {one}, {numbers}"


def _copies(kind: Kind, url: str, size: int) -> list[str]:
    if kind == "postgres":
        numbers = f"generate_series(1, {size - 1}) AS i"
        return [copies(_columns(url), numbers), "ANALYZE perdure_runs"]
    numbers = f"SELECT 1 AS i UNION ALL SELECT i + 1 FROM numbers WHERE i < {size - 1}"
    return [
        "PRAGMA synchronous = OFF",
        "PRAGMA cache_size = -400000",
        f"WITH RECURSIVE numbers AS ({numbers}) {copies(_columns(url), 'numbers')}",
        "PRAGMA wal_checkpoint(TRUNCATE)",
    ]


_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = CAST('perdure_runs' AS regclass) AND attnum > 0 AND NOT attisdropped
"""


def _columns(url: str) -> list[str]:
    if url.startswith("sqlite:"):
        rows = _execute(url, "PRAGMA table_info(perdure_runs)")
        return [row[1] for row in rows]
    rows = _execute(url, _COLUMNS)
    return [row[0] for row in rows]


def _execute(url: str, *statements: str) -> list[Any]:
    """Run statements as a stranger to the journal, each for itself; the rows of the last."""
    rows: list[Any] = []
    if url.startswith("sqlite:"):
        file = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=30)
        for statement in statements:
            rows = file.execute(statement).fetchall()
        file.close()
        return rows
    with psycopg.connect(url, autocommit=True) as server:
        for statement in statements:
            cursor = server.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows
