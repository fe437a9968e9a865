"""Whatever happens in whatever order, every outcome on record is what the far side did, no recorded
effect is called again, and whatever nobody knows is there for a person to see.

The model is the far side, in memory: what was done, with which key. Calls fail as they are told to,
runs are taken over by a second runtime in the middle of an effect or behind a commit, and what the
first one still writes then must change nothing.
"""

from __future__ import annotations

import asyncio
import operator
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import perdure
from perdure.errors import EffectFailed
from perdure.testing import Clock, TemporaryRuntime, watch_points
from perdure.types import EffectRecord, EffectState, Run, State
from tests.support import sweep

LEASE = timedelta(minutes=1)
HOURS = perdure.Retry(attempts=3, first=timedelta(hours=1))
AT_ONCE = perdure.Retry(attempts=3, first=timedelta(0))

ENDINGS = ["well", "reply lost", "failed", "refused"]
"""How a call may end."""


class Oops(Exception):
    """What a call raises that fails."""


# -- the far side


HELD: ContextVar[tuple[str, int]] = ContextVar("HELD")
"""The thread of the run that a node is of, and the token that its driver had when it began."""


def begin(config: RunnableConfig) -> None:
    thread = config["configurable"]["thread_id"]
    with WORLD.lock:
        HELD.set((thread, WORLD.token(thread)))


class World:
    """What was done."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.moods: dict[str, random.Random] = {}
        """By label: how its calls end, while the far side is moody."""
        self.seed: int | None = None
        self.did: dict[str, list[str]] = {}
        """By key: the labels of what was done."""
        self.calls: Counter[str] = Counter()
        """By key: how often it was called by whoever had the run."""
        self.undone: Counter[str] = Counter()
        self.database = database
        self.thefts = 0
        self.lock = threading.Lock()

    def call(self, policy: str, key: str, label: str) -> str:
        with self.lock:
            return self._call(policy, key, label, self.is_late())

    def is_late(self) -> bool:
        """Whether whoever calls lost its run since its node began."""
        thread, token = HELD.get()
        return self.token(thread) != token

    def token(self, thread: str) -> int:
        sql = "SELECT token FROM perdure_runs WHERE thread_id = ?"
        [(token,)] = self.database.execute(sql, [thread]).fetchall()
        return int(token)

    def _call(self, policy: str, key: str, label: str, late: bool) -> str:
        if late and policy in ("verify", "hold"):
            # What still comes after somebody asked, nobody can know: this far side takes nothing.
            raise Oops(label)
        if not late:
            self.calls[key] += 1
        how = self.mood(label)
        if how == "refused":
            raise perdure.NotDone(label)
        if how == "failed":
            raise Oops(label)
        honours = policy in ("keyed", "business")
        if not (honours and key in self.did):
            self.did.setdefault(key, []).append(label)
        if how == "reply lost":
            raise Oops(label)
        return self.result(key)

    def mood(self, label: str) -> str:
        """Of each label on its own: calls side by side come in any order."""
        if self.seed is None:
            return "well"
        mood = self.moods.setdefault(label, random.Random(f"{self.seed} {label}"))
        return mood.choice(ENDINGS)

    def result(self, key: str) -> str:
        return f"{self.did[key][0]} with {key}"


WORLD: World
"""Of the machine that runs."""


@perdure.effect(retry=HOURS, name="machine keyed")
def keyed(label: str) -> str:
    return WORLD.call("keyed", perdure.key(), label)


@perdure.effect(retry=AT_ONCE, name="machine akeyed", compensate=lambda result, label: undo(label))
async def akeyed(label: str) -> str:
    await asyncio.sleep(0)
    return WORLD.call("keyed", perdure.key(), label)


def undo(label: str) -> None:
    WORLD.undone[label] += 1


def look(label: str) -> str | None:
    key = perdure.key()
    with WORLD.lock:
        return WORLD.result(key) if key in WORLD.did else None


@perdure.effect(retry=AT_ONCE, name="machine verify", verify=look)
def verify(label: str) -> str:
    return WORLD.call("verify", perdure.key(), label)


@perdure.effect(retry=AT_ONCE, name="machine hold", unknown="hold")
def hold(label: str) -> str:
    return WORLD.call("hold", perdure.key(), label)


@perdure.effect(retry=AT_ONCE, name="machine ahold", unknown="hold")
async def ahold(label: str) -> str:
    await asyncio.sleep(0)
    return WORLD.call("hold", perdure.key(), label)


@perdure.effect(retry=AT_ONCE, name="machine business", key=lambda label: label.partition(" ")[0])
def business(label: str) -> str:
    return WORLD.call("business", perdure.key(), label)


@perdure.effect(retry=AT_ONCE, name="machine booked", transactional=True)
def booked(label: str) -> str:
    perdure.transaction().execute("INSERT INTO booked VALUES (?)", (label,))
    if WORLD.mood(label) != "well":
        raise Oops(label)
    return f"{label} booked"


EFFECTS: dict[str, Callable[[str], Any]] = {
    "keyed": keyed,
    "akeyed": akeyed,
    "verify": verify,
    "hold": hold,
    "ahold": ahold,
    "business": business,
    "booked": booked,
}
POLICIES = sorted(EFFECTS)


# -- the graph: each step calls effects in a row, gathered, or in tasks of their own


class Doing(TypedDict, total=False):
    script: list[list[Any]]
    at: Annotated[int, lambda old, new: new]
    log: Annotated[list[str], operator.add]


class One(TypedDict, total=False):
    call: list[str]


async def made(call: Any) -> str:
    policy, label = call
    function = EFFECTS[policy]
    try:
        if asyncio.iscoroutinefunction(function):
            return f"{label}: {await function(label)}"
        return f"{label}: {await asyncio.to_thread(function, label)}"
    except (Oops, perdure.NotDone, EffectFailed):
        return f"{label}: failed"


async def step(state: Doing, config: RunnableConfig) -> Doing:
    begin(config)
    shape, *some = state["script"][state["at"]]
    if shape == "gather":
        log = list(await asyncio.gather(*map(made, some)))
    else:
        log = [await made(call) for call in some]
    return {"log": log, "at": state["at"] + 1}


async def one(state: One, config: RunnableConfig) -> Doing:
    begin(config)
    return {"log": [await made(state["call"])]}


def route(state: Doing) -> Any:
    if state["at"] == len(state["script"]):
        return END
    shape, *some = state["script"][state["at"]]
    if shape == "fan":
        return [*(Send("one", {"call": call}) for call in some), "after"]
    return "step"


def build() -> Any:
    builder = StateGraph(Doing)
    builder.add_node("step", step)
    builder.add_node("one", one)
    builder.add_node("after", lambda state: {"at": state["at"] + 1})
    for node in (START, "step", "after"):
        builder.add_conditional_edges(node, route, ["step", "one", "after", END])
    return builder


# -- the machine

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["row", "gather", "fan"]),
        st.lists(st.sampled_from(POLICIES), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=3,
)
STEALS = st.none() | st.tuples(st.sampled_from(["before", "after", "commit"]), st.integers(1, 4))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        global WORLD
        self.clock = Clock()
        self.rt = TemporaryRuntime(clock=self.clock, lease=LEASE)
        self.other = TemporaryRuntime(self.rt.url, clock=self.clock, lease=LEASE)
        for rt in (self.rt, self.other):
            rt.register(build(), name="g", deaths=1000)
        self.rt.setup()
        path = self.rt.url.removeprefix("sqlite:///")
        self.database = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False
        )
        WORLD = self.world = World(self.database)
        self.database.execute("CREATE TABLE booked (label TEXT)")
        self.stealing: threading.Event | None = None
        self.scripts: dict[str, list[list[Any]]] = {}
        self.cancelled: set[str] = set()
        """Runs that end with what is known of them; the end tells what is not."""
        self.settled: dict[str, tuple[str, Any, int]] = {}
        """By key: what was once on record, and how often it had been called."""

    def teardown(self) -> None:
        watch_points(None)
        try:
            self.bring_to_an_end()
        finally:
            self.database.close()
            self.other.close()
            self.rt.close()

    # -- looking

    def runs(self) -> list[Run]:
        return self.rt.blocking.runs(limit=1000)

    def effects(self) -> list[EffectRecord]:
        return self.rt.blocking.effects(limit=1000)

    def unknown(self) -> list[EffectRecord]:
        return self.rt.blocking.effects(state=EffectState.UNKNOWN, limit=1000)

    # -- rules

    @rule(steps=STEPS)
    def start(self, steps: list[tuple[str, list[str]]]) -> None:
        if len(self.scripts) == 4:
            return
        name, n, script = f"r{len(self.scripts)}", 0, []
        for shape, policies in steps:
            some: list[Any] = [shape]
            for policy in policies:
                # The same contact for two runs: their business keys are one.
                contact = f"c{len(self.scripts) // 2}.{n}" if policy == "business" else name
                some.append([policy, f"{contact} {name} {n}"])
                n += 1
            script.append(some)
        given = {"script": script, "at": 0, "log": []}
        run = self.rt.blocking.start("g", given, thread_id=name)
        self.scripts[run.id] = script

    @rule(seed=st.none() | st.integers(0, 1000))
    def misbehave(self, seed: int | None) -> None:
        self.world.seed = seed
        self.world.moods.clear()

    @rule(steal=STEALS)
    def drive(self, steal: tuple[str, int] | None) -> None:
        """Everything that is due; in the middle of it, another worker may take it over."""
        if steal is not None:
            watch_points(self.thief(*steal))
        try:
            self.rt.blocking.tick()
        finally:
            watch_points(None)
        if self.stealing is not None:  # nobody waits for who lost a run, and he is the thief
            assert self.stealing.wait(60)
            self.stealing = None

    def thief(self, where: str, n: int) -> Callable[[str], None]:
        left = n

        def hook(point: str) -> None:
            nonlocal left
            if where == "commit":
                wanted = point == "commit.after"
            else:
                wanted = point.startswith("effect ") and point.endswith(where)
                # Inside of a transaction on SQLite nobody else can write.
                wanted = wanted and not point.startswith("effect machine booked")
            left -= wanted
            if not wanted or left != 0:
                return
            watch_points(None)
            self.stealing = over = threading.Event()
            self.world.thefts += 1
            self.clock.advance(2 * LEASE)
            try:
                self.other.blocking.tick()
            finally:
                over.set()

        return hook

    @rule(n=st.integers(0, 9), again=st.booleans())
    def settle(self, n: int, again: bool) -> None:
        """A person looks at the far side, and says what is true."""
        found = sorted(self.unknown(), key=lambda effect: str(effect.arguments))
        if found:
            self.tell_truth(found[n % len(found)], again)

    def tell_truth(self, effect: EffectRecord, again: bool) -> None:
        if effect.key in self.world.did:
            self.rt.blocking.settle(effect.key, "done", self.world.result(effect.key))
        elif again:
            self.rt.blocking.settle(effect.key, "retry")
        else:
            self.rt.blocking.settle(effect.key, "fail", reason="it never came")

    @rule(minutes=st.sampled_from([1, 61, 130, 300]))
    def advance(self, minutes: int) -> None:
        self.clock.advance(timedelta(minutes=minutes))

    @rule(n=st.integers(0, 9))
    def cancel(self, n: int) -> None:
        ids = list(self.scripts)
        if n < len(ids) and not self.rt.blocking.get(ids[n]).ended:
            self.cancelled.add(ids[n])
            self.rt.blocking.cancel(ids[n])

    # -- what must be true

    @invariant()
    def the_journal_is_sound(self) -> None:
        assert not self.rt.blocking.doctor().findings
        for id in self.scripts:
            events = self.rt.blocking.events(id)
            assert [event.n for event in events] == list(range(1, len(events) + 1))

    @invariant()
    def nothing_is_done_twice(self) -> None:
        twice = {key: labels for key, labels in self.world.did.items() if len(labels) > 1}
        assert not twice, twice
        done = [label for labels in self.world.did.values() for label in labels]
        assert len(done) == len(set(done)), f"one call, two keys: {done}"
        labels = self.database.execute("SELECT label FROM booked").fetchall()
        assert len(labels) == len(set(labels)), labels
        assert all(n == 1 for n in self.world.undone.values()), self.world.undone

    @invariant()
    def what_is_on_record_is_true_and_stays(self) -> None:
        for effect in self.effects():
            if effect.name.startswith("undo") or effect.state not in ("done", "failed"):
                continue
            key, called = effect.key, self.world.calls[effect.key]
            if effect.name == "machine booked":
                continue
            if effect.state == "done":
                assert key in self.world.did, f"{effect} never happened"
                assert effect.result == self.world.result(key)
            elif effect.name in ("machine verify", "machine hold", "machine ahold"):
                assert key not in self.world.did, f"{effect} happened"
            now = (effect.state.value, effect.result, called)
            assert self.settled.setdefault(key, now) == now, f"{effect} was on record"

    @invariant()
    def the_unknown_can_be_seen(self) -> None:
        found = {run.id: run for run in self.runs()}
        doubtful = {effect.run_id for effect in self.unknown()}
        for id in doubtful - self.cancelled:
            assert found[id].state is State.HELD, found[id]
        for id in doubtful & self.cancelled:
            told = [event.data for event in self.rt.blocking.events(id)]
            for effect in self.rt.blocking.effects(id, state=EffectState.UNKNOWN):
                assert any(effect.key in data.get("unknown", ()) for data in told), effect
        for run in found.values():
            if run.state is State.HELD:
                assert run.id in doubtful, f"held, and nothing to settle: {run.reason}"

    def bring_to_an_end(self) -> None:
        self.world.seed = None
        for _ in range(50):
            self.rt.blocking.tick()
            for effect in self.unknown():
                self.tell_truth(effect, True)
            self.clock.advance(timedelta(hours=5))
            if all(run.ended for run in self.runs()):
                break
        self.the_journal_is_sound()
        self.nothing_is_done_twice()
        self.what_is_on_record_is_true_and_stays()
        for run in self.runs():
            assert run.state in (State.DONE, State.CANCELLED), run
            if run.state is State.DONE:
                self.the_log_is_right(run)

    def the_log_is_right(self, run: Run) -> None:
        wanted = [call for _, *some in self.scripts[run.id] for call in some]
        log = dict(line.split(": ", 1) for line in run.output["log"])
        assert list(log) == [label for _, label in wanted]
        results = {self.world.result(key) for key in self.world.did}
        for policy, label in wanted:
            told = log[label]
            if told == "failed":
                continue
            if policy == "booked":
                assert told == f"{label} booked"
                continue
            assert told in results, f"{label} got {told!r}"
            # Two runs may share a business key, and then the outcome; no other call does.
            done = told.partition(" with ")[0]
            contact = label.partition(" ")[0]
            assert done == label or (policy == "business" and done.startswith(f"{contact} "))


@pytest.mark.slow
def test_every_outcome_is_the_far_sides_truth() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=sweep.examples(60, 14),
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
