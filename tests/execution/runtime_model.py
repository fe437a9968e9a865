"""A plain model of runs, and the databases it is compared with.

Runs follow a script that is their input: one part of it per step.
"""

import operator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import perdure
from perdure import errors
from perdure.commands.claims import SegmentEnd
from perdure.commands.runs import RunRow
from perdure.execution.drive import Drive, Raised, Returned
from perdure.execution.segment_end import end_segment, finish_segment
from perdure.execution.segment_start import begin_segment
from perdure.journal import Journal, Refused
from perdure.testing import Clock, TemporaryRuntime, runtime
from perdure.types import ENDED
from tests.support.raw import Database

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
    driven: list[tuple[Drive | SegmentEnd | None, Returned | Raised | None]] = field(
        default_factory=list
    )
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

    def continue_run(self, run: Doer, states: tuple[str, ...], kind: str) -> bool:
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
        self.graph = self.rt.engine.graphs.chosen()["script@"]
        self.ids: dict[str, str] = {}
        """Runs by their names in the model."""
        self._db = Database(url)

    @property
    def journal(self) -> Journal:
        return self.rt.journal

    @property
    def driver(self) -> Any:
        return self.rt.engine

    def drive(self, row: RunRow) -> tuple[Drive | SegmentEnd | None, Returned | Raised | None]:
        try:
            begun = self.journal.run(begin_segment(self.driver, row, self.graph))
        except (Refused, errors.LeaseLost):
            return None, None
        if isinstance(begun, SegmentEnd):
            return begun, None
        try:
            output = self.graph.pregel.invoke(begun.input, begun.config, **begun.arguments)
        except (Exception, errors.LeaseLost) as error:
            return begun, Raised(error)
        return begun, Returned(output)

    def finish(self, row: RunRow, drive: Drive | SegmentEnd | None, outcome: Any) -> str:
        if drive is None:
            return "lost"
        try:
            if isinstance(drive, SegmentEnd):
                return str(self.journal.run(end_segment(self.driver, row, drive)))
            return str(self.journal.run(finish_segment(self.driver, drive, outcome)))
        except Refused:
            return "lost"

    def read(self, sql: str) -> list[tuple[Any, ...]]:
        return self._db.execute(sql)

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
