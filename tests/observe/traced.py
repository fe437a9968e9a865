"""An agent that does everything a trace shows, and the real histories of its runs.

`errand` thinks, sends (an effect that is held when it is cut off) beside a subgraph that looks
something up, naps, asks, and pays (an effect whose first attempts may fail, and are retried after
ten minutes). `histories` has runs of it and of other graphs, killed, paused, held, forked, retried.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Command

import perdure
from perdure.testing import Clock, TemporaryRuntime, crash_at
from perdure.types import Done, Event, Retry, Run, State
from tests.support.agents import NOON, Log, chain
from tests.support.fork_server import ForkServer, Tell

MARK = "Xq7Zp"
"""Stands in everything that is content: no span may have it."""
MINUTES = timedelta(minutes=10)
RETRY = Retry(attempts=2, first=MINUTES)
failures: Counter[str] = Counter()
"""How many calls of each effect fail, in this process, before one does not."""


class Trouble(Exception):
    pass


def _perhaps_fail(name: str) -> None:
    if failures[name] > 0:
        failures[name] -= 1
        raise Trouble(f"{name} failed for {MARK}")


@perdure.effect(unknown="hold")
def send(to: str) -> str:
    return f"sent {to}"


@perdure.effect
def look(what: str) -> str:
    return f"{what} found"


@perdure.effect(retry=Retry(attempts=3, first=MINUTES, longest=MINUTES))
def pay(amount: str) -> str:
    _perhaps_fail("pay")
    return f"paid {amount}"


def _is_booked(what: str) -> Done:
    _perhaps_fail("verify")
    return Done(f"{what} is booked")


@perdure.effect(verify=_is_booked, retry=Retry(attempts=1))
def book(what: str) -> str:
    _perhaps_fail("book")
    return f"booked {what}"


class Errand(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def think(state: Errand) -> Errand:
    return {"log": [f"thought of {MARK}"]}


def sends(state: Errand) -> Errand:
    return {"log": [send(MARK)]}


def looks(state: Errand) -> Errand:
    return {"log": [look(MARK)]}


def nap(state: Errand) -> Errand:
    perdure.sleep(MINUTES)
    return {"log": ["napped"]}


def approve(state: Errand) -> Errand:
    answer = perdure.ask({"draft": MARK}, expires=timedelta(days=1), default="nobody")
    return {"log": [f"approved: {answer}"]}


def pays(state: Errand) -> Errand:
    return {"log": [pay(MARK)]}


def errand() -> StateGraph[Any]:
    nested = StateGraph(Errand)
    nested.add_node(looks)
    nested.add_node("think", think)
    nested.add_edge(START, "looks")
    nested.add_edge("looks", "think")
    inner: Any = nested.compile()
    graph = StateGraph(Errand)
    for node in (think, sends, nap, approve, pays):
        graph.add_node(node)
    graph.add_node("nested", inner, input_schema=Nothing)
    graph.add_edge(START, "think")
    graph.add_edge("think", "sends")
    graph.add_edge("think", "nested")
    graph.add_edge(["sends", "nested"], "nap")
    graph.add_edge("nap", "approve")
    graph.add_edge("approve", "pays")
    return graph


class Nothing(TypedDict, total=False):
    value: str


def books(state: Log) -> Log:
    return {"log": [book(MARK)]}


def raises(state: Log) -> Log:
    _perhaps_fail("raises")
    return {"log": ["raised"]}


def register(rt: perdure.Runtime) -> None:
    rt.register(errand(), name="errand")
    rt.register(chain(think), name="thinks")
    rt.register(chain(books, nap), name="books")
    rt.register(chain(raises, nap), name="raises", retry=RETRY)

    def parent(state: Log) -> Log:
        run = rt.blocking.start("raises", {"log": [MARK]})
        return {"log": [run.id]}

    def joins(state: Log) -> Log:
        return {"value": perdure.join(state["log"][-1])}

    rt.register(chain(parent, joins), name="parent")


def die(order: dict[str, Any], tell: Tell) -> None:
    """A worker that is killed at a point; it may start what it is to drive."""
    with crash_at(order["point"], order.get("n", 1)):
        tick(order, tell)


def tick(order: dict[str, Any], tell: Tell) -> None:
    """A process that drives what is due, and ends at once."""
    os.environ.update(order.get("environment", {}))
    clock = Clock(NOON + timedelta(minutes=order["minutes"]))
    rt = perdure.Runtime(order["url"], clock=clock, observe=True)
    register(rt)
    with rt:
        if "graph" in order:
            rt.blocking.start(order["graph"], {"log": [MARK]}, thread_id=order["thread"])
        rt.blocking.tick()


class Story:
    """What happens to some runs in a journal; those of other stories in it have ended."""

    def __init__(self, server: ForkServer, rt: TemporaryRuntime, name: str) -> None:
        self._server, self.rt, self.name = server, rt, name
        failures.clear()

    def start(self, graph: str, **options: Any) -> Run:
        options = {"thread_id": self.name, **options}
        return self.rt.blocking.start(graph, {"log": [MARK]}, tags=[self.name], **options)

    def runs(self) -> list[Run]:
        """Those that have not ended."""
        return [run for run in self.rt.blocking.runs(limit=100) if not run.ended]

    def killed(self, point: str, n: int = 1, **order: Any) -> None:
        """A worker of another process drives, and is killed."""
        minutes = (self.rt.clock.time - NOON).total_seconds() / 60
        given = {"url": self.rt.url, "point": point, "n": n, "minutes": minutes, **order}
        given["thread"] = self.name
        if self._server.run(die, **given).status != -9:
            self.settle("retry")  # an effect beside it was cut off, too, and holds the run
            given.pop("graph", None)
            assert self._server.run(die, **given).status == -9, f"not killed at {point}"

    def tick(self, minutes: int = 0) -> None:
        self.rt.clock.advance(timedelta(minutes=minutes))
        while self.rt.blocking.tick().claimed:
            pass

    def answer(self, value: Any = MARK) -> str:
        [wait] = self.rt.blocking.waits(kind="human")
        self.rt.blocking.answer(wait.id, value, by="eva")
        return wait.id

    def settle(self, how: Any) -> None:
        for effect in self.rt.blocking.effects(state="unknown"):
            self.rt.blocking.settle(effect.key, how, by="eva")

    def finish(self) -> None:
        """Whatever is left to do."""
        for _ in range(30):
            self.tick(20)
            self.settle("retry")
            for wait in self.rt.blocking.waits(kind="human"):
                self.rt.blocking.answer(wait.id, MARK)
            if not self.runs():
                return
        raise AssertionError(f"it does not end: {self.runs()}")


# -- what happens


def whole(s: Story) -> None:
    failures["pay"] = 2
    s.start("errand")
    s.finish()


def killed_in_a_held_effect_then_postponed(s: Story) -> None:
    s.killed("effect send.before", graph="errand")
    failures["pay"] = 1
    s.finish()


def killed_twice_in_an_effect_that_is_called_again(s: Story) -> None:
    s.killed("effect look.after", graph="errand")
    s.killed("effect look.before")
    s.tick()
    s.settle("done")
    s.finish()


def verified_after_a_kill(s: Story) -> None:
    s.killed("effect book.before", graph="books")
    failures["verify"] = 1
    s.finish()


def killed_between_steps(s: Story) -> None:
    s.killed("progress.after", n=2, graph="errand")
    s.killed("claim.after")
    s.tick()
    s.tick(11)
    s.answer()
    s.killed("effect pay.after")
    failures["pay"] = 2
    s.finish()


def verified_after_it_was_held(s: Story) -> None:
    failures["book"], failures["verify"] = 1, 1
    s.start("books")
    s.tick()
    s.finish()


def paused_and_cancelled(s: Story) -> None:
    run = s.start("errand")
    s.tick()
    s.rt.blocking.pause(run.id)
    s.tick(30)
    s.rt.blocking.resume(run.id)
    s.tick()
    s.rt.blocking.cancel(run.id, reason=MARK)
    s.tick()


def settled_after_its_end(s: Story) -> None:
    s.killed("effect send.before", graph="errand")
    s.tick()
    [run] = s.runs()
    s.rt.blocking.cancel(run.id)
    s.tick()
    s.settle("fail")
    s.tick()


def failed_and_retried(s: Story) -> None:
    failures["raises"] = 3
    run = s.start("raises")
    s.tick()
    s.tick(20)
    assert s.rt.blocking.get(run.id).state is State.FAILED
    s.rt.blocking.retry(run.id)
    s.finish()


def answers_taken_back(s: Story) -> None:
    run = s.start("errand")
    s.tick()
    s.tick(11)
    wait = s.answer()
    s.rt.blocking.withdraw(wait, by="eva")
    s.rt.clock.advance(MINUTES)
    s.answer()
    s.finish()
    assert s.rt.blocking.get(run.id).state is State.DONE


def nobody_answers(s: Story) -> None:
    s.start("errand")
    s.tick()
    s.tick(11)
    s.tick(24 * 60 + 1)
    s.finish()


def forked(s: Story) -> None:
    run = s.start("errand")
    s.tick()
    s.rt.blocking.fork(run.id, thread_id=f"{s.name} other")
    s.finish()


def children(s: Story) -> None:
    failures["raises"] = 1
    s.start("parent")
    s.finish()


def interrupted_by_another_run(s: Story) -> None:
    s.start("errand")
    s.tick()
    s.start("errand", multitask_strategy="interrupt")
    s.finish()


def rolled_back_by_another_run(s: Story) -> None:
    s.killed("effect look.before", graph="errand")
    s.start("errand", multitask_strategy="rollback")
    s.tick()
    s.finish()


def bound(s: Story) -> None:
    graph: Any = s.rt.register(errand(), name="bound errand")
    config: Any = {"configurable": {"thread_id": s.name}}
    list(graph.stream({"log": [MARK]}, config))
    s.tick(11)
    graph.invoke(Command(resume=MARK), config)
    graph.update_state(config, {"log": ["changed"]}, as_node="think")
    graph.invoke(None, config)
    other: Any = {"configurable": {"thread_id": f"{s.name} exit"}}
    failures["raises"] = 1
    raising: Any = s.rt.register(chain(raises, nap), name="bound raises", retry=RETRY)
    with contextlib.suppress(Trouble):
        raising.invoke({"log": [MARK]}, other, durability="exit")
    raising.invoke({"log": [MARK]}, other, durability="exit")
    s.tick(20)
    raising.update_state(other, {"log": ["after its end"]})
    s.finish()


STORIES: list[Callable[[Story], None]] = [
    whole,
    killed_in_a_held_effect_then_postponed,
    killed_twice_in_an_effect_that_is_called_again,
    killed_between_steps,
    verified_after_it_was_held,
    verified_after_a_kill,
    paused_and_cancelled,
    settled_after_its_end,
    failed_and_retried,
    answers_taken_back,
    nobody_answers,
    forked,
    children,
    interrupted_by_another_run,
    rolled_back_by_another_run,
    bound,
]


def histories(server: ForkServer) -> dict[str, list[Event]]:
    """The events of every run, by story and run."""
    found: dict[str, list[Event]] = {}
    with TemporaryRuntime(clock=Clock(NOON)) as rt:
        register(rt)
        known: set[str] = set()
        for story in STORIES:
            story(Story(server, rt, story.__name__))
            new = [run for run in rt.blocking.runs(limit=100) if run.id not in known]
            for n, run in enumerate(new):
                found[f"{story.__name__} {n}"] = rt.blocking.events(run.id, limit=1000)
                known.add(run.id)
    return found
