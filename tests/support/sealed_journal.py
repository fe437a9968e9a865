"""A journal with a row of every kind, and what its agents did: for tests that forge its rows.

On the threads `ada` and `abe` an approval was given and the mail is sent; `ben` and `cyd` still
wait for theirs. `dan` got its signal, `eve` waits for one and `hal` for `eve`, `gus` sleeps, `fay`
and `fox` failed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import perdure
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Retry
from tests.support.agents import NOON, Log, chain

KEYS = {"2026": b"k" * 32}
ROWS = (
    "perdure_checkpoints",
    "perdure_values",
    "perdure_writes",
    "perdure_threads",
    "perdure_runs",
    "perdure_waits",
    "perdure_signals",
    "perdure_reads",
    "perdure_events",
    "perdure_entries",
    "perdure_schedules",
    "perdure_effects",
    "perdure_outbox",
    "perdure_scores",
    "perdure_joins",
)
"""The tables that its runs fill."""
LONG = "a text that is long enough to be in a row of its own " * 3
CALLS: list[tuple[str, str]] = []
"""What the effects did: their name, and the thread."""


@perdure.effect
def quote(thread: str) -> str:
    CALLS.append(("quote", thread))
    return f"a quote for {thread}"


@perdure.effect(
    name="sealed.send", key=lambda thread: f"mail-{thread}", compensate=lambda result, **_: None
)
def send(thread: str) -> str:
    CALLS.append(("send", thread))
    return f"mail to {thread}"


@perdure.effect(retry=Retry(attempts=1))
def refuse(thread: str) -> None:
    CALLS.append(("refuse", thread))
    raise ValueError(f"no {thread}")


def prepare(state: Log) -> Log:
    perdure.label(thread=state["value"])
    return {"log": [LONG, f"{perdure.random()}"]}


def gate(state: Log) -> Log:
    quote(state["value"])
    if perdure.ask({"mail": state["value"]}) != "yes":
        return {"log": ["refused"]}
    perdure.outbox("mail", {"to": state["value"]})
    return {"log": [send(state["value"])]}


def listen(state: Log) -> Log:
    return {"log": [perdure.wait_for("word", timeout=timedelta(days=2))]}


def fail(state: Log) -> Log:
    refuse(state["value"])
    return {}


def nap(state: Log) -> Log:
    perdure.sleep(timedelta(days=1))
    return {}


def follow(state: Log) -> Log:
    perdure.join(state["value"])
    send("hal")
    return {}


def opened(
    path: Path, keys: dict[str, bytes] | None, clock: Clock | None = None
) -> TemporaryRuntime:
    """A runtime on the journal with all of its agents."""
    rt = TemporaryRuntime(f"sqlite:///{path}", clock=clock or Clock(NOON), encryption_keys=keys)
    once = Retry(attempts=1)
    rt.register(chain(prepare, gate), name="approve", retry=once)
    rt.register(chain(listen), name="listen", retry=once)
    rt.register(chain(fail), name="fail", retry=once)
    rt.register(chain(nap), name="nap", retry=once)
    rt.register(chain(follow), name="follow", retry=once)
    return rt


def fill(path: Path, keys: dict[str, bytes] | None) -> None:
    """Make the journal."""
    asyncio.run(afill(path, keys))


async def afill(path: Path, keys: dict[str, bytes] | None) -> None:
    async with opened(path, keys) as rt:
        for graph, threads in {
            "approve": ("ada", "abe", "ben", "cyd"),
            "listen": ("dan", "eve"),
            "fail": ("fay", "fox"),
            "nap": ("gus",),
        }.items():
            for thread in threads:
                await rt.start(graph, {"value": thread}, thread_id=thread, key=f"key-{thread}")
        [eve] = await rt.runs(thread_id="eve")
        await rt.start("follow", {"value": eve.id}, thread_id="hal")
        await rt.tick()
        for thread in ("ada", "abe"):
            [wait] = await rt.waits(thread_id=thread, kind="human")
            await rt.answer(wait.id, "yes", by="ann")
        await rt.signal("dan", "word", "hello", key="once")
        await rt.signal("eve", "other", "kept")
        await rt.tick()
        for thread, value in (("ada", 1.0), ("fay", 0.25)):
            [run] = await rt.runs(thread_id=thread)
            await rt.score(run.id, "good", value, comment="a comment", by="ann")
        for name, hour in (("daily", 9), ("nightly", 23)):
            await rt.schedule(name, "nap", cron=f"0 {hour} * * *", input={"value": name})
        states = {run.thread_id: str(run.state) for run in await rt.runs()}
        assert states == {
            **dict.fromkeys(("ada", "abe", "dan"), "done"),
            **dict.fromkeys(("ben", "cyd", "eve", "gus", "hal"), "waiting"),
            **dict.fromkeys(("fay", "fox"), "failed"),
        }
    with closing(sqlite3.connect(path)) as db, db:
        for table in ROWS:
            assert db.execute(f"SELECT 1 FROM {table}").fetchone(), table


def rows_of(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table, each by its columns."""
    with closing(sqlite3.connect(path)) as db:
        cursor = db.execute(f"SELECT * FROM {table}")
        names = [one[0] for one in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]
