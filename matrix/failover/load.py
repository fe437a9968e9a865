"""The load: workers, callers and probes. `rt` is the Runtime of the workers.

Every process appends lines to the ledger, a file outside of the database:

- a caller writes what was acknowledged to it, once the call returned: `start`, `answer`, `signal`;
- an effect writes each call that is really made, and its node that the call returned: the outcome
  is recorded then, because a plain effect waits for that;
- a probe writes when a plain commit through the same route was acknowledged, and on which timeline.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

import perdure

LEDGER = "PERDURE_FAILOVER_LEDGER"
PROBE_EVERY = 0.2
CONCURRENT, PAUSE = 3, 1.0
"""Orders that one caller has in hand; seconds between one and the next."""


def write(what: str, **facts: Any) -> None:
    """Append a line to the ledger. It is on disk when this returns."""
    line = json.dumps({"t": time.time(), "what": what, **facts}, default=str).encode() + b"\n"
    file = os.open(os.environ[LEDGER], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(file, line)
        os.fsync(file)
    finally:
        os.close(file)


def read(ledger: Path) -> list[dict[str, Any]]:
    """The lines of a ledger, in order."""
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_text().splitlines()]


class Order(TypedDict, total=False):
    number: str
    asks: bool
    approved: str
    collected: str
    shipped: str


@perdure.effect
def charge(number: str) -> str:
    """A far side without keys: a second call charges twice."""
    write("call", effect="charge", number=number, key=None)
    return f"receipt {number}"


@perdure.effect
def ship(number: str) -> str:
    """A far side that honours keys: a second call with the same key does nothing."""
    write("call", effect="ship", number=number, key=perdure.key())
    return "shipped"


def pay(state: Order) -> Order:
    charge(state["number"])
    write("recorded", effect="charge", number=state["number"])
    return {}


def approve(state: Order) -> Order:
    if not state["asks"]:
        return {}
    return {"approved": perdure.ask({"order": state["number"]})["word"]}


def collect(state: Order) -> Order:
    if not state["asks"]:
        return {}
    return {"collected": perdure.wait_for("collect")["word"]}


def deliver(state: Order) -> Order:
    return {"shipped": ship(state["number"])}


def runtime() -> perdure.Runtime:
    """What a worker drives."""
    from langgraph.graph import START, StateGraph

    builder = StateGraph(Order)
    builder.add_sequence([pay, approve, collect, deliver])
    builder.add_edge(START, "pay")
    made = perdure.Runtime()
    made.register(builder, name="order")
    return made


def __getattr__(name: str) -> Any:
    if name == "rt":
        return runtime()
    raise AttributeError(name)


class Caller:
    """Starts orders, answers their questions and sends their signals, until SIGTERM.

    Each call is repeated with the same key until it is acknowledged, as an application would.
    """

    def __init__(self, client: perdure.Client, name: str) -> None:
        self._client, self._name = client, name
        self._numbers = itertools.count()
        self._stopping = asyncio.Event()

    async def call(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopping.set)
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENT):
                group.create_task(self._orders())

    async def _orders(self) -> None:
        while not self._stopping.is_set():
            n = next(self._numbers)
            await self._order(f"{self._name}-{n}", asks=n % 3 == 0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), PAUSE)

    async def _order(self, number: str, *, asks: bool) -> None:
        given = {"number": number, "asks": asks}
        run = await self._insist(
            lambda: self._client.start("order", given, thread_id=number, key=number)
        )
        if run is None:
            return
        write("start", number=number, run=run.id)
        if not asks:
            return
        word = f"word of {number}"
        keyed = {"key": f"{number}-collect"}
        signal_ = self._client.signal
        if await self._insist(lambda: signal_(number, "collect", {"word": word}, **keyed)) is None:
            return
        write("signal", number=number, run=run.id, word=word)
        wait = await self._question(run.id)
        if wait is None:
            return
        await self._insist(lambda: self._client.answer(wait, {"word": word}))
        write("answer", number=number, run=run.id, word=word)

    async def _question(self, run_id: str) -> str | None:
        """The id of the run's question, or `None` if it has none any more."""
        while True:
            run = await self._insist(lambda: self._client.get(run_id, output=False))
            if run is None or run.state in ("done", "failed", "cancelled", "held"):
                return None
            waits = await self._insist(lambda: self._client.waits(run_id=run_id, kind="human"))
            for wait in waits or ():
                return str(wait.id)
            await asyncio.sleep(0.2)

    async def _insist(self, call: Any) -> Any:
        """Call until it is acknowledged. `None` if the journal does not know the run any more."""
        while True:
            begun = time.time()
            try:
                done = await call()
            except perdure.errors.NotFound as error:
                write("gone", error=str(error))
                return None
            except (perdure.errors.AlreadyAnswered, perdure.errors.WaitClosed) as error:
                if "answered" in str(error):  # the reply to our own answer was lost
                    return True
                write("gone", error=str(error))
                return None
            except Exception as error:
                facts = {"error": type(error).__name__, "text": str(error)[:300]}
                write("refused", **facts, seconds=time.time() - begun)
                await asyncio.sleep(0.3)
            else:
                return True if done is None else done


async def probe(urls: list[str]) -> None:
    """Commit a row every 200 ms, with plain psycopg and a new connection each time."""
    import psycopg

    async def attempt(url: str) -> None:
        timeline = 0
        try:
            async with asyncio.timeout(4):
                connection = await psycopg.AsyncConnection.connect(url, connect_timeout=2)
                async with connection:
                    place = "SELECT pg_walfile_name(pg_current_wal_lsn())"
                    row = await (await connection.execute(place)).fetchone()
                    await connection.execute("INSERT INTO probe VALUES (now())")
                    await connection.commit()
                    timeline = int(row[0][:8], 16) if row else 0
        except (psycopg.Error, TimeoutError, OSError):
            return
        write("commit", timeline=timeline)

    pending: dict[str, asyncio.Task[None]] = {}
    while True:
        for url in urls:
            if url not in pending or pending[url].done():
                pending[url] = asyncio.create_task(attempt(url))
        await asyncio.sleep(PROBE_EVERY)


async def _call(url: str, name: str) -> None:
    while True:
        try:
            async with perdure.Client(url) as client:
                return await Caller(client, name).call()
        except perdure.Error as error:  # it could not open the journal
            write("refused", error=type(error).__name__, text=str(error)[:300], seconds=0.0)
            await asyncio.sleep(1)


PRELOADED = ["langgraph.graph", "perdure.runtime", "perdure.cli.serving", "psycopg", __name__]
"""What a fork server imports once, so that a process starts at once on a busy machine."""
WORKER = ["worker", "--quiet", "--concurrency", "10", "--at", "matrix.failover.load:rt"]


def run(role: str, arguments: list[str], environment: dict[str, str], log: str) -> None:
    """Be a process of the load: `perdure worker`, a caller or a probe."""
    os.setsid()  # Ctrl-C is for the program, which ends this process
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for ours in (1, 2):
        os.dup2(file, ours)
    os.environ.update(environment)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if role == "worker":
        from perdure.cli import main

        logging.root.handlers.clear()  # the command has its own
        sys.exit(main(WORKER))
    asyncio.run(probe(arguments) if role == "probe" else _call(*arguments))
