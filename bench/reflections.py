"""Thousands of pending reflections: what `submit` costs, how soon a new process begins, its memory.

As a program, `python -m bench.reflections ROLE URL`, it is a process that is measured: it says
`ready`, and answers each line of its input with one line of JSON.
"""

import gc
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median, quantiles
from time import perf_counter
from typing import Any, TypeAlias

from bench.databases import Kind, sqlite_path
from bench.due import _columns, _execute
from bench.engines import LABEL
from bench.hands import resident
from bench.imports import _process
from bench.report import Bar, Section, Series, Table, megabytes, millis, times
from bench.rounds import Bench, say
from bench.texts import TEXTS

PAYLOAD = {
    "messages": [
        {"role": "user", "content": "I moved to Lisbon last week, and the dog likes it. " * 8},
        {"role": "assistant", "content": "Noted: you live in Lisbon now, with a dog. " * 8},
    ]
}
MONTH = 30 * 86_400
REAL, MADE = 200, 100
PATIENCE = 300.0

Answer: TypeAlias = dict[str, Any]
Work: TypeAlias = Callable[[list[str]], Answer]


def reflections(bench: Bench) -> Section:
    many = bench.pick(10_000, 2_000)
    kinds: list[Kind] = [k for k in LABEL if not any(w in LABEL[k].lower() for w in bench.without)]
    rounds, each = bench.pick(9, 2), bench.pick(100, 30)
    parts = [
        _submits(bench, kinds, many, rounds, each),
        _starts(bench, kinds, many),
        _sizes(bench, kinds, many),
    ]
    tables = [table for found, _ in parts for table in found]
    bars = [bar for _, judged in parts for bar in judged]
    return TEXTS["reflections"].section(
        tables,
        bars,
        many=f"{many:,}",
        real=REAL,
        each=each,
        rounds=rounds,
        replaced=f"{each * rounds:,}",
        made=MADE,
        some=f"{many // 5:,}",
    )


# -- submit


def _submits(
    bench: Bench, kinds: list[Kind], many: int, rounds: int, each: int
) -> tuple[list[Table], list[Bar]]:
    ways = ("new", "replace")
    found = {way: Series() for way in ways}
    late = {way: Series() for way in ways}
    floors: dict[str, str] = {}
    with ExitStack() as stack:
        field: dict[str, Child] = {}
        for kind in kinds:
            floor = f"one row, {LABEL[kind]}"
            for name, role, pending in (
                (floor, "row", 0),
                (f"perdure {LABEL[kind]}, none pending", "perdure", 0),
                (f"perdure {LABEL[kind]}, {many:,} pending", "perdure", many),
            ):
                url = stack.enter_context(bench.databases.fresh(kind))
                if pending:
                    _fill(kind, url, pending)
                field[name] = stack.enter_context(_child(role, url))
                floors[name] = floor
        for name, pending in (("LangMem's, none pending", 0), (f"LangMem's, {many:,}", many)):
            field[name] = stack.enter_context(_child("langmem", str(pending)))
            floors[name] = ""
        for n in range(rounds):
            turn = n % len(field)
            for name, child in [*field.items()][turn:] + [*field.items()][:turn]:
                for way in ways:
                    took = child.ask(f"submit {way} {n} {each}")["took"]
                    found[way].add(name, median(took))
                    late[way].add(name, quantiles(took, n=20)[-1])
            say(f"reflections  submit {n + 1}/{rounds}")
    rows = []
    for name, floor in floors.items():
        row = [name]
        for way in ways:
            row += [
                times(found[way].ratio(name, floor)),
                millis(found[way].median(name)),
                millis(late[way].median(name)),
            ]
        rows.append(row)
    head = ["", "new, × one row", "median", "p95", "replace, × one row", "median", "p95"]
    bars = [
        Bar(
            f"submit with {many:,} pending, {LABEL[kind]}, {way}, median",
            1.0,
            found[way].median(f"perdure {LABEL[kind]}, {many:,} pending") * 1000,
            unit="ms",
        )
        for kind in kinds
        if kind == "sqlite"
        for way in ways
    ]
    bars += [
        Bar(
            f"submit with {many:,} pending against none, {LABEL[kind]}, {way}",
            1.2,
            found[way].ratio(
                f"perdure {LABEL[kind]}, {many:,} pending", f"perdure {LABEL[kind]}, none pending"
            ),
        )
        for kind in kinds
        for way in ways
    ]
    return [Table(head, rows, "Submit")], bars


# -- start-up


def _starts(bench: Bench, kinds: list[Kind], many: int) -> tuple[list[Table], list[Bar]]:
    few, rounds = 10, bench.pick(5, 1)
    begun, imported = Series(), Series()
    with ExitStack() as stack:
        places = {}
        for kind in kinds:
            for pending in (few, many):
                url = stack.enter_context(bench.databases.fresh(kind))
                _fill(kind, url, pending)
                places[f"perdure {LABEL[kind]}, {pending:,} pending"] = url
        for n in range(rounds):
            for name, url in places.items():
                _make_due(url, 1)
                with _child("start", url) as child:
                    begun.add(name, child.ask("begin 1")["begun"])
            imported.add("import", _process("import perdure.langmem") - _process("pass"))
            say(f"reflections  start {n + 1}/{rounds}")
    rows, bars = [], []
    for kind in kinds:
        least, most = (f"perdure {LABEL[kind]}, {pending:,} pending" for pending in (few, many))
        for name in (least, most):
            ratio = times(begun.ratio(name, least))
            rows.append([name, ratio, millis(begun.median(name))])
        bars.append(
            Bar(
                f"start-up with {many:,} pending until the first starts, {LABEL[kind]}",
                1.0,
                begun.median(most),
                unit="s",
            )
        )
    rows.append(["`import perdure.langmem`, before that", "–", millis(imported.median("import"))])
    head = ["", f"÷ {few} pending", "until the first starts"]
    return [Table(head, rows, "Start-up")], bars


# -- memory


def _sizes(bench: Bench, kinds: list[Kind], many: int) -> tuple[list[Table], list[Bar]]:
    sizes = (REAL, many, 10 * many)
    rows, own, bars = [], [], []
    for kind in kinds:
        found: list[list[int]] = []
        for pending in sizes:
            with bench.databases.fresh(kind) as url:
                _fill(kind, url, pending)
                _make_due(url, 1)
                with _child("start", url) as child:
                    first = child.ask("begin 1")["rss"]
                    _make_due(url, MADE)
                    found.append([first, child.ask(f"begin {MADE}")["rss"]])
        for when, (least, *more) in zip(
            ("after start-up", f"{MADE} reflections later"), zip(*found, strict=True), strict=True
        ):
            ratio = times(more[-1] / least)
            rows.append([f"{LABEL[kind]}, {when}", ratio, *map(megabytes, (least, *more))])
            bars.append(
                Bar(
                    f"memory with {sizes[-1]:,} pending against {REAL}, {LABEL[kind]}, {when}",
                    1.05,
                    more[-1] / least,
                )
            )
        with bench.databases.fresh(kind) as url, _child("perdure", url) as child:
            before = child.ask(f"submit new 0 {many // 5}")
            after = child.ask(f"submit new 1 {many - many // 5}")
        each = (after["objects"] - before["objects"]) / (many - many // 5)
        sized = [megabytes(answer["rss"]) for answer in (before, after)]
        own.append([f"{LABEL[kind]}, submitted", *sized, f"{each:.3f}"])
        bars.append(
            Bar(
                f"objects kept per submitted reflection, {LABEL[kind]}",
                0.1,
                max(0.0, each),
                unit="each",
            )
        )
        say(f"reflections  memory {LABEL[kind]}")
    head = ["", f"{sizes[-1]:,} ÷ {REAL}", *(f"{size:,} pending" for size in sizes)]
    mine = ["", f"{many // 5:,} submitted", f"{many:,} submitted", "objects each"]
    return [Table(head, rows, "Memory"), Table(mine, own, "Memory of the submitting process")], bars


# -- many pending


def _fill(kind: Kind, url: str, size: int) -> None:
    """A journal with so many pending: some were submitted, the others are their copies."""
    real = min(size, REAL)
    with _child("perdure", url) as child:
        child.ask(f"submit new 0 {real}")
    if size > real:
        _execute(url, *_copies(kind, url, size - real))


def _copies(kind: Kind, url: str, count: int) -> list[str]:
    other = {
        "thread_id": "'copy-' || i",
        "id": "'copy-' || i",
        "key": "'copy-' || i",
        "due_at": "due_at + i",
        "ready_at": "ready_at + i",
        "created_at": "created_at + i",
        "change": "i",
    }
    columns = _columns(url)
    picked = ", ".join(other.get(column, column) for column in columns)
    runs = f"INSERT INTO perdure_runs ({', '.join(columns)}) SELECT {picked} FROM"
    one = "(SELECT * FROM perdure_runs LIMIT 1) AS one"
    threads = "INSERT INTO perdure_threads (thread_id, runs) SELECT 'copy-' || i, 1 FROM"
    if kind == "postgres":
        numbers = f"generate_series(1, {count}) AS i"
        return [
            f"{runs} {one}, {numbers}",
            f"{threads} {numbers}",
            "ANALYZE perdure_runs",
            "ANALYZE perdure_threads",
        ]
    numbers = f"SELECT 1 AS i UNION ALL SELECT i + 1 FROM numbers WHERE i < {count}"
    return [
        "PRAGMA synchronous = OFF",
        "PRAGMA cache_size = -400000",
        f"WITH RECURSIVE numbers AS ({numbers}) {runs} {one}, numbers",
        f"WITH RECURSIVE numbers AS ({numbers}) {threads} numbers",
        "PRAGMA wal_checkpoint(TRUNCATE)",
    ]


def _make_due(url: str, count: int) -> None:
    """Some of those that were really submitted."""
    _execute(
        url,
        "UPDATE perdure_runs SET due_at = 1, ready_at = 1 WHERE id IN (SELECT id FROM perdure_runs "
        f"WHERE state = 'pending' AND due_at > 1 AND id NOT LIKE 'copy-%' LIMIT {count})",
    )


# -- the processes that are measured


class Child:
    """A process that was told what to do line by line."""

    def __init__(self, role: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.reflections", role, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.kill = self._process.kill
        assert self._line() == "ready"

    def ask(self, line: str) -> Answer:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer: Answer = json.loads(self._line())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"a process ended with {self._process.wait()}"
        return line.strip()


@contextmanager
def _child(role: str, url: str) -> Iterator[Child]:
    child = Child(role, url)
    watch = threading.Timer(PATIENCE, child.kill)
    watch.start()
    try:
        yield child
    finally:
        watch.cancel()
        child.close()


def _timed(submit: Callable[[str, str], Any], words: list[str]) -> Answer:
    """`submit WAY ROUND COUNT`: seconds of each."""
    _, way, turn, count = words
    took = []
    for n in range(int(count)):
        user, thread = f"user-{n}", "the-same" if way == "replace" else f"{turn}-{n}"
        start = perf_counter()
        submit("one" if way == "replace" else user, thread)
        took.append(perf_counter() - start)
    rss = resident()
    return {"took": took, "rss": rss, "objects": len(gc.get_objects())}


def _config(user: str, thread: str) -> Any:
    return {"configurable": {"user_id": user, "thread_id": thread}}


@contextmanager
def _perdure(url: str) -> Iterator[Work]:
    with _executor(url, lambda payload: None) as executor:

        def submit(user: str, thread: str) -> None:
            executor.submit(PAYLOAD, _config(user, thread), after_seconds=MONTH)

        yield lambda words: _timed(submit, words)


@contextmanager
def _executor(url: str, reflector: Callable[[Any], Any]) -> Iterator[Any]:
    from langgraph.store.memory import InMemoryStore

    from perdure.langmem import ReflectionExecutor

    executor = ReflectionExecutor(
        reflector, ("memories", "{user_id}"), store=InMemoryStore(), journal=url, name="bench"
    )
    try:
        yield executor
    finally:
        executor.shutdown(wait=False)


@contextmanager
def _start(url: str) -> Iterator[Work]:
    """`begin COUNT`: until so many reflections more were made."""
    import perdure.langmem  # noqa: F401

    made: list[float] = []
    changed = threading.Condition()

    def reflector(payload: Any) -> None:
        with changed:
            made.append(perf_counter())
            changed.notify_all()

    wanted = 0
    opened = perf_counter()
    with _executor(url, reflector) as executor:

        def work(words: list[str]) -> Answer:
            nonlocal wanted
            wanted += int(words[1])
            with changed:
                assert changed.wait_for(lambda: len(made) >= wanted, 120)
            while any(one.due_at is None or one.state == "running" for one in executor.pending()):
                threading.Event().wait(0.05)  # the last is being finished
            return {"begun": made[0] - opened, "rss": resident()}

        yield work


@contextmanager
def _langmem(url: str) -> Iterator[Work]:
    """LangMem's own, with so many pending. Its thread would keep the process from ending."""
    from langgraph.store.memory import InMemoryStore
    from langmem import ReflectionExecutor
    from langmem.utils import NamespaceTemplate

    class Reflector:
        namespace = NamespaceTemplate(("memories", "{user_id}"))

    executor = ReflectionExecutor(Reflector(), store=InMemoryStore())

    def submit(user: str, thread: str) -> None:
        executor.submit(PAYLOAD, _config(user, thread), after_seconds=MONTH)

    for n in range(int(url)):
        submit(f"user-{n}", f"pending-{n}")
    yield lambda words: _timed(submit, words)
    sys.stdout.flush()
    os._exit(0)


@contextmanager
def _row(url: str) -> Iterator[Work]:
    """One row in one transaction, by hand."""
    body = json.dumps(PAYLOAD).encode()
    numbers = iter(range(10**9))
    create = "CREATE TABLE bench (id BIGINT PRIMARY KEY, thread TEXT, body {})"
    if url.startswith("sqlite:"):
        file = sqlite3.connect(sqlite_path(url), isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            file.execute(f"PRAGMA {pragma}")
        file.execute("PRAGMA wal_autocheckpoint = 512")
        file.execute(create.format("BLOB"))

        def insert(user: str, thread: str) -> None:
            file.execute("BEGIN IMMEDIATE")
            file.execute("INSERT INTO bench VALUES (?, ?, ?)", (next(numbers), thread, body))
            file.execute("COMMIT")

        yield lambda words: _timed(insert, words)
        return
    import psycopg

    with psycopg.connect(url, autocommit=True) as server:
        server.execute(create.format("BYTEA").encode())

        def send(user: str, thread: str) -> None:
            with server.pipeline():  # one round trip, as perdure's
                server.execute("BEGIN")
                values = (next(numbers), thread, body)
                server.execute("INSERT INTO bench VALUES (%s, %s, %s)", values)
                server.execute("COMMIT")

        yield lambda words: _timed(send, words)


ROLES = {"perdure": _perdure, "start": _start, "langmem": _langmem, "row": _row}


def main(role: str, url: str) -> None:
    with ROLES[role](url) as work:
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(work(line.split())), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
