"""What `register` takes, what it refuses and with which words, and whom it lets drive.

What is given to it stays as it was: the same graph can still be run by itself.
"""

from __future__ import annotations

import operator
import sqlite3
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as NodeRuntime
from langgraph.types import interrupt

import perdure
from perdure.errors import BadArgument, NotDurable, TypeNotAllowed, UnknownGraph
from perdure.testing import TemporaryRuntime, runtime
from perdure.types import State
from tests.support.agents import driven
from tests.support.bound import rt as rt
from tests.support.sqlite_only import url as url

T: RunnableConfig = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def note(state: Log) -> Log:
    return {"log": ["noted"]}


def builder(word: str = "noted") -> StateGraph[Log]:
    found = StateGraph(Log)
    found.add_node("note", lambda state: {"log": [word]})
    found.add_edge(START, "note")
    return found


# -- what it takes


def test_a_state_graph_is_compiled_for_the_runtime(rt: TemporaryRuntime) -> None:
    given = builder()
    bound = rt.register(given, name="agent")
    assert bound.name == "agent"
    assert bound.invoke({"log": ["in"]}, T) == {"log": ["in", "noted"]}
    given.add_node("later", note)  # it can still be built on
    assert given.compile().invoke({"log": []}) == {"log": ["noted"]}


def test_a_compiled_graph_is_taken_by_its_own_name(rt: TemporaryRuntime) -> None:
    bound = rt.register(builder().compile(name="agent"))
    assert (bound.name, rt.graphs) == ("agent", ["agent"])
    assert bound.invoke({"log": ["in"]}, T) == {"log": ["in", "noted"]}


def test_what_a_bound_graph_says_of_itself_is_what_the_graph_says(rt: TemporaryRuntime) -> None:
    given = builder().compile(name="agent")
    bound = rt.register(given)
    assert bound.get_graph().nodes.keys() == given.get_graph().nodes.keys()
    assert bound.nodes is given.nodes
    assert repr(bound) == "<perdure graph 'agent@'>"


def test_registering_opens_no_database(tmp_path: Any) -> None:
    perdure.Runtime(f"sqlite:///{tmp_path}/journal.db").register(builder(), name="agent")
    assert list(tmp_path.iterdir()) == []


# -- what is given stays as it was


def test_a_compiled_graph_keeps_having_no_checkpointer(rt: TemporaryRuntime) -> None:
    given = builder().compile()
    before = dict(vars(given))
    rt.register(given, name="agent").invoke({"log": ["bound"]}, T)
    assert vars(given) == before
    assert given.checkpointer is None
    assert given.invoke({"log": ["alone"]}) == {"log": ["alone", "noted"]}
    assert rt.blocking.runs(graph="agent")[0].output == {"log": ["bound", "noted"]}
    assert len(rt.blocking.runs()) == 1  # the one on its own is none of ours


def test_a_graph_on_the_runtimes_own_saver_keeps_it(rt: TemporaryRuntime) -> None:
    given = builder().compile(checkpointer=rt.saver)
    bound = rt.register(given, name="agent")
    assert given.checkpointer is rt.saver
    bound.invoke({"log": ["one"]}, T)
    assert given.invoke({"log": ["two"]}, T) == {"log": ["one", "noted", "two", "noted"]}


def test_one_graph_in_two_runtimes_writes_to_each_its_own(rt: TemporaryRuntime) -> None:
    given = builder().compile()
    with runtime() as other:
        here, there = rt.register(given, name="agent"), other.register(given, name="agent")
        here.invoke({"log": ["here"]}, T)
        there.invoke({"log": ["there"]}, T)
        assert here.get_state(T).values == {"log": ["here", "noted"]}
        assert there.get_state(T).values == {"log": ["there", "noted"]}


# -- what it refuses


@entrypoint(checkpointer=InMemorySaver())
def in_memory(given: int) -> int:
    return given


@pytest.mark.parametrize(
    ("compiled", "says"),
    [
        (lambda: builder().compile(checkpointer=InMemorySaver()), "in-memory saver, which loses"),
        (lambda: in_memory, "'agent' was compiled with an in-memory saver"),
        (
            lambda: builder().compile(
                checkpointer=SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))
            ),
            "SqliteSaver.*not in this runtime's journal",
        ),
        (lambda: builder().compile(checkpointer=perdure.Saver("sqlite:///other.db")), "saver"),
        (lambda: builder().compile(checkpointer=True), "=True, which is for subgraphs"),
        (lambda: builder().compile(checkpointer=False), "=False, which is for subgraphs"),
    ],
    ids=["in memory", "entrypoint", "another saver", "another journal", "true", "false"],
)
def test_a_graph_with_another_checkpointer_is_refused_with_the_reason(
    rt: TemporaryRuntime, compiled: Any, says: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = compiled()
    before = given.checkpointer
    with pytest.raises(NotDurable, match=f"{says}.*Compile it without a checkpointer"):
        rt.register(given, name="agent")
    assert given.checkpointer is before
    assert rt.graphs == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *[
            ({"graph": wrong}, "takes a StateGraph, a compiled graph or an @entrypoint")
            for wrong in (None, "agent", note, RunnableLambda(note), StateGraph)
        ],
        ({"name": None}, r"register\(graph, name='...'\)"),
        ({"name": None, "graph": builder().compile()}, r"register\(graph, name='...'\)"),
        ({"name": "agent@2"}, "must not contain '@': 'agent@2'"),
        ({"timeout": timedelta(0)}, "must be at least"),
        ({"timeout": timedelta(seconds=-1)}, "must be at least"),
        ({"retry": 5}, r"perdure\.Retry"),
        ({"retry": {"attempts": 3}}, r"perdure\.Retry"),
    ],
)
def test_what_means_nothing_is_refused(
    rt: TemporaryRuntime, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadArgument, match=says):
        rt.register(**{"graph": builder(), "name": "agent", **arguments})


def test_a_second_graph_of_a_name_is_refused_and_the_first_stays(rt: TemporaryRuntime) -> None:
    first = rt.register(builder("first"), name="agent")
    with pytest.raises(BadArgument, match=r"'agent' is registered already.* or a version"):
        rt.register(builder("second"), name="agent")
    rt.register(builder("other"), name="other")
    rt.register(builder("second"), name="agent", version="2")
    with pytest.raises(BadArgument, match="registered already"):
        rt.register(builder("third"), name="agent", version="2")
    assert first.invoke({"log": []}, T) == {"log": ["first"]}


# -- versions, and who drives


async def test_a_start_takes_the_version_that_was_registered_last() -> None:
    async with runtime() as rt:
        rt.register(builder("one"), name="agent", version="1")
        rt.register(builder("two"), name="agent", version="2")
        newest = await rt.start("agent", {"log": []})
        older = await rt.start("agent", {"log": []}, version="1")
        await rt.tick()
        assert (newest.version, (await rt.get(newest.id)).output) == ("2", {"log": ["two"]})
        assert (older.version, (await rt.get(older.id)).output) == ("1", {"log": ["one"]})
        with pytest.raises(UnknownGraph, match=r"'agent@3'.*agent@1, agent@2"):
            await rt.start("agent", {"log": []}, version="3")
        with pytest.raises(UnknownGraph, match="register"):
            await rt.start("agnet", {"log": []})


async def test_a_run_keeps_its_version_and_only_who_registered_it_drives_it(url: str) -> None:
    def asking(word: str) -> StateGraph[Log]:
        found = StateGraph(Log)
        found.add_node("ask", lambda state: {"log": [word, interrupt("?")]})
        found.add_edge(START, "ask")
        return found

    async with runtime(url) as old, runtime(url) as new, runtime(url) as both:
        old.register(asking("one"), name="agent", version="1")
        new.register(asking("two"), name="agent", version="2")
        both.register(asking("two"), name="agent", version="2")
        both.register(asking("one"), name="agent", version="1")
        run = await old.start("agent", {"log": []})
        assert (await new.tick()).claimed == 0
        assert (await old.tick()).waiting == 1
        [wait] = await new.waits()
        await new.answer(wait.id, "yes")
        assert (await new.tick()).claimed == 0
        assert (await new.get(run.id)).state is State.WAITING
        assert (await both.tick()).done == 1
        assert (await new.get(run.id)).output == {"log": ["one", "yes"]}


async def test_a_runtime_without_graphs_starts_runs_for_others_but_drives_none(url: str) -> None:
    async with runtime(url) as front, runtime(url) as back:
        back.register(builder(), name="agent")
        run = await front.start("agent", {"log": []})
        with pytest.raises(BadArgument, match="register"):
            await front.tick()
        await back.tick()
        assert (await front.get(run.id)).output == {"log": ["noted"]}


# -- the types of a graph


@dataclass(frozen=True)
class Address:
    street: str


@dataclass
class Customer:
    name: str
    address: Address


class Order(TypedDict, total=False):
    customer: Customer
    log: Annotated[list[Any], operator.add]


@dataclass
class Desk:
    operator: str
    address: Address


@dataclass(frozen=True)
class Stranger:
    name: str


def orders() -> StateGraph[Order, Desk]:
    def greet(state: Order, runtime: NodeRuntime[Desk]) -> Order:
        customer, desk = state["customer"], runtime.context
        return {"log": [f"{customer.name}, {customer.address.street}, by {desk.operator}"]}

    found = StateGraph(Order, context_schema=Desk)
    found.add_node("greet", greet)
    found.add_edge(START, "greet")
    return found


@pytest.mark.parametrize("compiled", [False, True], ids=["builder", "compiled"])
async def test_the_types_of_a_graphs_state_and_context_are_allowed(
    url: str, compiled: bool
) -> None:
    given: Any = orders().compile() if compiled else orders()
    async with runtime(url) as rt, runtime(url) as worker:
        rt.register(given, name="orders")
        worker.register(given, name="orders")
        customer = Customer("Ana", Address("Via Roma 1"))
        desk = Desk("Ugo", Address("here"))
        run = await rt.start("orders", {"customer": customer, "log": []}, context=desk)
        assert (await worker.tick()).done == 1
        output = (await rt.get(run.id)).output
        assert output == {"customer": customer, "log": ["Ana, Via Roma 1, by Ugo"]}
        bound: Any = rt.register(given, name="again")
        assert bound.invoke({"customer": customer, "log": []}, T, context=desk) == output


async def test_another_type_is_refused_before_the_run_is_accepted() -> None:
    async with runtime() as rt:
        rt.register(builder(), name="agent")
        with pytest.raises(TypeNotAllowed, match="Stranger"):
            await rt.start("agent", {"log": [Stranger("who")]})
        assert await rt.runs() == []
    async with runtime(allow=[Stranger]) as rt:
        run = await driven(rt, builder(), {"log": [Stranger("who")]}, name="agent")
        assert (await rt.get(run.id)).output == {"log": [Stranger("who"), "noted"]}


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"factor": 0.5}, {"first": timedelta(-1)}])
def test_a_policy_that_means_nothing_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="at least 1"):
        perdure.Retry(**bad)
