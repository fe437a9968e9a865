"""What a tick costs that finds nothing due, while more and more runs sleep."""

import asyncio
import sqlite3
from contextlib import ExitStack
from time import perf_counter

import psycopg

import perdure
from bench.databases import Kind, sqlite_path
from bench.engines import LABEL
from bench.hands import sleeper
from bench.report import Series, Table, millis, times
from bench.rounds import Bench, say


def due(bench: Bench) -> list[Table]:
    sizes = (1_000, 10_000, 100_000) if bench.quick else (1_000, 100_000, 1_000_000)
    kinds: list[Kind] = [k for k in LABEL if not any(w in LABEL[k].lower() for w in bench.without)]
    found = Series()
    with ExitStack() as stack:
        crowds: dict[str, perdure.Runtime] = {}
        for kind in kinds:
            for size in sizes:
                url = stack.enter_context(bench.databases.fresh(kind))
                name, start = f"{LABEL[kind]} {size:,}", perf_counter()
                crowds[name] = stack.enter_context(perdure.Runtime(url))
                crowds[name].register(sleeper(), name="sleeper")
                asyncio.run(_sleep(crowds[name]))
                _copy(url, size)
                say(f"due  {name} asleep after {perf_counter() - start:.1f} s")
        for n in range(bench.pick(60, 10)):
            for name, runtime in crowds.items():
                took = asyncio.run(_look(runtime))
                if n:  # the first look fills caches
                    found.add(name, took)
    say("due  measured")
    rows = []
    for kind in kinds:
        medians = [found.median(f"{LABEL[kind]} {size:,}") for size in sizes]
        # Medians compared, not rounds: a look takes less than a millisecond.
        grown = times(medians[-1] / medians[0])
        rows.append([f"perdure {LABEL[kind]}", grown, *map(millis, medians)])
    head = ["", f"{sizes[-1]:,} ÷ {sizes[0]:,}", *(f"{size:,} asleep" for size in sizes)]
    return [Table(head, rows, "Nothing due")]


async def _sleep(runtime: perdure.Runtime) -> None:
    run = await runtime.start("sleeper", {"n": 0, "until": 1})
    await runtime.tick()
    assert (await runtime.get(run.id)).state == "waiting"


async def _look(runtime: perdure.Runtime) -> float:
    start = perf_counter()
    counts = await runtime.tick()
    took = perf_counter() - start
    assert not counts.claimed
    return took


def _copy(url: str, size: int) -> None:
    """Copy the row of the run that sleeps."""
    if url.startswith("sqlite:"):
        file = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=30)
        file.execute("PRAGMA synchronous = OFF")
        columns = [row[1] for row in file.execute("PRAGMA table_info(perdure_runs)")]
        numbers = f"SELECT 1 AS i UNION ALL SELECT i + 1 FROM numbers WHERE i < {size - 1}"
        file.execute(f"WITH RECURSIVE numbers AS ({numbers}) {_copies(columns, 'numbers')}")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        file.close()
        return
    with psycopg.connect(url, autocommit=True) as server:
        cursor = server.execute("SELECT * FROM perdure_runs LIMIT 0")
        columns = [column.name for column in cursor.description or ()]
        numbers = f"generate_series(1, {size - 1}) AS i"
        server.execute(_copies(columns, numbers).encode())
        server.execute("ANALYZE perdure_runs")


def _copies(columns: list[str], numbers: str) -> str:
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
