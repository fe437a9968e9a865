"""Nothing is lost or done twice while workers are killed, stopped and cut off."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import operator
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

import psycopg
import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import perdure
from perdure import Runtime
from perdure.errors import AlreadyAnswered, Unavailable
from tests.support import sweep
from tests.support.fork_server import Child, ForkServer, Tell
from tests.support.raw import execute

LEASE = timedelta(seconds=1)
PATIENCE = perdure.Retry(attempts=25, first=timedelta(seconds=0.1), longest=timedelta(seconds=1))
BRANCHES = 3


class Work(TypedDict, total=False):
    run: str
    script: list[str]
    at: Annotated[int, lambda old, new: new]
    log: Annotated[list[str], operator.add]


class Part(Work):
    n: int


def follow(state: Work, folder: Path) -> Work:
    """One part of the script; it takes long enough to be hit in the middle."""
    run, at = state["run"], state["at"]
    what, _, more = state["script"][at].partition(" ")
    line = f"{run} {at} {what}"
    time.sleep(0.005)
    if what == "sleep":
        perdure.sleep(timedelta(seconds=float(more)))
    elif what == "ask":
        line += f" {perdure.ask(f'{run} {at}')}"
    elif what == "wait":
        line += f" {perdure.wait_for(f'{run} {at}')}"
    elif what == "fail":
        with contextlib.suppress(FileExistsError):
            (folder / f"{run}.{at}").touch(exist_ok=False)
            raise RuntimeError(line)
    time.sleep(0.005)
    return {"log": [line], "at": at + 1}


def branch(state: Part) -> Work:
    time.sleep(0.01)
    return {"log": [f"{state['run']} {state['at']} branch {state['n']}"]}


def route(state: Work) -> Any:
    if state["at"] == len(state["script"]):
        return END
    if state["script"][state["at"]] == "fan":
        return [Send("branch", {**state, "n": n}) for n in range(BRANCHES)]
    return "follow"


def build(folder: Path, *, in_loop: bool) -> Any:
    def blocking(state: Work) -> Work:
        return follow(state, folder)

    async def waiting(state: Work) -> Work:
        await asyncio.sleep(0.001)
        return follow(state, folder)

    builder = StateGraph(Work)
    builder.add_node("follow", waiting if in_loop else blocking)
    builder.add_node("branch", branch)
    builder.add_node("join", lambda state: {"at": state["at"] + 1})
    builder.add_edge("branch", "join")
    for node in (START, "follow", "join"):
        builder.add_conditional_edges(node, route, ["follow", "branch", END])
    return builder


def expected_log(run: str, script: list[str], answers: dict[str, str]) -> list[str]:
    """What a run adds to its thread's log when nothing disturbs it."""
    log = []
    for at, part in enumerate(script):
        what = part.partition(" ")[0]
        if what == "fan":
            log += [f"{run} {at} branch {n}" for n in range(BRANCHES)]
        elif what in ("ask", "wait"):
            log.append(f"{run} {at} {what} {answers[f'{run} {at}']}")
        else:
            log.append(f"{run} {at} {what}")
    return log


def expected_steps(script: list[str]) -> int:
    """How many checkpoints such a run leaves: two for its input, and one for each step."""
    return 2 + sum(2 if part == "fan" else 1 for part in script)


def work(order: dict[str, Any], tell: Tell) -> None:
    """What each worker does, until it is killed."""
    url, folder = order["url"], Path(order["folder"])
    while True:
        with contextlib.suppress(Unavailable), Runtime(url, lease=LEASE) as rt:
            for name, in_loop in (("blocking", False), ("waiting", True)):
                graph = build(folder, in_loop=in_loop)
                rt.register(graph, name=name, retry=PATIENCE, deaths=100)
            asyncio.run(rt.work(concurrency=8))
            return
        time.sleep(0.1)  # the database is away, and any supervisor would start us again


T = TypeVar("T")


RUNS = sweep.examples(520, 180)


THREADS = 130


OPEN = 120
"""How many runs are under way at a time, at most."""


PORTION = 16
"""How many runs are started between two disturbances, so that each meets some."""


WORKERS = 4


SCRIPTS = [
    [],
    [],
    ["step", "step", "step", "step"],
    ["step", "sleep 0.1", "step"],
    ["sleep 0.5", "sleep 0.2"],
    ["ask", "step"],
    ["wait", "ask"],
    ["step", "wait"],
    ["fail", "step"],
    ["fan", "step"],
    ["fan", "ask", "fan", "fail"],
]


class Workers:
    """The processes that drive, and what is done to them."""

    def __init__(self, server: ForkServer, url: str, folder: Path, dice: random.Random) -> None:
        self._server, self._dice = server, dice
        marks = folder / "marks"
        marks.mkdir()
        self._order: dict[str, Any] = {
            "url": url,
            "folder": str(marks),
            "log": str(folder / "workers.log"),
        }
        self._alive = [self._start() for _ in range(WORKERS)]
        self._stopped: dict[Child, float] = {}
        self.did: Counter[str] = Counter()

    def _start(self) -> Child:
        return self._server.start(work, limit=600, **self._order)

    def disturb(self) -> None:
        """Kill one, or stop one for a while that is sometimes longer than its lease."""
        self.continue_run(time.monotonic())
        victim = self._dice.choice(self._alive)
        if victim not in self._stopped and self._dice.random() < 0.35:
            victim.send(signal.SIGSTOP)
            self._stopped[victim] = time.monotonic() + self._dice.choice([0.2, 0.7, 1.5, 2.5])
            self.did["stops"] += 1
        else:
            victim.kill()
            self._stopped.pop(victim, None)
            self._alive[self._alive.index(victim)] = self._start()
            self.did["kills"] += 1

    def continue_run(self, until: float) -> None:
        """Let those go on whose time it is."""
        for victim, at in list(self._stopped.items()):
            if at <= until:
                victim.send(signal.SIGCONT)
                del self._stopped[victim]

    def close(self) -> None:
        for worker in self._alive:
            worker.kill()


class Users:
    """Who starts runs, answers them and sends them signals, also when the journal is away."""

    def __init__(self, url: str, dice: random.Random) -> None:
        self.rt = Runtime(url)
        self.rt.saver.setup()
        self._url, self._dice = url, dice
        self.scripts = {f"r{n}": self._script() for n in range(RUNS)}
        self.threads = {f"r{n}": f"t{n % THREADS}" for n in range(RUNS)}
        self.allowed = 0
        """How many runs are to be started by now."""
        self.ids: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        """What was given to each `ask` and `wait`, by run and part."""
        self.accepted: Counter[str] = Counter()
        self._signalled: set[str] = set()
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._keep, args=(what,))
            for what in (self._start, self._answer, self._signal)
        ]
        for thread in self._threads:
            thread.start()

    def _script(self) -> list[str]:
        return self._dice.choice(SCRIPTS)

    def _keep(self, what: Callable[[], None]) -> None:
        try:
            while not self._over.is_set():
                what()
                self._over.wait(0.05)
        except BaseException as error:
            self._errors.append(error)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Calling again is safe, as `Unavailable` says."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return call()
            except (Unavailable, psycopg.OperationalError):
                if time.monotonic() > deadline:
                    raise
                self._over.wait(0.05)

    def _start(self) -> None:
        until = min(self.allowed, self.done() + OPEN)
        for name in list(self.scripts)[len(self.ids) : until]:
            input = {"run": name, "script": self.scripts[name], "at": 0, "log": []}
            graph = "waiting" if int(name[1:]) % 3 == 0 else "blocking"

            def start(
                name: str = name, graph: str = graph, input: Any = input
            ) -> perdure.types.Run:
                return self.rt.blocking.start(graph, input, thread_id=self.threads[name], key=name)

            self.ids[name] = self._patiently(start).id
            if self._dice.random() < 0.2:
                assert self._patiently(start).id == self.ids[name]

    def _answer(self) -> None:
        for wait in self._patiently(lambda: self.rt.blocking.waits(kind="human", limit=200)):
            answer = self.answers.setdefault(wait.value, f"answer to {wait.value}")
            give = functools.partial(self.rt.blocking.answer, wait.id, answer, by="ana")
            with contextlib.suppress(AlreadyAnswered):  # by ourselves, and the reply was lost
                self._patiently(give)
            self.accepted[wait.value] += 1

    def _signal(self) -> None:
        """Each signal is sent twice: early, or when somebody waits for it."""
        listed = self._patiently(lambda: self.rt.blocking.waits(kind="signal", limit=200))
        asked = {wait.name for wait in listed}
        for name in list(self.ids):
            for at, part in enumerate(self.scripts[name]):
                place = f"{name} {at}"
                wanted = place in asked or int(name[1:]) % 2
                if part == "wait" and place not in self._signalled and wanted:
                    self._send(self.threads[name], place)

    def _send(self, thread: str, place: str) -> None:
        self.answers[place] = f"signal to {place}"
        for value in (self.answers[place], "again"):
            send = functools.partial(self.rt.blocking.signal, thread, place, value, key=place)
            self._patiently(send)
        self._signalled.add(place)

    def done(self) -> int:
        [(count,)] = self._patiently(lambda: execute(self._url, DONE))
        return int(count)

    def check(self) -> None:
        for error in self._errors:
            raise error

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        self.rt.close()


def wreak_havoc(
    server: ForkServer, url: str, folder: Path, restart: Callable[[], None] | None
) -> str:
    """The run itself. Gives a line that says what happened."""
    dice = random.Random(20261115)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        users = Users(url, random.Random(7))
        stack.callback(users.close)
        workers = Workers(server, url, folder, dice)
        stack.callback(workers.close)
        restarts = itertools.chain([RUNS // 4, RUNS * 5 // 8] if restart else [])
        at = next(restarts, RUNS + 1)
        deadline = time.monotonic() + 300
        while (done := users.done()) < RUNS:
            users.check()
            assert time.monotonic() < deadline, f"{done} of {RUNS} runs done: {why(users)}"
            if done >= at and restart:
                restart()
                at = next(restarts, RUNS + 1)
                workers.did["restarts"] += 1
            users.allowed += PORTION
            workers.disturb()
            threading.Event().wait(dice.uniform(0.2, 0.4))
        workers.continue_run(float("inf"))
        users.check()
        settle(users)
        took = time.monotonic() - began
        took_over = examine(url, users)
    did = ", ".join(f"{n} {what}" for what, n in sorted(workers.did.items()))
    assert workers.did["kills"] >= RUNS // 52
    assert workers.did["stops"] >= RUNS // 170
    assert took_over >= 1
    return f"{RUNS} runs in {took:.1f} s: {did}, {took_over} takeovers"


def why(users: Users) -> str:
    left = [run for run in users.rt.blocking.runs(limit=RUNS) if run.state != "done"]
    told = [f"{run.id} of {run.thread_id} is {run.state}, due {run.due_at}" for run in left[:10]]
    return f"{Counter(run.state for run in left)}; {'; '.join(told)}"


def settle(users: Users) -> None:
    """Until nobody drives anything any more: a worker that was stopped may think it does."""
    deadline = time.monotonic() + 30
    while users.rt.blocking.runs(state="running"):
        assert time.monotonic() < deadline, why(users)


def examine(url: str, users: Users) -> int:
    """Whether it is as if nothing had happened. Gives how often a run was taken over."""
    rt = users.rt
    assert not rt.blocking.doctor().findings
    found = {run.id: run for run in rt.blocking.runs(limit=RUNS + 1)}
    assert len(found) == RUNS
    assert Counter(run.state for run in found.values()) == {"done": RUNS}

    logs: dict[str, list[str]] = {}
    for name, script in users.scripts.items():  # a thread's runs in the order they were accepted
        log = logs.setdefault(users.threads[name], [])
        log += expected_log(name, script, users.answers)
        output = found[users.ids[name]].output
        assert output == {"run": name, "script": script, "at": len(script), "log": log}

    steps = dict(execute(url, f"{EVENTS} WHERE kind = 'step' GROUP BY run_id"))
    ends = dict(execute(url, f"{EVENTS} WHERE kind = 'done' GROUP BY run_id"))
    for name, script in users.scripts.items():
        assert steps[users.ids[name]] == expected_steps(script)
        assert ends[users.ids[name]] == 1
    gaps = execute(
        url, "SELECT run_id FROM perdure_events GROUP BY run_id HAVING count(*) <> max(n)"
    )
    assert gaps == []

    parts = Counter(part for script in users.scripts.values() for part in script)
    asked = Counter(execute(url, "SELECT kind, state FROM perdure_waits"))
    assert asked["human", "consumed"] == parts["ask"] == len(users.accepted)
    assert asked["signal", "consumed"] == parts["wait"]
    assert sum(asked.values()) == sum(n for part, n in parts.items() if part[:4] in WAITS)
    taken = execute(
        url, "SELECT count(*), count(wait_id), count(DISTINCT wait_id) FROM perdure_signals"
    )
    assert taken == [(parts["wait"],) * 3]
    [(took_over,)] = execute(url, "SELECT count(*) FROM perdure_events WHERE kind = 'recovered'")
    return int(took_over)


DONE = "SELECT count(*) FROM perdure_runs WHERE state = 'done'"


EVENTS = "SELECT run_id, count(*) FROM perdure_events"


WAITS = ("ask", "wait", "slee")


@pytest.mark.slow
def test_nothing_is_lost_or_done_twice_while_workers_are_killed_and_stopped(
    fork_server: ForkServer, sqlite_url: str, tmp_path: Path
) -> None:
    print(wreak_havoc(fork_server, sqlite_url, tmp_path, None))


@pytest.mark.slow
def test_nothing_is_lost_or_done_twice_while_the_database_restarts_too(
    fork_server: ForkServer, served_url: str, restart: Callable[[], None], tmp_path: Path
) -> None:
    print(wreak_havoc(fork_server, served_url, tmp_path, restart))
