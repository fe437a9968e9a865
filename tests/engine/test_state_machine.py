"""A plain model, SQLite and PostgreSQL agree on every run, whatever happens in whatever order.

Runs follow a script that is their input. Some segments are driven by a runtime, some by drivers
of our own that stop between two of their steps, for good or to go on when they are no longer
wanted: what such a one still writes must change nothing.
"""

import functools
import itertools
import operator
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import perdure
from perdure import doctor, errors, runs, waits
from perdure.driver import Drive, Raised, Returned
from perdure.journal import Journal, Refused
from perdure.runs import End, RunRow
from perdure.testing import Clock, runtime
from perdure.testing.runtimes import TemporaryRuntime
from perdure.types import ENDED, Run

LEASE = 3_000
RETRY = perdure.Retry(attempts=2, first=timedelta(seconds=10))
DEATHS = 3
BROKEN: set[str] = set()
"""The runs whose step `fail` fails."""

Part = tuple[Any, ...]


# -- the graph: one part of the script per step


class Doing(TypedDict, total=False):
    run: str
    script: list[list[Any]]
    at: Annotated[int, lambda old, new: new]
    log: Annotated[list[str], operator.add]


def follow(state: Doing) -> Doing:
    run, at = state["run"], state["at"]
    what, *more = state["script"][at]
    answers: list[Any] = []
    if what == "ask":
        answers = [ask(f"{run} {at} 0", more)]
    elif what == "twice":
        answers = [ask(f"{run} {at} 0", []), ask(f"{run} {at} 1", [])]
    elif what == "sleep":
        perdure.sleep(timedelta(seconds=more[0]))
    elif what == "wait":
        answers = [wait(more)]
    elif what == "fail" and run in BROKEN:
        raise RuntimeError(run)
    return {"log": [" ".join([run, str(at), what, *map(str, answers)])], "at": at + 1}


def left(state: Doing) -> Doing:
    run, at = state["run"], state["at"]
    return {"log": [f"{run} {at} left {ask(f'{run} {at} 0', [])}"], "at": at + 1}


def right(state: Doing) -> Doing:
    run, at = state["run"], state["at"]
    return {"log": [f"{run} {at} right {wait(['x'])}"], "at": at + 1}


def ask(value: str, seconds: list[int]) -> Any:
    if not seconds:
        return perdure.ask(value)
    return perdure.ask(value, expires=timedelta(seconds=seconds[0]), default="nobody")


def wait(more: list[Any]) -> Any:
    timeout = timedelta(seconds=more[1]) if len(more) > 1 else None
    return perdure.wait_for(more[0], timeout=timeout, default="nothing")


def route(state: Doing) -> Any:
    if state["at"] == len(state["script"]):
        return END
    if state["script"][state["at"]][0] == "pair":
        return [Send("left", state), Send("right", state)]
    return "follow"


def build() -> Any:
    builder = StateGraph(Doing)
    builder.add_node("follow", follow)
    builder.add_node("left", left)
    builder.add_node("right", right)
    builder.add_node("join", lambda state: {"at": state["at"]})
    builder.add_edge(["left", "right"], "join")
    for node in (START, "follow", "join"):
        builder.add_conditional_edges(node, route, ["follow", "left", "right", END])
    return builder


# -- the model


@dataclass
class Asked:
    """A wait of the model."""

    place: tuple[int, int]
    """Which part of the script, and which of its tasks."""
    n: int
    kind: str
    name: str | None
    wake_at: int | None
    state: str = "open"
    by: str | None = None
    value: Any = None
    token: int = 0

    @property
    def id(self) -> tuple[int, int, int]:
        return (*self.place, self.n)


@dataclass
class Doer:
    """A run of the model."""

    name: str
    thread: str
    n: int
    key: str | None
    script: list[Part]
    due: int | None
    ready: int
    state: str = "pending"
    token: int = 0
    attempts: int = 0
    begun: int = 0
    poked: bool = False
    control: str | None = None
    undo: int = 0
    worker: str | None = None
    at: int = 0
    output: list[str] | None = None
    events: list[str] = field(default_factory=lambda: ["started"])
    waits: dict[tuple[int, int, int], Asked] = field(default_factory=dict)
    first_seen: dict[int, int] = field(default_factory=dict)
    """When each part that reads the clock was first reached."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass
class Kept:
    """A signal of the model."""

    name: str
    key: str | None
    value: str
    taken: tuple[str, tuple[int, int, int]] | None = None


@dataclass
class Driving:
    """A claim, whose driver may be anywhere."""

    run: str
    token: int
    attempts: int
    begun: int
    control: str | None
    was: str
    worker: str
    rows: list[RunRow]
    driven: list[tuple[Drive | End | None, Returned | Raised | None]] = field(default_factory=list)
    ending: tuple[str, int] | None = None
    """What the model says of it: a state, and the attempts."""


class Model:
    """What the runtime promises, in a few dicts."""

    def __init__(self) -> None:
        self.now = 0
        self.runs: dict[str, Doer] = {}
        self.signals: dict[str, list[Kept]] = {}
        self.logs: dict[str, list[tuple[str, str]]] = {}
        self.starts: dict[str, int] = {}

    def of(self, thread: str) -> list[Doer]:
        return sorted((r for r in self.runs.values() if r.thread == thread), key=lambda r: r.n)

    def busy(self, thread: str) -> list[Doer]:
        return [run for run in self.of(thread) if not run.ended]

    # start, stop, go on

    def start(
        self, name: str, thread: str, key: str | None, script: list[Part], strategy: str, after: int
    ) -> str | None:
        """The name of the run, or None if the thread is busy."""
        self.starts[thread] = self.starts.get(thread, 0) + 1
        for run in self.of(thread):
            if key is not None and run.key == key:
                return run.name
        if strategy == "reject" and self.busy(thread):
            return None
        if strategy in ("interrupt", "rollback"):
            for run in self.busy(thread):
                run.control, run.undo = "cancel", int(strategy == "rollback")
                if run.state == "running":
                    run.events.append("cancelling")
                else:
                    run.state, run.due = "cancelled", None
                    run.events.append("cancelled")
            self.close_waits(thread)
        ready = self.now + after
        due = None if self.busy(thread) else ready
        self.runs[name] = Doer(name, thread, self.starts[thread], key, script, due, ready)
        return name

    def stop(self, run: Doer, control: str, state: str) -> bool:
        if run.ended or run.state == state:
            return run.state == state
        if control == "pause" and (run.state == "held" or run.control == "cancel"):
            return False
        if run.state == "running":
            run.control = control
            run.events.append("cancelling" if control == "cancel" else "pausing")
        else:
            run.state, run.due, run.control = state, None, None
            run.events.append(state)
        self.close_waits(run.thread)
        self.next(run.thread)
        return True

    def go_on(self, run: Doer, states: tuple[str, ...], kind: str) -> bool:
        later = [r for r in self.of(run.thread) if r.n > run.n]
        moved_on = any(r.begun or r.state == "running" for r in later)
        if (run.state, run.control) == ("running", "pause") and kind == "resumed":
            run.control = None  # it is taken back
            run.events.append(kind)
            return True
        if run.state not in states or (run.ended and moved_on):
            return False
        earlier = [r for r in self.busy(run.thread) if r.n < run.n]
        run.state, run.attempts, run.output, run.control = "pending", 0, None, None
        run.due = None if earlier else self.now if run.begun else max(self.now, run.ready)
        run.events.append(kind)
        for other in later:
            if other.state == "pending":
                other.due = None
        return True

    def next(self, thread: str) -> None:
        head = next(iter(self.busy(thread)), None)
        if head is not None and head.state == "pending" and head.due is None:
            head.due = max(head.ready, self.now)

    def close_waits(self, thread: str) -> None:
        for run in self.of(thread):
            for wait in run.waits.values():
                if run.ended and wait.state == "open":
                    wait.state = "closed"

    # a segment

    def can_claim(self, run: Doer) -> bool:
        if run.state == "running":
            return run.due is not None and run.due <= self.now
        return run.state == "waiting" or (run.state == "pending" and run.due is not None)

    def due(self) -> list[Doer]:
        return [run for run in self.runs.values() if run.due is not None and run.due <= self.now]

    def claim(self, run: Doer, worker: str, rows: list[RunRow]) -> Driving:
        was = run.state
        run.events.append("recovered" if was == "running" else "claimed")
        run.state, run.due, run.poked = "running", self.now + LEASE, False
        run.worker = worker
        run.token += 1
        run.attempts += 1
        return Driving(run.name, run.token, run.attempts, run.begun, run.control, was, worker, rows)

    def holds(self, lease: Driving) -> bool:
        run = self.runs[lease.run]
        return run.state == "running" and run.token == lease.token

    def is_deadly(self, lease: Driving) -> bool:
        return lease.attempts > DEATHS and lease.was == "running"

    def drive(self, lease: Driving) -> None:
        """Everything up to letting go."""
        run = self.runs[lease.run]
        if lease.control is not None:
            paused = ("paused", lease.attempts - 1)
            lease.ending = ("cancelled", 0) if lease.control == "cancel" else paused
            return
        if self.is_deadly(lease):
            lease.ending = ("held", 0)
            return
        if lease.begun:
            self.hand_over(run)
        else:
            self.undo(run)
        progressed = not lease.begun
        waiting = failed = False
        while run.at < len(run.script):
            waiting, failed, lines = self.part(run)
            if waiting or failed:
                break
            run.at += 1
            self.logs.setdefault(run.thread, []).extend((run.name, line) for line in lines)
            progressed = True
        if progressed:
            run.begun, run.attempts = 1, 1
        attempts = 1 if progressed else lease.attempts
        lease.ending = ("waiting" if waiting else "failed" if failed else "done", attempts)

    def undo(self, first: Doer) -> None:
        """Before a run begins, what was rolled back before it goes."""
        for run in self.of(first.thread) if first.n > 1 else []:
            if run.undo == 1 and run.ended:
                run.undo = 2
                log = self.logs.get(run.thread, [])
                self.logs[run.thread] = [line for line in log if line[0] != run.name]

    def hand_over(self, run: Doer) -> None:
        for wait in run.waits.values():
            if wait.state != "open":
                continue
            if wait.kind == "signal":
                for kept in self.signals.get(run.thread, []):
                    if kept.name == wait.name and kept.taken is None:
                        kept.taken = (run.name, wait.id)
                        wait.state, wait.by, wait.value = "answered", "signal", kept.value
                        run.events.append("signal")
                        break
            if wait.state == "open" and wait.wake_at is not None and wait.wake_at <= self.now:
                wait.state, wait.by = "answered", "clock"
                wait.value = {"human": "nobody", "signal": "nothing", "clock": None}[wait.kind]
                run.events.append("woke" if wait.kind == "clock" else "expired")
        newest = {wait.place: wait for wait in sorted(run.waits.values(), key=lambda w: w.n)
                  if wait.state not in ("consumed", "closed")}  # fmt: skip
        for wait in newest.values():
            if wait.state == "answered":
                wait.state = "applied"

    def part(self, run: Doer) -> tuple[bool, bool, list[str]]:
        """One part of a script: whether it waits, whether it fails, and what it adds to the log."""
        what, *more = run.script[run.at]
        begin = f"{run.name} {run.at}"
        if what == "fail" and run.name in BROKEN:
            return False, True, []
        if what in ("ask", "sleep", "wait") and any(isinstance(one, int) for one in more):
            seen = run.first_seen.setdefault(run.at, self.now)
            until = seen + 1000 * more[-1]
        else:
            until = None
        if what == "ask":
            value, waits_ = self.asks(run, 0, [("human", None)], until)
            return waits_, False, [f"{begin} ask {value}"]
        if what == "twice":
            value, waits_ = self.asks(run, 0, [("human", None), ("human", None)], None)
            return waits_, False, [f"{begin} twice {value}"]
        if what == "sleep":
            _, waits_ = self.asks(run, 0, [("clock", None)], until)
            return waits_, False, [f"{begin} sleep"]
        if what == "wait":
            value, waits_ = self.asks(run, 0, [("signal", more[0])], until)
            return waits_, False, [f"{begin} wait {value}"]
        if what == "pair":
            here, waits_ = self.asks(run, 0, [("human", None)], None)
            there, too = self.asks(run, 1, [("signal", "x")], None)
            return waits_ or too, False, [f"{begin} left {here}", f"{begin} right {there}"]
        return False, False, [f"{begin} {what}"]

    def asks(
        self, run: Doer, task: int, questions: list[tuple[str, str | None]], until: int | None
    ) -> tuple[str, bool]:
        """The answers a task has, and whether it waits for another one."""
        values = []
        for n, (kind, name) in enumerate(questions):
            wait = run.waits.get((run.at, task, n))
            if wait is not None and wait.state in ("applied", "consumed"):
                values.append(str(wait.value))
                continue
            if wait is None:
                wait = Asked((run.at, task), n, kind, name, until)
                run.waits[wait.id] = wait
                run.events.append("wait")
            elif wait.state == "closed":
                wait.state = "open"
            wait.token = run.token
            return "", True
        return " ".join(values), False

    def finish(self, lease: Driving) -> str:
        run = self.runs[lease.run]
        assert lease.ending is not None
        if not self.holds(lease):
            return "lost"
        state, attempts = lease.ending
        kind, due = state, None
        if state == "failed" and attempts < RETRY.attempts:
            state, due = "pending", self.now + round(RETRY.pause(attempts).total_seconds() * 1000)
        if state in ("waiting", "done"):
            for wait in run.waits.values():
                if wait.state == "applied":
                    wait.state = "consumed"
        if state == "waiting":
            for wait in run.waits.values():
                if wait.state == "open" and wait.token != run.token:
                    wait.state = "closed"
            due = self.when(run)
        said = state
        if state not in ENDED and run.control is not None:
            state = "cancelled" if run.control == "cancel" else "paused"
        elif state == "paused":  # which was taken back
            state, due = "pending", self.now
        if state in ENDED or run.control is not None:
            due = None
        run.events.append(kind if state == said else "released" if state == "pending" else state)
        run.attempts = attempts if kind in ("failed", "paused") else 0
        run.state, run.due, run.control, run.worker = state, due, None, None
        if said == "done":
            run.output = [line for _, line in self.logs.get(run.thread, [])]
        self.close_waits(run.thread)
        self.next(run.thread)
        return "released" if said == "pending" else said

    def when(self, run: Doer) -> int | None:
        """When a run that begins to wait is due."""
        opened = [wait for wait in run.waits.values() if wait.state == "open"]
        kept = {s.name for s in self.signals.get(run.thread, []) if s.taken is None}
        if run.poked or any(w.kind == "signal" and w.name in kept for w in opened):
            return self.now
        return min((w.wake_at for w in opened if w.wake_at is not None), default=None)

    # what comes from outside

    def poke(self, run: Doer) -> None:
        run.poked = True
        if run.state == "waiting" and (run.due is None or run.due > self.now):
            run.due = self.now

    def answer(self, run: Doer, wait: Asked, value: str) -> type[Exception] | None:
        if wait.kind != "human":
            return errors.WrongWait
        if wait.state == "closed":
            return errors.WaitClosed
        if wait.state != "open":
            return errors.WaitExpired if wait.by == "clock" else errors.AlreadyAnswered
        if wait.wake_at is not None and wait.wake_at <= self.now:
            return errors.WaitExpired
        wait.state, wait.by, wait.value = "answered", "ana", value
        run.events.append("answer")
        self.poke(run)
        return None

    def signal(self, thread: str, name: str, key: str | None, value: str) -> bool:
        kept = self.signals.setdefault(thread, [])
        new = key is None or all((s.name, s.key) != (name, key) for s in kept)
        if new:
            kept.append(Kept(name, key, value))
        for run in self.of(thread):
            if run.state == "running":
                run.poked = True
            elif run.state == "waiting":
                run.poked = True
                if any((w.state, w.kind, w.name) == ("open", "signal", name)
                       for w in run.waits.values()):  # fmt: skip
                    self.poke(run)
        return new


# -- the databases


class Side:
    """One database, and the runtime on it."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.rt: TemporaryRuntime = runtime(
            url, clock=self.clock, lease=timedelta(milliseconds=LEASE)
        )
        self.rt.register(build(), name="script", retry=RETRY, deaths=DEATHS)
        self.rt.saver.setup()
        self.graph = self.rt._graphs["script@"]
        self.ids: dict[str, str] = {}
        """Runs by their names in the model."""
        self._db: Any = (
            psycopg.connect(url, autocommit=True)
            if url.startswith("postgres")
            else sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        )

    @property
    def journal(self) -> Journal:
        return self.rt.journal

    @property
    def driver(self) -> Any:
        return self.rt._driver

    def drive(self, row: RunRow) -> tuple[Drive | End | None, Returned | Raised | None]:
        try:
            begun = self.journal.run(self.driver.begin(row, self.graph))
        except (Refused, errors.LeaseLost):
            return None, None
        if isinstance(begun, End):
            return begun, None
        try:
            output = self.graph.pregel.invoke(begun.input, begun.config, **begun.arguments)
        except (Exception, errors.LeaseLost) as error:
            return begun, Raised(error)
        return begun, Returned(output)

    def finish(self, row: RunRow, drive: Drive | End | None, outcome: Any) -> str:
        if drive is None:
            return "lost"
        try:
            if isinstance(drive, End):
                return str(self.journal.run(self.driver.let_go(row, drive)))
            return str(self.journal.run(self.driver.finish(drive, outcome)))
        except Refused:
            return "lost"

    def read(self, sql: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._db.execute(sql).fetchall()
        return found

    def clear(self) -> None:
        """A journal without runs; what is left of the example before must not be driven."""
        self.journal.flush()
        self.ids.clear()
        for table in ("runs", "waits", "signals", "events", "reads", "threads"):
            self._db.execute(f"DELETE FROM perdure_{table}")

    def close(self) -> None:
        self._db.close()
        self.rt.close()

    def tell(self) -> Any:
        """All there is to see, in the words of the model."""
        self.journal.flush()
        names = {id: name for name, id in self.ids.items()}
        found = {
            names[id]: (thread, *row)
            for thread, id, *row in self.read(
                "SELECT thread_id, id, n, key, state, due_at, token, attempts, begun, "
                "CASE WHEN state IN ('waiting', 'running') THEN poked ELSE 0 END, "
                "control, undo, worker FROM perdure_runs"
            )
        }
        asked: dict[str, list[Any]] = {name: [] for name in found}
        for id, *row in self.read(
            "SELECT run_id, kind, name, state, COALESCE(wake_at, expires_at), answered_by, "
            "CASE WHEN state = 'open' THEN token END FROM perdure_waits"
        ):
            asked[names[id]].append(tuple(row))
        events: dict[str, list[str]] = {name: [] for name in found}
        for id, kind in self.read(
            "SELECT run_id, kind FROM perdure_events WHERE kind <> 'step' ORDER BY run_id, n"
        ):
            events[names[id]].append(kind)
        signals = self.read(
            "SELECT s.thread_id, s.name, s.key, w.run_id FROM perdure_signals AS s "
            "LEFT JOIN perdure_waits AS w ON w.thread_id = s.thread_id AND w.id = s.wait_id"
        )
        kept = sorted((t, name, key or "", names.get(run, "")) for t, name, key, run in signals)
        return found, {name: sorted(some, key=repr) for name, some in asked.items()}, events, kept


def tell(model: Model) -> Any:
    runs_ = model.runs.values()
    found = {
        run.name: (
            run.thread,
            run.n,
            run.key,
            run.state,
            run.due,
            run.token,
            run.attempts,
            run.begun,
            int(run.poked and run.state in ("waiting", "running")),
            run.control,
            run.undo,
            run.worker,
        )
        for run in runs_
    }
    asked = {
        run.name: sorted(
            (
                (w.kind, w.name, w.state, w.wake_at, w.by, w.token if w.state == "open" else None)
                for w in run.waits.values()
            ),
            key=repr,
        )
        for run in runs_
    }
    kept = sorted(
        (thread, s.name, s.key or "", s.taken[0] if s.taken else "")
        for thread, some in model.signals.items()
        for s in some
    )
    return found, asked, {run.name: run.events for run in runs_}, kept


# -- the machine

PICKS = st.integers(0, 20)
PARTS = st.sampled_from(
    [
        ("step",),
        ("ask",),
        ("ask", 30),
        ("twice",),
        ("sleep", 30),
        ("wait", "x"),
        ("wait", "y", 30),
        ("pair",),
        ("fail",),
    ]
)
THREADS = st.sampled_from(["a", "a", "b"])
_examples = itertools.count()


class Runtimes(RuleBasedStateMachine):
    def __init__(self, sides: list[Side]) -> None:
        super().__init__()
        self.sides = sides
        self.model = Model()
        self.example = next(_examples)
        self.numbers = itertools.count()
        self.leases: list[Driving] = []
        for side in sides:
            side.clear()
        self.move_to(max(side.clock.now() for side in sides))

    def move_to(self, now: int) -> None:
        self.model.now = now
        for side in self.sides:
            side.clock._at = now

    def pick_run(self, pick: int) -> Doer:
        """A run: mostly one that is not over."""
        every = list(self.model.runs.values())
        open_ = [run for run in every if not run.ended]
        return open_[pick % len(open_)] if open_ and pick % 4 else every[pick % len(every)]

    def leases_(self, driven: bool) -> list[Driving]:
        return [lease for lease in self.leases if bool(lease.driven) is driven]

    def refused(self, kind: type[Exception] | None, call: Any) -> Any:
        if kind is None:
            return call()
        with pytest.raises(kind):
            call()
        return None

    # what users do

    @rule(
        thread=THREADS,
        key=st.sampled_from([None, None, None, "k"]),
        script=st.lists(PARTS, min_size=1, max_size=3) | st.just([]),
        strategy=st.sampled_from(["enqueue"] * 3 + ["reject", "interrupt", "rollback"]),
        after=st.sampled_from([0, 0, 0, 20]),
    )
    def start(
        self, thread: str, key: str | None, script: list[Part], strategy: Any, after: int
    ) -> None:
        name, thread = f"r{next(self.numbers)}", f"{thread}{self.example}"
        expected = self.model.start(name, thread, key, script, strategy, 1000 * after)
        if ("fail",) in script:
            BROKEN.add(name)
        for side in self.sides:
            input = {"run": name, "script": [list(part) for part in script], "at": 0, "log": []}

            def call(side: Side = side, input: Any = input) -> Any:
                return side.rt.blocking.start(
                    "script",
                    input,
                    thread_id=thread,
                    key=key,
                    multitask_strategy=strategy,
                    after=timedelta(seconds=after),
                )

            run = self.refused(None if expected else errors.ThreadBusy, call)
            if expected:
                assert side.ids.setdefault(expected, run.id) == run.id

    @precondition(lambda self: any(run.waits for run in self.model.runs.values()))
    @rule(pick=PICKS, value=st.sampled_from(["yes", "no"]))
    def answer(self, pick: int, value: str) -> None:
        every = [(run, w) for run in self.model.runs.values() for w in run.waits.values()]
        asked = [pair for pair in every if pair[1].kind == "human" and pair[1].state == "open"]
        every = asked if asked and pick % 4 else every
        self.answer_one(*every[pick % len(every)], value)

    def answer_one(self, run: Doer, wait: Asked, value: str = "yes") -> None:
        shown = f"{run.name} {wait.place[0]} {wait.n}"
        kind = self.model.answer(run, wait, value)
        for side in self.sides:
            rows = side.journal.do(waits.of_run(side.ids[run.name]))
            bodies = {row.id: waits.open_body(side.driver.box, row) for row in rows}
            [id] = [
                row.id
                for row in rows
                if (
                    bodies[row.id].value == shown
                    if wait.kind == "human"
                    else (row.kind, row.name, row.wake_at or row.expires_at)
                    == (wait.kind, wait.name, wait.wake_at)
                )
            ][:1]
            self.refused(kind, lambda s=side, id=id: s.rt.blocking.answer(id, value, by="ana"))

    @rule(
        thread=THREADS,
        name=st.sampled_from(["x", "x", "y"]),
        key=st.sampled_from([None, "once"]),
    )
    def signal(self, thread: str, name: str, key: str | None) -> None:
        thread, value = f"{thread}{self.example}", f"s{next(self.numbers)}"
        new = self.model.signal(thread, name, key, value)
        for side in self.sides:
            assert side.rt.blocking.signal(thread, name, value, key=key) is new
        self.move_to(self.model.now + 1)  # which of two of one moment is first, nobody promised

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICKS, verb=st.sampled_from(["cancel", "pause"]))
    def stop(self, pick: int, verb: str) -> None:
        run = self.pick_run(pick)
        done = self.model.stop(run, verb, "cancelled" if verb == "cancel" else "paused")
        for side in self.sides:
            call = functools.partial(getattr(side.rt.blocking, verb), side.ids[run.name])
            self.refused(None if done else errors.WrongState, call)

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICKS, repair=st.booleans())
    def go_on(self, pick: int, repair: bool) -> None:
        """Resume what is paused, retry what failed, and try it with others."""
        every = list(self.model.runs.values())
        stuck = [run for run in every if run.state in ("paused", "failed", "held")] or every
        run = stuck[pick % len(stuck)]
        if repair:
            BROKEN.discard(run.name)
        self.go_on_with(run, "retry" if run.state in ("failed", "held") else "resume")

    def go_on_with(self, run: Doer, verb: str) -> None:
        states = ("paused",) if verb == "resume" else ("failed", "held")
        done = self.model.go_on(run, states, "resumed" if verb == "resume" else "retried")
        for side in self.sides:
            call = functools.partial(getattr(side.rt.blocking, verb), side.ids[run.name])
            self.refused(None if done else errors.WrongState, call)

    @rule(seconds=st.sampled_from([1, 4, 15, 40]))
    def time_passes(self, seconds: int) -> None:
        self.move_to(self.model.now + 1000 * seconds)

    # what drives

    @rule()
    def tick(self) -> None:
        while due := self.model.due():
            for run in due:
                lease = self.model.claim(run, "tick", [])
                self.model.drive(lease)
                self.model.finish(lease)
        for side in self.sides:
            side.rt.blocking.tick(limit=1000)

    @precondition(lambda self: self.model.due())
    @rule(suspect=st.booleans())
    def claim_what_is_due(self, suspect: bool) -> None:
        """All that is due; or else what was left behind twice, which is claimed apart."""
        worker = f"w{next(self.numbers)}"
        due = [
            run
            for run in self.model.due()
            if (run.state == "running" and run.attempts >= 2) is suspect
        ]
        claimed = []
        for side in self.sides:
            now, box = side.clock.now(), side.driver.box
            op = runs.claim(box, worker, now, now + LEASE, ["script@"], 100, suspect=suspect)
            claimed.append({row.id: row for row in side.journal.do(op)})
            assert set(claimed[-1]) == {side.ids[run.name] for run in due}
        for run in due:
            rows = [c[s.ids[run.name]] for c, s in zip(claimed, self.sides, strict=True)]
            self.leases.append(self.model.claim(run, worker, rows))

    @precondition(lambda self: self.model.runs)
    @rule(pick=PICKS)
    def claim_one(self, pick: int) -> None:
        self.claim(self.pick_run(pick))

    def claim(self, run: Doer) -> None:
        worker = f"w{next(self.numbers)}"
        free = self.model.can_claim(run)
        rows = []
        for side in self.sides:
            now, box, id = side.clock.now(), side.driver.box, side.ids[run.name]
            op = runs.claim_run(box, worker, now, now + LEASE, run.thread, id)
            rows.append(side.journal.do(op))
            assert (rows[-1] is not None) is free
        if free:
            self.leases.append(self.model.claim(run, worker, [row for row in rows if row]))

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS, drives=st.booleans(), answered=st.booleans())
    def overtake(self, pick: int, drives: bool, answered: bool) -> None:
        """A driver takes longer than its lease, and another one is there."""
        run = self.model.runs[self.leases[pick % len(self.leases)].run]
        self.move_to(self.model.now + LEASE)
        self.claim(run)
        if drives and not self.leases[-1].driven:
            self.drive_one(self.leases[-1])
        for wait in list(run.waits.values()) if answered else []:
            if wait.state == "open" and wait.kind == "human":
                self.answer_one(run, wait)

    @precondition(lambda self: self.leases or self.model.due())
    @rule(pick=PICKS, to_the_end=st.booleans())
    def drive(self, pick: int, to_the_end: bool) -> None:
        """A driver comes as far as letting go, if it is still its turn."""
        found = self.leases_(driven=False)
        if not found:
            due = self.model.due()
            if not due:
                return
            self.claim(due[pick % len(due)])
            found = self.leases_(driven=False)
        lease = found[pick % len(found)]
        self.drive_one(lease)
        if to_the_end:
            self.let_go(lease)

    def drive_one(self, lease: Driving) -> None:
        if self.model.holds(lease):
            self.model.drive(lease)
        elif lease.control is None and not self.model.is_deadly(lease) and not lease.begun:
            self.model.undo(self.model.runs[lease.run])  # which has to be done anyway
        lease.driven = [side.drive(row) for side, row in zip(self.sides, lease.rows, strict=True)]

    @precondition(lambda self: self.leases_(driven=True))
    @rule(pick=PICKS)
    def finish(self, pick: int) -> None:
        """A driver that was driving lets go; nothing happens if it is no longer its turn."""
        found = self.leases_(driven=True)
        self.let_go(found[pick % len(found)])

    def let_go(self, lease: Driving) -> None:
        self.leases.remove(lease)
        expected = "lost" if lease.ending is None else self.model.finish(lease)
        for side, row, driven in zip(self.sides, lease.rows, lease.driven, strict=True):
            assert side.finish(row, *driven) == expected

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS)
    def renew(self, pick: int) -> None:
        lease = self.leases[pick % len(self.leases)]
        until, run = self.model.now + LEASE, self.model.runs[lease.run]
        if run.state == "running" and run.worker == lease.worker:
            run.due = until
        for side in self.sides:
            side.journal.do(runs.renew(lease.worker, until, [side.ids[lease.run]]))

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS, notice=st.booleans())
    def crash(self, pick: int, notice: bool) -> None:
        """A driver is gone; others on its host notice it, or else its lease runs out."""
        lease = self.leases.pop(pick % len(self.leases))
        if notice:
            for run in self.model.runs.values():
                if (run.worker, run.state) == (lease.worker, "running"):
                    assert run.due is not None
                    run.due = min(run.due, self.model.now)
            for side in self.sides:
                side.journal.do(runs.expire(lease.worker, self.model.now))

    # what must be true

    @invariant()
    def the_databases_say_what_the_model_says(self) -> None:
        expected = tell(self.model)
        for side in self.sides:
            for found, wanted in zip(side.tell(), expected, strict=True):
                assert found == wanted

    @invariant()
    def the_doctor_finds_nothing(self) -> None:
        for side in self.sides:
            assert side.journal.do(doctor.examine()) == []

    def teardown(self) -> None:
        """Whatever happened, every run can be brought to an end, with what it was given."""
        BROKEN.clear()
        for _ in range(20):
            for run in self.model.runs.values():
                if run.state in ("paused", "held"):
                    self.go_on_with(run, "resume" if run.state == "paused" else "retry")
            for run in list(self.model.runs.values()):
                for wait in list(run.waits.values()):
                    if wait.state == "open" and wait.kind == "human":
                        self.answer_one(run, wait)
            for thread in {run.thread[0] for run in self.model.runs.values()}:
                for name in ("x", "y"):
                    self.signal(thread, name, None)
            self.time_passes(40)
            self.tick()
            self.the_databases_say_what_the_model_says()
            self.the_doctor_finds_nothing()
            if all(run.ended for run in self.model.runs.values()):
                break
        for run in self.model.runs.values():
            assert run.ended
            for side in self.sides:
                found = side.rt.blocking.get(side.ids[run.name])
                assert found.output == (None if run.output is None else found.output)
                if run.output is not None:
                    assert found.output["log"] == run.output
        BROKEN.clear()


def check(urls: list[str], examples: int, steps: int) -> None:
    sides = [Side(url) for url in urls]
    try:
        run_state_machine_as_test(
            lambda: Runtimes(sides),  # type: ignore[arg-type]  # any factory will do
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        for side in sides:
            side.close()


def test_random_operations_leave_what_a_plain_model_says(
    sqlite_url: str, postgres_url: str
) -> None:
    check([sqlite_url, postgres_url], examples=20, steps=20)


@pytest.mark.slow
def test_many_random_operations_leave_what_a_plain_model_says(
    sqlite_url: str, postgres_url: str
) -> None:
    check([sqlite_url, postgres_url], examples=100, steps=40)


# -- races that take two transactions, and what a machine comes to too seldom


@pytest.fixture
def side(url: str) -> Iterator[Side]:
    side = Side(url)
    yield side
    side.close()


def script(*parts: Part) -> dict[str, Any]:
    return {"run": "r", "script": [list(part) for part in parts], "at": 0, "log": []}


def claim(side: Side, run: Run, worker: str) -> RunRow:
    now = side.clock.now()
    op = runs.claim_run(side.driver.box, worker, now, now + LEASE, run.thread_id, run.id)
    row = side.journal.do(op)
    assert row is not None
    return row


def test_a_driver_that_lost_its_lease_cannot_use_up_an_answer(side: Side) -> None:
    rt = side.rt.blocking
    run = rt.start("script", script(("ask",)), thread_id="t")
    rt.tick()
    [wait] = rt.waits()
    late = claim(side, run, "late")
    side.clock.advance(timedelta(seconds=10))
    row = claim(side, run, "next")
    driven = side.drive(row)  # it saw no answer
    rt.answer(wait.id, "yes")
    side.drive(late)  # this one sees it, and hands it over to nobody
    assert side.finish(row, *driven) == "waiting"
    rt.tick()
    assert rt.get(run.id).output["log"] == ["r 0 ask yes"]


def test_a_signal_that_comes_while_its_wait_is_being_stored_wakes_the_run(
    postgres_url: str,
) -> None:
    side = Side(postgres_url)
    rt = side.rt.blocking
    run = rt.start("script", script(("wait", "x")), thread_id="t")
    rt.tick()
    with (
        psycopg.connect(postgres_url, autocommit=True) as db,
        ThreadPoolExecutor(1) as pool,
    ):
        # The transaction that stores the wait and lets the run go, in slow motion.
        db.execute("CREATE TEMP TABLE kept AS SELECT * FROM perdure_waits")
        db.execute("DELETE FROM perdure_waits")
        db.execute("UPDATE perdure_runs SET state = 'running', due_at = 0")
        with db.transaction():
            db.execute("UPDATE perdure_runs SET state = 'waiting', due_at = NULL")
            sent = pool.submit(rt.signal, "t", "x", "hello")
            deadline = time.monotonic() + 20
            while not db.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            ).fetchall():
                assert time.monotonic() < deadline
            db.execute("INSERT INTO perdure_waits SELECT * FROM kept")
        assert sent.result(20)
    rt.tick()
    assert rt.get(run.id).output["log"] == ["r 0 wait hello"]
    side.close()


def test_a_run_behind_one_that_was_superseded_while_it_waited_is_next(side: Side) -> None:
    rt = side.rt.blocking
    first = rt.start("script", script(("ask",)), thread_id="t")
    rt.tick()
    second = rt.start("script", script(), thread_id="t")
    setup = {"input": script()}
    plan = side.rt._ledger.accept(("script", ""), "t", setup, "interrupt", only="waiting")
    third = side.journal.run(plan)
    assert side.journal.do(doctor.examine()) == []
    rt.tick()
    states = [rt.get(id).state for id in (first.id, second.id, third.id)]
    assert states == ["cancelled", "done", "done"]


def test_a_run_that_fails_more_often_than_workers_may_die_is_not_held(side: Side) -> None:
    BROKEN.add("r")
    patient = perdure.Retry(attempts=DEATHS + 3, first=timedelta(seconds=1))
    side.rt.register(build(), name="patient", retry=patient, deaths=DEATHS)
    rt = side.rt.blocking
    run = rt.start("patient", script(("fail",)), thread_id="t")
    for attempt in range(1, patient.attempts + 1):
        assert rt.get(run.id).state == "pending", attempt
        rt.tick()
        side.clock.advance(timedelta(hours=1))
    assert rt.get(run.id).state == "failed"
    BROKEN.clear()


def test_a_pause_that_is_taken_back_after_a_takeover_does_not_pause(side: Side) -> None:
    rt = side.rt.blocking
    run = rt.start("script", script(("step",)), thread_id="t")
    claim(side, run, "dead")
    rt.pause(run.id)
    side.clock.advance(timedelta(seconds=10))
    row = claim(side, run, "next")  # it is told to pause
    rt.resume(run.id)
    side.finish(row, *side.drive(row))
    rt.tick()
    assert rt.get(run.id).state == "done"
