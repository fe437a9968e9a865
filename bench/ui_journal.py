"""A journal with many runs, for measuring the pages: most done, some asking, asleep, held, failed.

A few runs of each kind are really driven. The others are copies of their rows, under new ids and
spread over a month: driving 100,000 runs would take longer than measuring. Each copied blob is
opened and sealed again by the journal's own serializer, so every copy reads as the real one does.
Checkpoints and effects are not copied.
"""

import asyncio
import random
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple, TypedDict

import psycopg
from langgraph.graph import START, StateGraph

import perdure
from bench.databases import sqlite_path
from perdure.operations.runs import RunRow
from perdure.operations.waits import WaitRow
from perdure.serde import places
from perdure.serde.serializer import Serializer
from perdure.types import Retry, State

MONTH = 30 * 24 * 3600 * 1000
SHARES = {
    "done": 0.66,
    "ask": 0.10,
    "nap": 0.06,
    "fail": 0.06,
    "hold": 0.06,
    "rest": 0.06,
}
"""Each graph's share of the runs: every list has a full page at 1,000 runs already."""
BATCH = 2_000


class Work(TypedDict, total=False):
    n: int
    draft: str
    answer: Any


@perdure.effect
def note(n: int) -> int:
    return n


def step(state: Work) -> Work:
    perdure.label(customer=f"customer-{state['n'] % 500}")
    return {"n": note(state["n"]), "draft": f"Dear customer {state['n']},\n\nhello."}


def ask(state: Work) -> Work:
    question = {
        "action_requests": [
            {
                "name": "send_email",
                "args": {"to": f"customer-{state['n']}@example.com", "body": state["draft"]},
                "description": "The customer asked for a reply.",
            }
        ],
        "review_configs": [
            {"action_name": "send_email", "allowed_decisions": ["approve", "edit", "reject"]}
        ],
    }
    return {"answer": perdure.ask(question)}


def nap(state: Work) -> Work:
    perdure.sleep(timedelta(days=20))
    return {}


def fail(state: Work) -> Work:
    raise ValueError("the far side said no")


def runtime(url: str) -> perdure.Runtime:
    """A runtime with the graphs of the journal."""
    rt = perdure.Runtime(url)
    for name, second in {"done": None, "rest": ask, "ask": ask, "nap": nap, "fail": fail}.items():
        builder = StateGraph(Work).add_node(step).add_edge(START, "step")
        if second is not None:
            builder.add_node(name, second).add_edge("step", name)
        rt.register(builder, name=name, retry=Retry(attempts=1))
    builder = StateGraph(Work).add_node(step).add_edge(START, "step").add_node("hold", fail)
    rt.register(builder.add_edge("step", "hold"), name="hold", retry=Retry(attempts=1), hold=True)
    return rt


async def fill(url: str, runs: int) -> None:
    """Make a journal of so many runs."""
    templates: dict[str, list[str]] = {}
    async with runtime(url) as rt:
        for graph in SHARES:
            for n in range(3):
                made = await rt.start(graph, {"n": n}, thread_id=f"template-{graph}-{n}")
                templates.setdefault(graph, []).append(made.id)
        await rt.work(until_idle=True, handle_signals=False)
        for run_id in templates["rest"]:
            await rt.pause(run_id)
        states = {graph: (await rt.get(ids[0])).state for graph, ids in templates.items()}
        assert states == {
            "done": State.DONE,
            "ask": State.WAITING,
            "nap": State.WAITING,
            "fail": State.FAILED,
            "hold": State.HELD,
            "rest": State.PAUSED,
        }, states
        serializer = rt.engine.serializer
    await asyncio.to_thread(_copy_all, url, serializer, templates, runs)


class _Template(NamedTuple):
    """The rows of one run, by table, each with its columns."""

    run: dict[str, Any]
    waits: list[dict[str, Any]]
    events: list[dict[str, Any]]


def _copy_all(url: str, serializer: Serializer, templates: dict[str, list[str]], runs: int) -> None:
    chance = random.Random(17)
    with closing(_Database(url)) as database:
        kinds = {
            graph: [database.template(run_id) for run_id in ids] for graph, ids in templates.items()
        }
        wanted = [graph for graph, share in SHARES.items() for _ in range(round(runs * share) - 3)]
        chance.shuffle(wanted)
        for at in range(0, len(wanted), BATCH):
            rows: dict[str, list[dict[str, Any]]] = {}
            for n, graph in enumerate(wanted[at : at + BATCH], at):
                back = round(MONTH * (1 - n / len(wanted)))
                for table, row in _copy(serializer, chance.choice(kinds[graph]), n, back, chance):
                    rows.setdefault(table, []).append(row)
            database.insert(rows)
        database.finish()


def _copy(
    serializer: Serializer, template: _Template, n: int, back: int, chance: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a copy, so many milliseconds before the original."""
    old = template.run
    thread_id, run_id = f"customer-{n}", str(uuid.UUID(int=chance.getrandbits(128)))
    change, created = chance.getrandbits(62), old["created_at"] - back
    new = {**old, "thread_id": thread_id, "id": run_id, "n": 1, "change": change}
    new |= {"created_at": created, "updated_at": old["updated_at"] - back}
    before, after = _row(old), _row(new)
    new["setup"] = _moved(
        serializer,
        old["setup"],
        places.of_setup(*_setup(before)),
        places.of_setup(*_setup(after)),
    )
    for column in ("labels", "output", "error"):
        if old[column] is not None:
            where = [places.of_run(column, one.thread_id, one.id) for one in (before, after)]
            new[column] = _moved(serializer, old[column], *where)
    yield "perdure_threads", {"thread_id": thread_id, "runs": 1}
    record = {"thread_id": thread_id, "graph": old["graph"], "created_at": created}
    record |= {"updated_at": created, "has_next": 0, "change": change}
    yield "perdure_threads", record
    yield "perdure_runs", new
    for wait in template.waits:
        yield "perdure_waits", _copied_wait(serializer, wait, new, back, chance)
    for event in template.events:
        data, _, _, kinds = serializer.loads(
            event["body"], places.of_event(event["change"], event["at"]), list
        )
        at, number = event["at"] - back, chance.getrandbits(62)
        body = serializer.dumps(
            [data, thread_id, run_id, kinds], places.of_event(number, at), own=True
        )
        row = {"thread_id": thread_id, "run_id": run_id, "at": at, "change": number, "body": body}
        yield "perdure_events", {**event, **row}


def _copied_wait(
    serializer: Serializer,
    old: dict[str, Any],
    run: dict[str, Any],
    back: int,
    chance: random.Random,
) -> dict[str, Any]:
    id, created = f"{chance.getrandbits(128):032x}", old["created_at"] - back
    new = {**old, "id": id, "thread_id": run["thread_id"], "run_id": run["id"]}
    new["created_at"] = created
    before, after = (WaitRow(*(row[name] for name in WaitRow._fields)) for row in (old, new))
    new["body"] = _moved(serializer, old["body"], before.place, after.place)
    new["seal"] = serializer.envelope.seal(b"", after.asker)
    return new


def _row(row: dict[str, Any]) -> RunRow:
    columns: list[Any] = [row.get(name) for name in RunRow._fields]
    return RunRow(*columns)


def _setup(row: RunRow) -> tuple[Any, ...]:
    return row.thread_id, row.id, row.graph, row.version, row.key, row.created_at


def _moved(serializer: Serializer, blob: Any, before: Any, after: Any) -> bytes:
    """A blob sealed for another place."""
    return serializer.envelope.seal(serializer.envelope.unseal(bytes(blob), before), after)


class _Database:
    """A plain connection to the journal's database."""

    def __init__(self, url: str) -> None:
        self._is_sqlite = url.startswith("sqlite:")
        self._db: Any = (
            sqlite3.connect(sqlite_path(url)) if self._is_sqlite else psycopg.connect(url)
        )

    def template(self, run_id: str) -> _Template:
        [run] = self._rows("SELECT * FROM perdure_runs WHERE id = ?", run_id)
        waits = self._rows("SELECT * FROM perdure_waits WHERE run_id = ?", run_id)
        events = self._rows("SELECT * FROM perdure_events WHERE run_id = ?", run_id)
        return _Template(run, waits, events)

    def _rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        cursor = self._db.execute(self._written(query), params)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def insert(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        cursor = self._db.cursor()
        for table, some in rows.items():
            names = list(some[0])
            query = (
                f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            )
            cursor.executemany(self._written(query), [list(row.values()) for row in some])
        self._db.commit()

    def finish(self) -> None:
        """PostgreSQL would gather statistics by itself; a journal on SQLite has none."""
        if not self._is_sqlite:
            self._db.execute("ANALYZE")
            self._db.commit()

    def close(self) -> None:
        self._db.close()

    def _written(self, query: str) -> str:
        return query if self._is_sqlite else query.replace("?", "%s")
