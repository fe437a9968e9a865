"""Who drives runs to their end: perdure, DBOS, and LangGraph alone, which stores nothing.

An engine accepts runs (DBOS: workflows) on a database, then a fleet of worker processes drives
them. Everybody has as many processes, and as many runs in hand in each of them.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import psycopg

import perdure
from bench.databases import Kind, sqlite_path
from bench.fleet import PATIENCE, Fleet, fleet
from bench.hands import CONCURRENCY, POLL, QUEUE

LABEL: dict[Kind, str] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


class Drove(NamedTuple):
    seconds: float
    cpu: float
    """Seconds of all its processes together, the database server not counted."""


class Engine(Protocol):
    """What a measurement asks of a contender."""

    @property
    def name(self) -> str: ...
    @property
    def database(self) -> Kind | None: ...
    @property
    def processes(self) -> int: ...

    def prepare(self, url: str) -> None:
        """Make the tables."""

    def fleet(self, url: str) -> Any:
        """Worker processes that are ready and idle, for a `with`."""

    def drive(self, hands: Fleet, url: str, graph: str, count: int, steps: int) -> Drove:
        """Accept `count` runs of `steps` steps, and time how long the fleet takes for them."""


@dataclass(frozen=True, slots=True)
class Perdure:
    database: Kind
    processes: int = 1

    @property
    def name(self) -> str:
        return f"perdure {LABEL[self.database]}{_processes(self.processes)}"

    def prepare(self, url: str) -> None:
        with perdure.Runtime(url):
            pass

    def fleet(self, url: str) -> Any:
        return fleet("perdure", url, self.processes)

    def drive(self, hands: Fleet, url: str, graph: str, count: int, steps: int) -> Drove:
        asyncio.run(accept(url, graph, count, steps))
        start = perf_counter()
        hands.tell("work")
        finished(url, "SELECT count(*) FROM perdure_runs WHERE state <> 'done'")
        seconds = perf_counter() - start
        cpu = sum(answer["cpu"] for answer in hands.answers())
        asyncio.run(_check(url, steps))
        return Drove(seconds, cpu)


async def accept(url: str, graph: str, count: int, steps: int) -> None:
    async with perdure.Runtime(url) as runtime:
        for first in range(0, count, 100):
            some = range(first, min(first + 100, count))
            await asyncio.gather(*(runtime.start(graph, {"n": 0, "until": steps}) for _ in some))


async def _check(url: str, steps: int) -> None:
    async with perdure.Runtime(url) as runtime:
        [last] = await runtime.runs(limit=1)
        assert last.output["n"] == steps, f"a run ended with {last}"


@dataclass(frozen=True, slots=True)
class Dbos:
    """DBOS as its documentation sets up several processes: one queue, an executor id for each.

    Its SQLite file is switched to WAL, which DBOS does not do by itself: it is faster so.
    """

    database: Kind
    processes: int = 1

    @property
    def name(self) -> str:
        return f"DBOS {LABEL[self.database]}{_processes(self.processes)}"

    def prepare(self, url: str) -> None:
        from dbos import DBOS

        DBOS.migrate(url)
        if self.database == "sqlite":
            db = sqlite3.connect(sqlite_path(url))
            db.execute("PRAGMA journal_mode = WAL")
            db.close()
        with client(url) as dbos:
            dbos.register_queue(QUEUE, worker_concurrency=0, polling_interval_sec=POLL)

    def fleet(self, url: str) -> Any:
        return fleet("dbos", url, self.processes)

    def drive(self, hands: Fleet, url: str, graph: str, count: int, steps: int) -> Drove:
        with client(url) as dbos:
            queue = dbos.retrieve_queue(QUEUE)
            assert queue is not None
            for _ in range(count):
                dbos.enqueue({"queue_name": QUEUE, "workflow_name": graph}, steps)
            table = "workflow_status" if self.database == "sqlite" else "dbos.workflow_status"
            before = sum(answer["cpu"] for answer in hands.ask("cpu"))
            start = perf_counter()
            queue.set_worker_concurrency(CONCURRENCY)
            finished(url, f"SELECT count(*) FROM {table} WHERE status <> 'SUCCESS'")
            seconds = perf_counter() - start
            cpu = sum(answer["cpu"] for answer in hands.ask("cpu")) - before
            queue.set_worker_concurrency(0)
            [last] = dbos.list_workflows(name=graph, limit=1, sort_desc=True)
            assert last.output == steps, f"a workflow ended with {last.output}"
        return Drove(seconds, cpu)


@contextmanager
def client(url: str) -> Iterator[Any]:
    """A program beside the workers, with as many connections as DBOS gives to its own."""
    from dbos import DBOSClient

    made = DBOSClient(
        system_database_url=url, system_database_pool_size=20, application_name="bench"
    )
    try:
        yield made
    finally:
        made.destroy()


@dataclass(frozen=True, slots=True)
class LangGraph:
    """The same graphs without any checkpointer: what LangGraph's own work leaves to be had."""

    processes: int = 1
    database: None = None

    @property
    def name(self) -> str:
        return f"LangGraph alone{_processes(self.processes)}"

    def prepare(self, url: str) -> None:
        pass

    def fleet(self, url: str) -> Any:
        return fleet("langgraph", "-", self.processes)

    def drive(self, hands: Fleet, url: str, graph: str, count: int, steps: int) -> Drove:
        start = perf_counter()
        answers = hands.ask(f"{graph} {count // self.processes} {steps}")
        return Drove(perf_counter() - start, sum(answer["cpu"] for answer in answers))


def _processes(count: int) -> str:
    return ", 1 process" if count == 1 else f", {count} processes"


def finished(url: str, left: str, pause: float = 0.01) -> None:
    """Wait until a count is 0."""
    give_up = perf_counter() + PATIENCE
    with counter(url) as count:
        while found := count(left):
            assert perf_counter() < give_up, f"{found} are left after {PATIENCE:.0f} s"
            time.sleep(pause)


@contextmanager
def counter(url: str) -> Iterator[Callable[[str], int]]:
    """A connection of its own that answers with one number."""
    if url.startswith("sqlite:"):
        file = sqlite3.connect(sqlite_path(url), timeout=30)
        try:
            yield lambda sql: int(file.execute(sql).fetchone()[0])
        finally:
            file.close()
    else:
        with psycopg.connect(url, autocommit=True) as server:

            def ask(sql: str) -> int:
                row = server.execute(sql.encode()).fetchone()
                assert row is not None
                return int(row[0])

            yield ask
