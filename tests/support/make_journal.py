"""Make the stored journals of `tests/fixtures`: `python -m tests.support.make_journal OUT`.

Each is a journal with everything in mid-life, written by the code of this commit. Run it only to
add a journal of a later version: those that are there show that what older code wrote comes to its
end.

A journal is made in three parts: what ticks; a process that is killed, by SIGKILL, in the middle of
several effects; and what must not be driven any more.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

import perdure
from perdure.langmem import ReflectionExecutor
from perdure.testing.postgres import local_postgres
from tests.support.journal_graphs import NAMESPACE, WORLD, chat, letter, reflect, talk, who
from tests.support.journals import FILES, SEEN, dump_rows, opened, seen

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)
DEADLY = {"settle_bill", "place_order", "charge", "pay_invoice", "store"}
"""What the process that is killed is in the middle of, all at once."""


def say_nothing_of_this_machine() -> None:
    """Keep its name and its paths out of the journals."""
    socket.gethostname = lambda: "fixture"
    shortly: Any = lambda error, *_, **__: traceback.format_exception_only(error)  # noqa: E731
    traceback.format_exception = shortly


def drive(rt: perdure.Runtime) -> None:
    """Until nothing is due."""
    while rt.blocking.tick(limit=100).claimed:
        pass


# -- part one: what ticks


def waits(rt: perdure.Runtime) -> None:
    """What an encrypted journal has, too."""
    ask = rt.blocking
    ask.start("nap", {}, thread_id="nap-1", key="nap", metadata={"team": "blue"}, tags=["slow"])
    ask.start("approve", {}, thread_id="approve-1")
    ask.start("shipment", {}, thread_id="shipment-1")
    ask.signal("listen-2", "first", {"n": 2})
    ask.signal("listen-3", "first", {"n": 3}, key="hook-3")
    ask.start("listen", {}, thread_id="listen-3")
    drive(rt)


def begin(rt: perdure.Runtime, graphs: dict[str, Any]) -> None:
    ask = rt.blocking
    for thread in ("review-1", "review-2"):
        ask.start("review", {}, thread_id=thread)
    for graph in ("trip", "listen", "draft", "nested", "fan", "visit", "purchase", "campaign"):
        ask.start(graph, {}, thread_id=f"{graph}-1")
    ask.start("parcel", 500, thread_id="parcel-1")
    ask.start("speaker", {"messages": [HumanMessage("Speak", id="h")]}, thread_id="speaker-1")
    for _ in range(3):
        ask.start("turn", {}, thread_id="turn-1")
    ask.start("nap", {}, thread_id="nap-2")
    ask.start("nap", {}, thread_id="nap-3")
    ask.start("nap", {}, thread_id="nap-4", after=timedelta(hours=1))
    drive(rt)
    graphs["trip"].invoke({}, {"configurable": {"thread_id": "trip-2"}})
    ask.pause(ask.runs(thread_id="nap-2")[0].id, by="ana")
    ask.cancel(ask.runs(thread_id="nap-3")[0].id, reason="no longer wanted", by="ana")
    drive(rt)


def effects(rt: perdure.Runtime) -> None:
    ask = rt.blocking
    WORLD.broken = {"charge", "fetch", "fragile"}
    for amount in (10, 20):
        ask.start("bill", {"amount": amount}, thread_id=f"bill-{amount}")
    ask.start("page", {}, thread_id="page-1")
    ask.start("fragile", {}, thread_id="fragile-1")
    ask.start("fragile", {}, thread_id="fragile-2")
    drive(rt)
    WORLD.broken = set()
    report = ask.start("report", {}, thread_id="report-1", metadata={"kind": "weekly"})
    drive(rt)
    ask.score(report.id, "helpful", 0.75, comment="well written", by="ana")
    ask.score(report.id, "opened", 1, about="page 2")
    ask.start("booking", {"seat": "12a"}, thread_id="booking-1")
    rt.deliver("booked", lambda message: WORLD.before("deliver"))
    WORLD.before = fail
    drive(rt)
    WORLD.before = lambda name: None


def fail(name: str) -> None:
    if name == "deliver":
        raise ConnectionError("the post office is closed")


def reflections(rt: perdure.Runtime) -> None:
    once, store = perdure.Retry(attempts=1), InMemoryStore()
    with ReflectionExecutor(
        reflect, NAMESPACE, store=store, journal=rt, name="notes", retry=once
    ) as executor:
        executor.submit(talk("soon"), who("ann", "t"), after_seconds=60)
        for key in ("early", "later", "last"):
            executor.submit(talk(key), who("bo", "t"), after_seconds=86_400)
        executor.submit(talk("old"), who("fay", "t"), after_seconds=86_400)
        WORLD.executor = executor
        rt.blocking.start("remember", {}, thread_id="remember-1")
        drive(rt)
        WORLD.broken = {"reflect"}
        executor.submit(talk("held"), who("cy", "t"))
        until = time.monotonic() + 30
        while not any(one.error for one in executor.pending()):
            assert time.monotonic() < until, "it is not held"
            time.sleep(0.01)
        WORLD.broken = set()


def conversation(url: str) -> None:
    """Threads of a plain saver: a growing list of messages, stored as differences; an interrupt."""
    with perdure.Saver(url) as saver:
        graph = chat().compile(checkpointer=saver)
        place: Any = {"configurable": {"thread_id": "chat-1"}}
        for n in range(4):
            said = f"Sentence {n} of a conversation that is long enough for a row of its own."
            graph.invoke({"messages": [HumanMessage(said, id=f"human-{n}")]}, place)
        asks = letter().compile(checkpointer=saver)
        asks.invoke({"log": []}, {"configurable": {"thread_id": "letter-1"}})


# -- part two: a process that dies


class Deadly(InMemoryStore):
    """A store in which the process dies before it writes."""

    def batch(self, ops: Any) -> Any:
        given = list(ops)
        if any(isinstance(op, PutOp) for op in given):
            WORLD.before("store")
        return super().batch(given)


def die(url: str) -> None:
    """Begin several effects, and die when all of them are under way."""
    together = threading.Barrier(len(DEADLY))

    def kill(name: str) -> None:
        if name in DEADLY:
            together.wait(60)
            os.kill(os.getpid(), signal.SIGKILL)

    WORLD.before = kill
    rt, _ = opened(url, BEGIN)
    ask = rt.blocking
    ask.start("dinner", {}, thread_id="dinner-1")
    ask.start("shop", {}, thread_id="shop-1")
    ask.start("bill", {"amount": 30}, thread_id="bill-30")
    ask.start("bookkeeper", {"messages": [HumanMessage("Pay A-17", id="h")]}, thread_id="books-1")
    executor = ReflectionExecutor(reflect, NAMESPACE, store=Deadly(), journal=rt, name="notes")
    executor.submit(talk("cut"), who("di", "t"))
    ask.tick(limit=100)
    raise SystemExit("It should have died.")


def killed(url: str) -> None:
    child = [sys.executable, "-m", "tests.support.make_journal", "--die", url]
    with tempfile.TemporaryDirectory() as folder:
        # On this host others would know at once that it is dead; a journal from elsewhere has
        # only the lease to go by.
        elsewhere = {**os.environ, "TMPDIR": folder}
        code = subprocess.run(child, env=elsewhere, check=False, timeout=120).returncode
    assert code == -signal.SIGKILL, code


# -- part three: what must not be driven any more


def leave(rt: perdure.Runtime) -> None:
    ask = rt.blocking
    ask.cancel(ask.runs(thread_id="purchase-1")[0].id, reason="changed their mind", by="bo")
    ask.schedule("daily", "wake", cron="0 8 * * *", timezone="Europe/Berlin", input={"log": ["d"]})
    ask.start("wake", {"log": ["queued"]}, thread_id="wake-1", tags=["fresh"])


def make(url: str) -> dict[str, Any]:
    """A journal with everything in it, and what it says."""
    rt, graphs = opened(url, BEGIN)
    with rt:
        waits(rt)
        begin(rt, graphs)
        effects(rt)
        reflections(rt)
    conversation(url)
    killed(url)
    rt, _ = opened(url, BEGIN)
    with rt:
        leave(rt)
        return {"at": BEGIN.isoformat(), "seen": seen(rt)}


def make_encrypted(url: str) -> dict[str, Any]:
    rt, _ = opened(url, BEGIN, encrypted=True)
    with rt:
        waits(rt)
        return {"at": BEGIN.isoformat(), "seen": seen(rt)}


def pack(source: Path, target: Path) -> None:
    """A SQLite journal as one small file."""
    with closing(sqlite3.connect(source)) as connection:
        # A page's size can only be changed outside of WAL; small ones leave less of it empty.
        for one in ("journal_mode = DELETE", "page_size = 2048", "journal_mode = WAL"):
            connection.execute(f"PRAGMA {one}")
            connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    target.write_bytes(source.read_bytes())


def main(out: str) -> None:
    say_nothing_of_this_machine()
    told = {}
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind, made in (("sqlite", make), ("encrypted", make_encrypted)):
            source = Path(folder, f"{kind}.db")
            told[kind] = made(f"sqlite:///{source}")
            pack(source, target / FILES[kind].name)
    with local_postgres() as server:
        url = server.database()
        told["postgres"] = make(url)
        (target / FILES["postgres"].name).write_text(dump_rows(url))
    (target / SEEN.name).write_text(json.dumps(told, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--die":
        say_nothing_of_this_machine()
        die(sys.argv[2])
    main(sys.argv[1])
