"""Records of threads: who wins, and that a list of a few does not read a hundred thousand."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from perdure.commands import threads
from perdure.commands.threads import NEWEST, ThreadContent, ThreadFilter, ThreadRow
from perdure.errors import AlreadyExists, NotFound
from perdure.journal import sqlite
from perdure.journal.sql import positional, render
from perdure.testing import TemporaryRuntime
from perdure.types import State
from tests.support.agents import opened
from tests.support.raw import execute
from tests.support.wire_graphs import add, ask, double, row, with_graphs

STATEMENTS = render(sqlite.FRAGMENTS)
MANY = 100_000


async def test_of_two_who_create_a_thread_one_does(url: str) -> None:
    async with opened(url) as rt:
        id = str(uuid.uuid4())
        made = await asyncio.gather(
            *(
                rt.journal.arun(threads.create(rt.engine, id, ThreadContent({"n": n})))
                for n in range(5)
            ),
            return_exceptions=True,
        )
        assert sum(1 for one in made if isinstance(one, AlreadyExists)) == 4
        with pytest.raises(NotFound):
            await rt.journal.arun(threads.change(rt.engine, "another", {}))


async def test_changes_at_once_are_all_made(url: str) -> None:
    async with opened(url) as rt:
        id = str(uuid.uuid4())
        await rt.journal.arun(threads.create(rt.engine, id, ThreadContent()))
        plans = [threads.change(rt.engine, id, {str(n): n}) for n in range(8)]
        await asyncio.gather(*(rt.journal.arun(one) for one in plans))
        found = await rt.journal.arun(threads.get(rt.engine, id))
        assert found.metadata == {str(n): n for n in range(8)}


async def test_metadata_is_encrypted_like_everything_else(sqlite_url: str) -> None:
    async with TemporaryRuntime(sqlite_url, encryption_keys={"1": b"k" * 32}) as rt:
        secret = {"who": "ada lovelace"}
        await rt.journal.arun(threads.create(rt.engine, str(uuid.uuid4()), ThreadContent(secret)))
        [[body]] = execute(sqlite_url, "SELECT body FROM perdure_threads")
        assert b"lovelace" not in body
        execute(sqlite_url, "UPDATE perdure_threads SET created_at = created_at + 1")
        [[found], _] = await rt.journal.arun(threads.page(rt.engine, ThreadFilter(), 0, 10))
        assert "damaged" in found.metadata


async def test_statuses_follow_the_runs(url: str) -> None:
    async with opened(url) as rt:
        with_graphs(rt)

        async def status(id: str) -> str:
            return (await rt.journal.arun(threads.get(rt.engine, id))).status

        for graph, expected in (("numbers", "idle"), ("gate", "interrupted"), ("faulty", "error")):
            id = str(uuid.uuid4())
            run = await rt.start(graph, {"n": 1}, thread_id=id)
            assert await status(id) == "busy"
            for _ in range(4):
                await rt.tick()
                rt.clock.advance(timedelta(minutes=5))
            assert await status(id) == expected
            if graph == "gate":
                [wait] = await rt.waits(thread_id=id)
                await rt.answer(wait.id, "yes")
                assert await status(id) == "busy", "an answer was given"
                await rt.pause(run.id)
                assert await status(id) == "interrupted"
                await rt.resume(run.id)
                await rt.tick()
                assert (await rt.get(run.id)).state is State.DONE
                assert await status(id) == "idle"


def _copies(columns: list[str], suffixed: tuple[str, ...]) -> str:
    return ", ".join(
        f"{name} || '-' || i"
        if name in suffixed
        else f"{name} - i"
        if name in ("created_at", "updated_at")
        else name
        for name in columns
    )


def multiply(database: sqlite3.Connection, thread_id: str) -> None:
    """Copy a thread with its runs and waits many times, each a little older."""
    numbers = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {MANY})"
    tables: Mapping[str, tuple[str, ...]] = {
        "threads": ("thread_id",),
        "runs": ("thread_id", "id"),
        "waits": ("thread_id", "id", "run_id"),
    }
    for table, suffixed in tables.items():
        columns = [one[1] for one in database.execute(f"PRAGMA table_info(perdure_{table})")]
        database.execute(
            f"INSERT INTO perdure_{table} {numbers} SELECT {_copies(columns, suffixed)} "
            f"FROM n, perdure_{table} WHERE thread_id = ?",
            [thread_id],
        )
    database.commit()


def _instructions(database: sqlite3.Connection, chosen: ThreadFilter, now: int) -> int:
    """Thousands of instructions of SQLite's virtual machine that a page takes."""
    done = 0

    def count() -> int:
        nonlocal done
        done += 1
        return 0

    [(name, params)] = threads.page_of_rows(chosen, 0, 11, now).render()
    sql, names = positional(STATEMENTS[name])
    database.set_progress_handler(count, 1000)
    database.execute(sql, [params[one] for one in names]).fetchall()
    database.set_progress_handler(None, 0)
    return done


async def test_a_page_of_threads_does_not_read_a_hundred_thousand(sqlite_url: str) -> None:
    async with TemporaryRuntime(sqlite_url) as rt:
        rt.register(row(add, ask), name="gate")
        rt.register(row(add, double), name="numbers")
        await rt.start("gate", {"n": 1}, thread_id="asks")
        await rt.start("numbers", {"n": 1}, thread_id="done")
        await rt.tick()
        now = rt.clock.now()
        with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
            multiply(file, "done")
            for chosen in (
                ThreadFilter("interrupted", "gate"),
                ThreadFilter("busy"),
                ThreadFilter(None, "gate"),
                ThreadFilter("idle", "numbers"),
                ThreadFilter(None, "numbers"),
                ThreadFilter(None, "numbers", sort="updated_at"),
                ThreadFilter(None, None),
                ThreadFilter(None, None, sort="updated_at"),
            ):
                assert _instructions(file, chosen, now) < 10, chosen
            multiply(file, "asks")
        plan: Any = threads.page(rt.engine, ThreadFilter("interrupted", "gate"), 0, 10)
        newest: list[ThreadRow] = await rt.journal.ado(next(plan))
        assert len(newest) == NEWEST
        with pytest.raises(StopIteration) as found:  # no other read is needed
            plan.send(newest)
        page, has_more = found.value.value
        assert (len(page), has_more, page[0].thread_id) == (10, True, "asks")
