"""Reflections whose process is ended at any point are made once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import langchain_core.messages.block_translators.langchain_v0
import langchain_core.tracers.context
import langchain_core.tracers.run_collector
import langchain_core.tracers.stdout  # noqa: F401
import pytest
from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

import perdure
from perdure.langmem import ReflectionExecutor
from perdure.testing import Clock, points, watch_points
from perdure.testing.postgres import Server
from perdure.types import Run, State
from tests.support.fork_server import Child, ForkServer, Tell
from tests.support.memory import manager, opened_store, remembered, talk, who
from tests.support.on_d1 import NO_STORE
from tests.support.polling import until
from tests.support.runtime_child import Ledger
from tests.support.sweep import examples, parts, sample

LATER = 3600.0
"""Seconds after which something is due that is not due while a child lives."""
PATIENCE = 20.0


class Ahead:
    """The time, some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._ahead = seconds

    def now(self) -> int:
        return round((time.time() + self._ahead) * 1000)


class Told(Ledger):
    """What a process told that may be killed. The machine goes on: the disk is not waited for."""

    def add(self, line: str) -> None:
        with open(self._path, "a") as file:
            file.write(f"{line}\n")


class Points:
    """What a child comes by, and where it ends."""

    def __init__(self, order: dict[str, Any], ledger: Ledger) -> None:
        fate = order.get("fate") or {}
        self.how: str = fate.get("how", "")
        self._at: list[Any] | None = fate.get("at")
        self._nth: int | None = fate.get("nth")
        self._tells, self._ledger = bool(order.get("tells")), ledger
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self.over = threading.Event()

    def reach(self, point: str) -> None:
        with self._counting:
            self._counts[point] += 1
            count, all = self._counts[point], self._counts.total()
        if [point, count] == self._at or all == self._nth:
            self._end(point)

    def tell(self) -> None:
        if self._tells:
            self._ledger.add(json.dumps(["points", dict(self._counts)]))

    def _end(self, point: str) -> None:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._ledger.add(json.dumps(["told", self.how, point]))
        if self.how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        self.over.set()


# -- stores with a point in the middle of a write


def _in_halves(
    points: Points, batch: Callable[[list[Op]], list[Result]], ops: list[Op]
) -> list[Result]:
    if not any(isinstance(op, PutOp) for op in ops):
        return batch(ops)
    half = len(ops) // 2
    first = batch(ops[:half]) if half else []
    points.reach("half.after")
    return first + batch(ops[half:])


@contextmanager
def store_in_halves(url: str, points: Points) -> Iterator[BaseStore]:
    """LangGraph's store, but for a point in the middle of each write."""
    with opened_store(url) as store:
        if isinstance(store, SqliteStore):

            class HalfSqlite(SqliteStore):
                def batch(self, ops: Iterable[Op]) -> list[Result]:
                    return _in_halves(points, super().batch, list(ops))

            yield HalfSqlite(store.conn)
        else:
            assert isinstance(store, PostgresStore)

            class HalfPostgres(PostgresStore):
                def batch(self, ops: Iterable[Op]) -> list[Result]:
                    return _in_halves(points, super().batch, list(ops))

            yield HalfPostgres(store.conn)


# -- the roles


def live(order: dict[str, Any], tell: Tell) -> None:
    """Submit, and work on what is due, until there is nothing or until told to end."""
    ledger = Told(order["ledger"])
    points = Points(order, ledger)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    def asked(facts: list[str]) -> None:
        ledger.add(json.dumps(["asked", facts, os.getpid()]))
        points.reach("model.before")

    stack = contextlib.ExitStack()
    store = stack.enter_context(store_in_halves(order["store"], points))
    executor = ReflectionExecutor(
        manager(before=asked),
        store=store,
        journal=order["url"],
        name=order["name"],
        concurrency=order["concurrency"],
    )
    watch_points(points.reach)
    try:
        submit(executor, order["submissions"], points, ledger)
        work(executor, points)
        executor.shutdown(wait=points.how != "leave")
    except SystemExit:
        if isinstance(store, SqliteStore):  # to close what a thread uses would crash Python
            _left.append(stack.pop_all())
        raise
    finally:
        stack.close()
    watch_points(None)
    points.tell()


_left: list[contextlib.ExitStack] = []


def submit(
    executor: ReflectionExecutor, submissions: list[dict[str, Any]], points: Points, ledger: Ledger
) -> None:
    """Tell before and after what is submitted."""
    for one in submissions:
        if points.over.wait(one["pause"]):
            return
        ledger.add(json.dumps(["tried", one["n"]]))
        reflection = executor.submit(
            talk(*one["facts"]), who(one["user"], one["thread"]), after_seconds=one["after"]
        )
        ledger.add(json.dumps(["accepted", one["n"], reflection.id]))


def work(executor: ReflectionExecutor, points: Points) -> None:
    """Until nothing is left that is due soon."""
    deadline = time.monotonic() + PATIENCE
    while not points.over.wait(0.01) and time.monotonic() < deadline:
        horizon = time.time() + LATER / 2
        left = executor.pending(limit=1000)
        if not any(one.due_at and one.due_at.timestamp() < horizon for one in left):
            return


def finish(order: dict[str, Any], tell: Tell) -> None:
    """Another process with the same names brings everything to its end, also what is due later,
    and tells what it finds."""
    told: dict[str, Any] = {"runs": {}, "held": {}}
    rt = perdure.Runtime(order["url"], clock=Ahead(2 * LATER))
    with rt, opened_store(order["store"]) as store:
        for name in order["names"]:
            with ReflectionExecutor(
                manager(), store=store, journal=rt, name=name, concurrency=order["concurrency"]
            ) as executor:
                told["held"][name] = _drained(executor)
            found = rt.blocking.runs(graph=f"reflection:{name}", limit=1000)
            told["runs"][name] = [_show(rt, run) for run in found]
        told["findings"] = [str(one) for one in rt.blocking.doctor().findings]
        told["memories"] = {user: remembered(store, user) for user in order["users"]}
    Path(order["report"]).write_text(json.dumps(told))


def _drained(executor: ReflectionExecutor) -> list[str]:
    """Wait for the end of all reflections. Gives why some were held, which are tried again."""
    held: list[str] = []

    def is_over() -> bool:
        left = executor.pending(limit=1000)
        for one in left:
            if one.state is State.HELD:
                held.append(f"{one.id}: {one.reason}")
                executor.retry(one.id)
        return not left

    until(is_over, f"an end of all reflections of {executor.name}", PATIENCE)
    return held


def _show(rt: perdure.Runtime, run: Run) -> dict[str, Any]:
    events = rt.blocking.events(run.id)
    return {
        "id": run.id,
        "state": run.state,
        "place": [*run.metadata["namespace"], run.metadata["thread_id"]],
        "reason": run.reason,
        "events": [event.kind for event in events],
        "gap": [event.n for event in events] != list(range(1, len(events) + 1)),
    }


pytestmark = pytest.mark.slow


PARTS = parts(4)


ROUNDS = examples(25, 3)
"""Of each part, on each database with each kind of store."""


AT_ONCE = 4
"""How many rounds go on at once."""


LIVES = 2
"""How many processes follow each other in one of the two slots of a round."""


AGAIN = 4
"""Every how-manieth process that goes on is killed as well."""


BY_THE_CLOCK = ("workers.", "renew.", "leases.", "expire.")
"""Statements of a thread that looks around four times a second: how often they come is chance."""


WRITES = {*points(writes_only=True)}


STATEMENTS = {*points()} - {"commit.before", "commit.after"}


ENDS = ("term", "shutdown", "leave")


class Submission(NamedTuple):
    """Of a conversation. Only it has its first fact."""

    n: str
    user: str
    thread: str
    facts: list[str]
    after: float = 0.0
    pause: float = 0.0

    @property
    def place(self) -> tuple[str, str]:
        return self.user, self.thread

    @property
    def is_later(self) -> bool:
        return self.after >= LATER


@dataclass
class Trial:
    """Processes of one executor name, what they submitted, and what they told."""

    name: str
    ledger: Path
    submissions: list[Submission]
    kills: int = 0
    told: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)
    memories: dict[str, list[str]] = field(default_factory=dict)

    @property
    def users(self) -> list[str]:
        return sorted({one.user for one in self.submissions})

    def all(self, kind: str) -> list[list[Any]]:
        facts = [json.loads(line) for line in Ledger(self.ledger).lines()]
        return [fact[1:] for fact in facts if fact[0] == kind]

    # -- what must be true of it

    def judge(self) -> None:
        try:
            self._nothing_is_lost()
            self._later_ones_take_the_place_of_earlier_ones()
            self._memories_are_right()
            self._nothing_was_done_early_or_too_often()
        except AssertionError as error:
            runs = "\n".join(map(str, self.runs))
            seen = "\n".join(Ledger(self.ledger).lines())
            raise AssertionError(f"{self.told}: {error}\n{seen}\n{runs}\n{self.memories}") from None

    @property
    def _accepted(self) -> dict[str, str]:
        return dict(self.all("accepted"))

    def _states(self) -> dict[str, str]:
        states = {run["id"]: run["state"] for run in self.runs}
        return {n: states.get(id, "gone") for n, id in self._accepted.items()}

    def _nothing_is_lost(self) -> None:
        for n, state in self._states().items():
            assert state in ("done", "cancelled"), f"submit of {n} returned, and it is {state}"
        for run in self.runs:
            assert run["state"] in ("done", "cancelled"), f"{run['id']} is {run['state']}"
            assert not run["gap"], f"the events of {run['id']} have a gap"
            assert run["events"].count(run["state"]) == 1, run["events"]
        tried = {n for [n] in self.all("tried")}
        unheard = len(self.runs) - len(self._accepted)
        assert 0 <= unheard <= len(tried) - len(self._accepted), (
            "a reflection that nobody submitted"
        )

    def _later_ones_take_the_place_of_earlier_ones(self) -> None:
        places = {run["id"]: run["place"] for run in self.runs}
        for run in self.runs:
            if run["state"] == "cancelled":
                by = run["reason"].split()[1]
                assert places.get(by) == run["place"], f"{run['id']} was replaced by a stranger"
                assert by > run["id"], f"{run['id']} was replaced by an earlier one"
        states = self._states()
        for _, found in itertools.groupby(sorted(self._heard(), key=_place), _place):
            heard = list(found)
            for one, _ in itertools.pairwise(heard):
                if one.is_later:
                    assert states[one.n] == "cancelled", f"{one.n} was not replaced"

    def _heard(self) -> list[Submission]:
        accepted = self._accepted
        return [one for one in self.submissions if one.n in accepted]

    def _memories_are_right(self) -> None:
        states, tried = self._states(), {n for [n] in self.all("tried")}
        for user in self.users:
            found = self.memories[user]
            twice = [fact for fact, n in Counter(found).items() if n > 1]
            assert not twice, f"{user} has {twice} twice"
            mine = [one for one in self.submissions if one.user == user]
            done = [one for one in mine if states.get(one.n) == "done"]
            maybe = [one for one in mine if one.n in tried and one.n not in states]
            must = {fact for one in done for fact in one.facts}
            may = must | {fact for one in maybe for fact in one.facts}
            assert must <= set(found), f"{user} lost {sorted(must - set(found))}"
            assert set(found) <= may, f"{user} remembers {sorted(set(found) - may)}"
            for one in maybe:
                assert one.facts[0] not in found or set(one.facts) <= set(found), f"half of {one.n}"

    def _nothing_was_done_early_or_too_often(self) -> None:
        asked = Counter(fact for facts, _ in self.all("asked") for fact in facts)
        for one in self.submissions:
            times = asked[one.facts[0]]
            assert times <= (0 if one.is_later else 1 + self.kills), f"{one.n}: asked {times} times"


def _place(one: Submission) -> tuple[str, str]:
    return one.place


class Judge:
    """Has trials on one journal and one store, and judges them all together."""

    def __init__(self, fork_server: ForkServer, url: str, store: str, folder: Path) -> None:
        self._server, self._folder = fork_server, folder
        self._where = {"url": url, "store": store}
        self.is_together = store == url
        with opened_store(store):
            pass  # two processes that set LangGraph's store up at once are in each other's way
        self.trials: list[Trial] = []
        self.did: Counter[str] = Counter()

    def trial(self, name: str, submissions: list[Submission], told: str = "") -> Trial:
        made = Trial(name, self._folder / f"{name}.ledger", submissions, told=told)
        self.trials.append(made)
        return made

    def begin(
        self,
        trial: Trial,
        submissions: list[Submission],
        fate: dict[str, Any] | None,
        concurrency: int = 1,
    ) -> Child:
        trial.kills += fate is not None
        return self._server.start(
            live,
            exits=True,
            name=trial.name,
            ledger=str(trial.ledger),
            submissions=[one._asdict() for one in submissions],
            fate=fate,
            tells=fate is None,
            concurrency=concurrency,
            **self._where,
        )

    def ended(self, status: int | None, fate: dict[str, Any] | None) -> None:
        """Count how a process ended."""
        killed = status == -signal.SIGKILL
        # Before Python 3.14 a thread that comes back from native code while the interpreter ends
        # may abort the process (gh-87135). Nothing must be lost by that either.
        aborted = status == -signal.SIGABRT and fate is not None
        expected = status == 0 or aborted or (killed and fate and fate["how"] == "kill")
        assert expected, f"ended with {status}"
        if fate is not None:
            self.did["ends"] += 1
            self.did[fate["how"] if killed or fate["how"] != "kill" else "not reached"] += 1

    def finish(self, concurrency: int = 1) -> None:
        """In another process, and judge what it finds."""
        report = self._folder / "report.json"
        child = self._server.start(
            finish,
            exits=True,
            names=[trial.name for trial in self.trials],
            users=[user for trial in self.trials for user in trial.users],
            report=str(report),
            concurrency=concurrency,
            **self._where,
        )
        assert child.wait(120) == 0
        told = json.loads(report.read_text())
        assert told["findings"] == []
        for trial in self.trials:
            trial.runs = told["runs"][trial.name]
            trial.memories = {user: told["memories"][user] for user in trial.users}
            assert told["held"][trial.name] == [], f"{trial.told}: held"
            trial.judge()
            self.did["reflections"] += len(trial.runs)
            self.did["replaced"] += sum(run["state"] == "cancelled" for run in trial.runs)


@pytest.fixture(params=["together", "apart"])
def judge(
    request: pytest.FixtureRequest, fork_server: ForkServer, url: str, tmp_path: Path
) -> Iterator[Judge]:
    """Its store is in the journal's database, or in another one."""
    if request.param == "together":
        if url.startswith("d1"):
            pytest.skip(NO_STORE)
        yield Judge(fork_server, url, url, tmp_path)
    elif not url.startswith("postgresql"):
        yield Judge(fork_server, url, f"sqlite:///{tmp_path}/store.db", tmp_path)
    else:
        server: Server = request.getfixturevalue("postgres_server")
        store = server.database()
        yield Judge(fork_server, url, store, tmp_path)
        server.drop(store)


Life = tuple[list[Submission], dict[str, Any], int]
"""Of a process: what it submits, how it ends, and how much it does at once."""


@dataclass
class Round:
    """Slots, in each of which a process follows the other."""

    trial: Trial
    slots: list[list[Life]]
    alive: dict[int, tuple[Child, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trial.told = str([[fate for _, fate, _ in slot] for slot in self.slots])

    def is_over(self, judge: Judge) -> bool:
        """Whether all of its processes ended. Starts the next one of a slot."""
        for slot, rest in enumerate(self.slots):
            if slot in self.alive and (ended := self.alive[slot][0].ended()) is not None:
                judge.ended(ended.status, self.alive.pop(slot)[1])
            if slot not in self.alive and rest:
                made, fate, concurrency = rest.pop(0)
                self.alive[slot] = judge.begin(self.trial, made, fate, concurrency), fate
        return not self.alive


def play(judge: Judge, rounds: list[Round]) -> None:
    """All of them, some at once."""
    waiting, alive = iter(rounds), list[Round]()

    def is_over() -> bool:
        alive[:] = [one for one in alive if not one.is_over(judge)]
        alive.extend(itertools.islice(waiting, AT_ONCE - len(alive)))
        return not alive

    until(is_over, "an end of all rounds", 600)


def story(n: int) -> list[Submission]:
    """The second one replaces the first; the last one shares a fact with it; one is another's."""
    ana, bob = f"ana-{n}", f"bob-{n}"
    return [
        Submission("early", ana, "t1", ["fact-early", "fact-shared"], LATER),
        Submission("late", ana, "t1", ["fact-late", "fact-shared", "fact-more"], 0.15),
        Submission("other", bob, "t1", ["fact-other", "fact-shared"], 0.1),
        Submission("last", ana, "t2", ["fact-last", "fact-shared", "fact-end"], 0.1),
    ]


def ends(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Every time of a commit, an effect, a call of the model and a write; the first and the last
    time of a statement; of what only reads, one side of one."""
    wanted = []
    for point, count in sorted(counts.items()):
        times = {1, count}
        if point.startswith(BY_THE_CLOCK):
            times = {1}
        elif point not in STATEMENTS:
            times = set(range(1, count + 1))
        elif point not in WRITES:
            times = set() if point.endswith(".after") else {count}
        wanted += [(point, n) for n in sorted(times)]
    return wanted


@pytest.mark.parametrize("part", PARTS)
def test_a_story_ended_at_any_point_leaves_each_memory_once(
    judge: Judge, url: str, part: int
) -> None:
    # Two at once wait for each other where they are of one user.
    concurrency = 1 + (part + url.startswith("postgresql")) % 2
    whole = judge.trial("whole", story(0))
    judge.ended(judge.begin(whole, whole.submissions, None, concurrency).wait(), None)
    [[counts]] = whole.all("points")
    expected = {"commit", "model", "half", "effect reflect", "effect memories"}
    expected -= {"half"} if judge.is_together else set()
    assert expected <= {point.rsplit(".", 1)[0] for point in counts}
    chosen = ends(counts)
    fates = [{"how": "kill", "at": point} for point in chosen]
    politely = [at for at in chosen if at[0] not in STATEMENTS]
    fates += [{"how": how, "at": at} for how, at in zip(itertools.cycle(ENDS), politely)]
    fates = fates[:: 3 if url.startswith("postgresql") else 1]
    fates = sample(fates, 14, lambda fate: str(fate["at"][0]))[part :: len(PARTS)]
    rng = random.Random(part)

    def lives(number: int, fate: dict[str, Any]) -> Round:
        made = story(number)
        plan: list[Life] = [(made, fate, concurrency)]
        if number % AGAIN == 0:
            plan.append(([], {**rng.choice(fates), "how": "kill"}, 1))
        return Round(judge.trial(f"trial-{number}", made), [plan])

    play(judge, [lives(number, fate) for number, fate in enumerate(fates, 1)])
    reached = judge.did["ends"] - judge.did["not reached"]
    # What two threads do at once, and when two statements go into one commit, is chance.
    assert reached >= judge.did["ends"] * 2 // 3, judge.did
    judge.finish()
    print(f"{len(fates)} points: {dict(judge.did)}")


def conversations(rng: random.Random, number: int, slot: int, life: int) -> list[Submission]:
    """What one process submits, in conversations that are its own as long as it lives. Those of one
    user are in both slots, and share facts."""
    made = []
    for n in range(rng.choice([2, 3, 4])):
        user, thread = rng.choice([("ana", slot), ("bob", 1 - slot)])
        common = [f"fact-common-{k}" for k in rng.sample(range(4), rng.choice([1, 2]))]
        label = f"{slot}-{life}-{n}"
        after = rng.choice([0.0, 0.0, 0.0, 0.1, LATER])
        made.append(
            Submission(
                label,
                f"{user}-{number}",
                f"t{thread}",
                [f"fact-{label}", *common],
                after,
                rng.choice([0.0, 0.0, 0.02, 0.1]),
            )
        )
    return made


def fate(rng: random.Random) -> dict[str, Any]:
    return {"how": rng.choice(["kill"] * 4 + list(ENDS)), "nth": rng.randrange(1, 300)}


@pytest.mark.parametrize("part", parts(2))
def test_processes_ended_at_random_lose_and_double_nothing(
    judge: Judge, url: str, part: int
) -> None:
    rng = random.Random(f"{url.partition(':')[0]} {judge.is_together} {part}")

    def lives(number: int) -> Round:
        plans = [
            [
                (conversations(rng, number, slot, life), fate(rng), rng.choice([1, 2]))
                for life in range(LIVES)
            ]
            for slot in range(2)
        ]
        everything = [one for slot in plans for made, _, _ in slot for one in made]
        return Round(judge.trial(f"round-{number}", everything), plans)

    play(judge, [lives(number) for number in range(ROUNDS)])
    judge.finish(concurrency=2)
    print(f"{ROUNDS} rounds: {dict(judge.did)}")


class Refusing(SqliteStore):
    """Refuses to be written to, for a while."""

    refuses = True

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        made = list(ops)
        if self.refuses and any(isinstance(op, PutOp) for op in made):
            raise sqlite3.OperationalError("disk I/O error")
        return super().batch(made)


def test_what_a_reflection_could_not_write_in_its_turn_is_made_again_after_another_ones(
    sqlite_url: str, tmp_path: Path
) -> None:
    clock = Clock()
    rt = perdure.Runtime(sqlite_url, clock=clock)
    with rt, opened_store(f"sqlite:///{tmp_path}/store.db") as opened:
        assert isinstance(opened, SqliteStore)
        store = Refusing(opened.conn)
        with ReflectionExecutor(manager(), store=store, journal=rt) as executor:
            first = executor.submit(talk("fact-first", "fact-shared"), who("ana", "t1"))
            until(lambda: [one for one in executor.pending() if one.error], "an error")
            store.refuses = False
            second = executor.submit(talk("fact-second", "fact-shared"), who("ana", "t2"))
            second.result(20)
            clock.advance(timedelta(minutes=1))
            first.result(20)
            assert remembered(store, "ana") == ["fact-first", "fact-second", "fact-shared"]
            assert rt.blocking.runs(state="held") == []


def test_nor_is_it_written_late_in_the_transaction_of_the_journal(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    clock = Clock()

    def fail_once(point: str) -> None:
        if point == "lock_turn.after":  # between what the model said, and the write
            watch_points(None)
            raise RuntimeError("no luck")

    with perdure.Runtime(url, clock=clock) as rt, opened_store(url) as store:
        reflector = manager(before=asked.append)
        with ReflectionExecutor(reflector, store=store, journal=rt) as executor:
            watch_points(fail_once)
            first = executor.submit(talk("fact-first", "fact-shared"), who("ana", "t1"))
            until(lambda: [one for one in executor.pending() if one.error], "an error")
            second = executor.submit(talk("fact-second", "fact-shared"), who("ana", "t2"))
            second.result(20)
            clock.advance(timedelta(minutes=1))
            first.result(20)
            assert remembered(store, "ana") == ["fact-first", "fact-second", "fact-shared"]
            assert asked == [
                ["fact-first", "fact-shared"],
                ["fact-second", "fact-shared"],
                ["fact-first"],
            ]


def test_a_store_closed_before_a_reflection_was_written_is_no_other_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    rt = perdure.Runtime(url, clock=clock)
    with rt, contextlib.ExitStack() as stack:
        store = stack.enter_context(opened_store(url))

        def close(point: str) -> None:
            if point == "lock_turn.after":  # between what the model said, and the write
                watch_points(None)
                stack.close()

        watch_points(close)
        with ReflectionExecutor(manager(), store=store, journal=rt, name="it") as executor:
            executor.submit(talk("fact-one"), who("ana"))
            until(lambda: [one for one in executor.pending() if one.error], "an error")
        clock.advance(timedelta(minutes=1))
        again = stack.enter_context(opened_store(url))
        rt = stack.enter_context(perdure.Runtime(url, clock=clock))
        with ReflectionExecutor(manager(), store=again, journal=rt, name="it") as executor:
            until(lambda: remembered(again, "ana") == ["fact-one"], "a memory")
            until(lambda: not executor.pending(), "an end")
