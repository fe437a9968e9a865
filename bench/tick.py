"""A tick of the campaign application, while more and more of its threads sleep between touches.

As a program, `python -m bench.tick URL SMTP_PORT LOOKUP_URL`, it is a process that ticks: it says
`ready`, and answers each line of its input with one line of JSON.
"""

import json
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from statistics import median
from time import perf_counter, process_time
from typing import Any, TypedDict

from bench.databases import Kind, size, sqlite_path
from bench.due import _columns, _execute
from bench.engines import LABEL
from bench.fleet import PATIENCE, Fleet
from bench.hands import resident
from bench.report import Bar, Section, Series, Table, megabytes, millis, times
from bench.rounds import Bench, say
from bench.texts import TEXTS
from examples.campaign.agent import thread_of
from examples.campaign.app import App, Plan
from examples.campaign.cadence import MIDNIGHT, Cadence, Window
from examples.campaign.settings import Settings
from perdure.testing import Clock

SOME = 25
IDLE = 200
CHECKPOINTS = 7
"""Of a thread that sleeps after its first touch, of the campaign's and of the stock one."""
START = datetime(2030, 1, 7, 9, tzinfo=UTC)
GAP = timedelta(days=4)
ALWAYS = Window(time(0), MIDNIGHT, frozenset(range(7)))
PLAN = Plan(
    "spring",
    "Better tables",
    "Ana Ruiz <ana@example.com>",
    cadence=Cadence(window=ALWAYS),
    auto_approve=True,
)
SHUFFLE = """
UPDATE perdure_runs SET due_at = due_at - CAST(substr(thread_id, 12) AS INTEGER) * 7919 % 10007
"""
"""Neighbours are not driven together: what is due in a real campaign lies all over the tables."""
LATER = 20 * 86_400_000
"""Milliseconds by which copies sleep longer, and 10 seconds more each."""


def tick(bench: Bench) -> Section:
    sizes = (1_000, 3_000) if bench.quick else (1_000, 10_000, 100_000)
    rounds = bench.pick(13, 2)
    kinds: list[Kind] = [k for k in LABEL if not any(w in LABEL[k].lower() for w in bench.without)]
    with ExitStack() as stack:
        office = stack.enter_context(_post_office())
        crowds = [
            Crowd(kind, count, stack.enter_context(bench.databases.fresh(kind)), office)
            for kind in kinds
            for count in sizes
        ]
        for crowd in crowds:
            start = perf_counter()
            crowd.fill(rounds + 1)
            say(f"tick  {crowd.name} asleep after {perf_counter() - start:.1f} s")
        os.sync()  # or the first rounds would wait for the disk to take the copies
        for crowd in crowds:
            stack.enter_context(crowd.ticking())
        found = _measure(crowds, rounds)
    tables, bars = _judge(kinds, sizes, found, crowds)
    if "sqlite" in kinds:
        tables.append(_stock(bench, sizes))
    return TEXTS["tick"].section(
        tables,
        bars,
        some=SOME,
        idle=IDLE,
        rounds=rounds,
        least=f"{sizes[0]:,}",
        most=f"{sizes[-1]:,}",
        real=SOME * (rounds + 1),
        rows=crowds[0].rows,
        checkpoints=CHECKPOINTS,
    )


@dataclass(slots=True)
class Found:
    """What was measured, by the name of the crowd."""

    due: Series = field(default_factory=Series)
    nothing: Series = field(default_factory=Series)
    cpu: Series = field(default_factory=Series)
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)


def _measure(crowds: list["Crowd"], rounds: int) -> Found:
    found = Found()
    for crowd in crowds:  # the first tick fills caches
        crowd.ask("nothing 0")
        crowd.ask("due 0")
        found.first[crowd.name] = crowd.ask("size")["rss"]
    for n in range(1, rounds + 1):
        for crowd in random.sample(crowds, len(crowds)):
            found.nothing.add(crowd.name, crowd.ask(f"nothing {n}")["took"])
            ticked = crowd.ask(f"due {n}")
            found.due.add(crowd.name, ticked["took"])
            found.cpu.add(crowd.name, ticked["cpu"])
        say(f"tick  {n}/{rounds}")
    for crowd in crowds:
        found.last[crowd.name] = crowd.ask("size")["rss"]
        crowd.check_sent(SOME * (rounds + 1))
    return found


def _judge(
    kinds: list[Kind], sizes: tuple[int, ...], found: Found, crowds: list["Crowd"]
) -> tuple[list[Table], list[Bar]]:
    few, most = sizes[0], sizes[-1]
    against = f"{most:,} asleep against {few:,}"
    asleep = [f"{count:,} asleep" for count in sizes]
    memory, disk, bars = [], [], []
    for kind in kinds:
        names = [_name(kind, count) for count in sizes]
        for what, series in ((f"{SOME} due", found.due), ("nothing due", found.nothing)):
            grown = series.ratio(names[-1], names[0])
            bars.append(Bar(f"a tick with {what}, {against}, {LABEL[kind]}", 1.2, grown))
        for when, taken in (("first", found.first), ("last", found.last)):
            sized = [taken[name] for name in names]
            grown = sized[-1] / sized[0]
            title = f"{LABEL[kind]}, after its {when} tick"
            memory.append([title, times(grown), *map(megabytes, sized)])
            bars.append(Bar(f"memory with {against}, {title}", 1.05, grown))
        disk.append([LABEL[kind], *(megabytes(c.bytes) for c in crowds if c.kind == kind)])
    return [
        _table(f"{SOME} due", kinds, sizes, found.due),
        _table(f"{SOME} due: CPU", kinds, sizes, found.cpu),
        _table("Nothing due", kinds, sizes, found.nothing),
        Table(["", f"{most:,} ÷ {few:,}", *asleep], memory, "Memory"),
        Table(["", *asleep], disk, "On disk"),
    ], bars


def _table(title: str, kinds: list[Kind], sizes: tuple[int, ...], found: Series) -> Table:
    few, most = sizes[0], sizes[-1]
    head = ["", *(f"{count:,} ÷ {few:,}" for count in sizes[:0:-1])]
    head += [*(f"{count:,} asleep" for count in sizes), f"spread, {most:,}"]
    rows = []
    for kind in kinds:
        names = [_name(kind, count) for count in sizes]
        ratios = [times(found.ratio(name, names[0])) for name in names[:0:-1]]
        medians = [millis(found.median(name)) for name in names]
        rows.append([LABEL[kind], *ratios, *medians, found.spread(names[-1])])
    return Table(head, rows, title)


def _name(kind: Kind, count: int) -> str:
    return f"{LABEL[kind]} {count:,}"


# -- many asleep


@dataclass(slots=True)
class Crowd:
    """A database in which so many threads sleep, and a process that ticks on it."""

    kind: Kind
    count: int
    url: str
    office: tuple[str, str]
    bytes: int = 0
    rows: int = 0
    hands: Fleet | None = None

    @property
    def name(self) -> str:
        return _name(self.kind, self.count)

    def fill(self, groups: int) -> None:
        """Some are driven to sleep, 25 an hour; the others are copies of one of them."""
        real, clock = groups * SOME, Clock(START)
        with _app(self.url, self.office, clock) as app:
            campaign = app.create(PLAN)
            lines = [f"{_address(n)},Contact {n},Ltd,UTC\n" for n in range(1, real + 1)]
            app.bring(campaign, "email,name,company,zone\n" + "".join(lines))
            app.launch(campaign)
            _execute(self.url, SHUFFLE)
            for group in range(groups):
                clock.move_to(START + timedelta(hours=group))
                assert app.runtime.blocking.tick(limit=SOME).waiting == SOME
            [run] = app.runtime.blocking.runs(thread_id=thread_of(campaign, real))
        statements = _copies(self.kind, self.url, run.id, real, self.count)
        self.rows = sum(
            _execute(self.url, f"SELECT count(*) FROM {table} WHERE {of}")[0][0]
            for table, of in _where(real).items()
        )
        _execute(self.url, *statements)
        [[asleep]] = _execute(
            self.url, "SELECT count(*) FROM perdure_runs WHERE state = 'waiting' AND due_at > 0"
        )
        assert asleep == self.count, f"{asleep} sleep, not {self.count}"
        self.bytes = size(self.url)

    @contextmanager
    def ticking(self) -> Iterator[None]:
        self.hands = hands = Ticker(self.url, self.office)
        watch = threading.Timer(2 * PATIENCE, hands.kill)
        watch.start()
        try:
            hands.ready()
            yield
        except BaseException:
            hands.kill()
            raise
        finally:
            watch.cancel()
            hands.let_go()

    def check_sent(self, wanted: int) -> None:
        """Each that was due got its second touch: it did not go to sleep for another reason."""
        [[sent]] = _execute(
            self.url, "SELECT count(*) FROM touches WHERE step = 2 AND status = 'sent'"
        )
        assert sent == wanted, f"{sent} second touches were sent, not {wanted}"

    def ask(self, line: str) -> dict[str, Any]:
        assert self.hands is not None
        [answer] = self.hands.ask(line)
        return answer


def _app(url: str, office: tuple[str, str], clock: Clock) -> App:
    port, lookup = office
    settings = Settings(url=url, smtp_port=int(port), lookup_url=lookup)
    return App(settings, clock=clock)


def _address(contact: int) -> str:
    return f"contact-{contact}@example.org"


def _where(contact: int) -> dict[str, str]:
    """The tables of which a thread has rows, and which are those of this contact's."""
    journal = ("threads", "runs", "waits", "checkpoints", "values", "writes", "reads", "events")
    of = {f"perdure_{t}": f"thread_id = 'campaign-1-{contact}'" for t in (*journal, "effects")}
    own = dict.fromkeys(("members", "touches"), f"contact_id = {contact}")
    return {**of, "contacts": f"id = {contact}", **own}


def _copies(kind: Kind, url: str, run: str, real: int, count: int) -> list[str]:
    """Statements that copy what a thread has, for contacts from the last real one on."""
    drawn = "md5(CAST(random() AS TEXT))" if kind == "postgres" else "lower(hex(randomblob(16)))"
    run_id = f"'{run[:24]}' || substr(CAST({10**12} + i AS TEXT), 2)"
    mailed = f"replace({{}}, '{_address(real)}', 'contact-' || i || '@example.org')"
    thread = "'campaign-1-' || i"
    later = f"+ {LATER} + 10000 * i"
    every = {"thread_id": thread, "run_id": run_id, "contact_id": "i"}
    other = {
        "perdure_runs": {"id": run_id, "due_at": f"due_at {later}", "change": "change + i"},
        "perdure_waits": {"id": drawn, "expires_at": f"expires_at {later}"},
        "perdure_effects": {
            "scope": f"CASE WHEN task = '' THEN {mailed.format('scope')} ELSE {thread} END",
            "key": f"CASE WHEN task = '' THEN {mailed.format('key')} ELSE {drawn} END",
        },
        "contacts": {"id": "i", "address": mailed.format("address")},
        "touches": {"message_id": f"'<' || {drawn} || '@example.com>'"},
    }
    statements = []
    for table, of in _where(real).items():
        columns = _columns(url, table)
        changed = every | other.get(table, {})
        picked = ", ".join(changed.get(column, column) for column in columns)
        statements.append(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {picked} "
            f"FROM (SELECT * FROM {table} WHERE {of}) AS one, numbers"
        )
    if kind == "postgres":
        numbers = f"WITH numbers AS (SELECT i FROM generate_series({real + 1}, {count}) AS i) "
        return [numbers + one for one in statements] + ["VACUUM ANALYZE", "CHECKPOINT"]
    numbers = (
        f"WITH RECURSIVE numbers AS (SELECT {real + 1} AS i "
        f"UNION ALL SELECT i + 1 FROM numbers WHERE i < {count}) "
    )
    return [
        "PRAGMA synchronous = OFF",
        "PRAGMA cache_size = -400000",
        *(numbers + one for one in statements),
        "PRAGMA wal_checkpoint(TRUNCATE)",
    ]


# -- what a cron over stock LangGraph has to ask


class Dose(TypedDict):
    n: int
    due_at: int


def _stock(bench: Bench, sizes: tuple[int, ...]) -> Table:
    """Seconds to learn who is due."""
    table, walk = Series(), Series()
    for count in sizes:
        with (
            bench.databases.fresh("sqlite") as url,
            closing(sqlite3.connect(sqlite_path(url), check_same_thread=False)) as file,
        ):
            saver = _stock_crowd(file, count)
            table.add(f"{count:,}", _seconds(_ask_table, file, often=21))
            walk.add(f"{count:,}", _seconds(_ask_saver, saver, often=1))
        say(f"tick  stock {count:,}: list() took {walk.last(f'{count:,}'):.2f} s")
    names = [f"{count:,}" for count in sizes]
    rows = [
        [title, times(found.ratio(names[-1], names[0])), *(millis(found.last(n)) for n in names)]
        for title, found in (("a table, with an index", table), ("`list()`", walk))
    ]
    head = ["", f"{names[-1]} ÷ {names[0]}", *(f"{name} asleep" for name in names)]
    return Table(head, rows, "Stock LangGraph on SQLite: finding what is due")


def _stock_crowd(file: sqlite3.Connection, count: int) -> Any:
    """Threads of stock LangGraph that sleep: one that was driven, and its copies."""
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import START as BEGIN
    from langgraph.graph import StateGraph
    from langgraph.types import interrupt

    def touch(state: Dose) -> dict[str, int]:
        return {"n": state["n"] + 1}

    def sleep(state: Dose) -> dict[str, int]:
        interrupt({"due_at": state["due_at"]})
        return {}

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(Dose)
    graph.add_node("touch", touch).add_node("sleep", sleep).add_edge(BEGIN, "touch")
    graph.add_conditional_edges("touch", lambda s: "touch" if s["n"] < 5 else "sleep")
    saver = SqliteSaver(file)
    config: Any = {"configurable": {"thread_id": "campaign-0"}}
    graph.compile(saver).invoke({"n": 0, "due_at": LATER}, config)
    numbers = (
        "WITH RECURSIVE numbers AS (SELECT 1 AS i "
        f"UNION ALL SELECT i + 1 FROM numbers WHERE i < {count - 1}) "
    )
    for table in ("checkpoints", "writes"):
        columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
        picked = ", ".join("'campaign-' || i" if c == "thread_id" else c for c in columns)
        file.execute(
            f"{numbers} INSERT INTO {table} ({', '.join(columns)}) SELECT {picked} "
            f"FROM (SELECT * FROM {table} WHERE thread_id = 'campaign-0') AS one, numbers"
        )
    file.execute("CREATE TABLE asleep (thread_id TEXT PRIMARY KEY, due_at INTEGER)")
    file.execute("CREATE INDEX asleep_due ON asleep (due_at)")
    made = f"SELECT 'campaign-' || i, CASE WHEN i <= {SOME} THEN 0 ELSE {LATER} + i END"
    file.execute(f"{numbers} INSERT INTO asleep {made} FROM numbers")
    file.commit()
    assert len(list(saver.list(config))) == CHECKPOINTS
    return saver


def _ask_table(file: sqlite3.Connection) -> None:
    asked = f"SELECT thread_id FROM asleep WHERE due_at <= 0 ORDER BY due_at LIMIT {SOME}"
    assert len(file.execute(asked).fetchall()) == SOME


def _ask_saver(saver: Any) -> None:
    """Only the last checkpoint of a thread counts; they come newest first."""
    wishes: dict[str, int] = {}
    for one in saver.list(None):
        thread_id = one.config["configurable"]["thread_id"]
        if thread_id not in wishes:
            [[_, _, [asked]]] = one.pending_writes
            wishes[thread_id] = asked.value["due_at"]
    assert set(wishes.values()) == {LATER}


def _seconds(ask: Callable[[Any], None], whom: Any, *, often: int) -> float:
    took = []
    for _ in range(often):
        start = perf_counter()
        ask(whom)
        took.append(perf_counter() - start)
    return median(took)


# -- the processes


@contextmanager
def _post_office() -> Iterator[tuple[str, str]]:
    """Who takes the mails, in a process of its own: its port, and where it can be asked."""
    office = subprocess.Popen(
        [sys.executable, "-m", "examples.campaign.postoffice"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert office.stdout is not None
        _, place, _, lookup = office.stdout.readline().split()
        yield place.rpartition(":")[2], lookup
    finally:
        office.send_signal(signal.SIGTERM)
        office.wait(30)
        if office.stdout is not None:
            office.stdout.close()


class Ticker(Fleet):
    """One process that ticks when it is told to."""

    def __init__(self, url: str, office: tuple[str, str]) -> None:
        self._hands = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.tick", url, *office],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        ]


def main(url: str, port: str, lookup: str) -> None:
    """`due GROUP`, `nothing GROUP`: seconds of a tick when a group is due, and just before."""
    logging.disable(logging.WARNING)
    clock = Clock(START)
    with _app(url, (port, lookup), clock) as app:
        drive = app.runtime.blocking.tick
        print("ready", flush=True)
        for line in sys.stdin:
            what, _, group = line.strip().partition(" ")
            if what == "size":
                print(json.dumps({"rss": resident()}), flush=True)
                continue
            at = START + GAP + timedelta(hours=int(group))
            clock.move_to(at if what == "due" else at - timedelta(minutes=30))
            took, spent = [], process_time()
            for _ in range(1 if what == "due" else IDLE):
                start = perf_counter()
                counts = drive(limit=SOME)
                took.append(perf_counter() - start)
                wanted = SOME if what == "due" else 0
                assert counts.claimed == counts.waiting == wanted, counts
            answer = {"took": median(took), "cpu": process_time() - spent}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
