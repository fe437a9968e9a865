"""A bound graph is used as the graph itself, and each call of it is a run under a lease.

What LangGraph's own graph on an `InMemorySaver` returns, streams, raises and remembers, this one
does too. Beyond that: whoever calls at the same time takes turns, and what a caller leaves behind,
by stopping to read, by an exception or by SIGKILL, is a run that others can see and go on with.
"""

from __future__ import annotations

import asyncio
import copy
import json
import operator
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime as NodeRuntime
from langgraph.types import Command, interrupt

import perdure
from perdure.bound import REFUSED, BoundGraph
from perdure.errors import AnswerRefused, BadArgument, NotDurable, ThreadBusy, WaitClosed
from perdure.testing import TemporaryRuntime, runtime
from perdure.testing.postgres import Server
from perdure.types import Kind, State
from tests.support import channel_stories, flow_stories, stories
from tests.support.scripts import Api, Savers, Story, plain, play

MODULES = (stories, flow_stories, channel_stories)  # they fill one table
T: RunnableConfig = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


Node = Callable[..., Any]


def sequence(**nodes: Node) -> StateGraph[Log]:
    builder = StateGraph(Log)
    builder.add_sequence(list(nodes.items()))
    builder.add_edge(START, next(iter(nodes)))
    return builder


def says(word: str) -> Node:
    def node(state: Log) -> Log:
        return {"log": [word]}

    return node


def asks(state: Log) -> Log:
    return {"log": ["asked", interrupt({"seen": list(state["log"])})]}


def asking() -> StateGraph[Log]:
    return sequence(a=says("a"), ask=asks, b=says("b"))


def until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """What `condition` gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
    return found


async def auntil(condition: Callable[[], Awaitable[Any]], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := await condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.01)
    return found


class Gate:
    """A node that tells that it was entered, and stays there until it is let through."""

    def __init__(self, word: str = "through") -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self._word = word

    def __call__(self, state: Log) -> Log:
        self.entered.set()
        assert self.open.wait(60)
        return {"log": [self._word]}


@pytest.fixture
def rt() -> Iterator[TemporaryRuntime]:
    with runtime() as found:
        yield found


def kinds(rt: TemporaryRuntime, run_id: str) -> list[str]:
    return [event.kind for event in rt.blocking.events(run_id)]


def states(rt: TemporaryRuntime) -> list[str]:
    """The states of all runs, in the order of their names."""
    return sorted(run.state.value for run in rt.blocking.runs())


# -- as LangGraph's own


OTHERWISE = {
    "the state updated from outside": "it uses bulk_update_state, which is refused",
    "durability exit": "checkpoints of every step are kept, so that a worker can go on",
    "delta channels at exit": "the same",
    "a subgraph that saves nothing": "LangGraph's durability='sync' breaks on such a subgraph",
}
SAME = sorted(stories.STORIES.keys() - OTHERWISE.keys())


def bound(story: Story) -> Story:
    """The same story on a graph bound to the runtime that takes the place of the saver."""
    known: dict[int, Any] = {}

    def build(rt: Any, calls: list[Any]) -> Any:
        if id(rt) not in known:
            known.clear()
            graph = story.build(None, calls)  # type: ignore[arg-type]
            known[id(rt)] = rt.register(graph, name="story")
        return known[id(rt)]

    return Story(build, story.script)


def is_told_the_same(name: str, runtimes: Savers, api: Api) -> None:
    story, thread_id = stories.STORIES[name], f"{name}, {api}"
    expected = play(story, Savers(InMemorySaver), api, thread_id)
    assert play(bound(story), runtimes, api, thread_id) == expected


@pytest.fixture(scope="module")
def shared_postgres_url(postgres_server: Server) -> Iterator[str]:
    """One database for all stories: each has a thread of its own."""
    url = postgres_server.database()
    yield url
    postgres_server.drop(url)


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(("api", "cold"), [("blocking", False), ("coroutines", True)])
def test_a_story_on_sqlite_is_the_same_as_langgraphs(
    sqlite_url: str, name: str, api: Api, cold: bool
) -> None:
    is_told_the_same(name, Savers(lambda: perdure.Runtime(sqlite_url), cold), api)


@pytest.mark.parametrize("name", SAME)
def test_a_story_on_postgresql_is_the_same_as_langgraphs(
    shared_postgres_url: str, name: str
) -> None:
    is_told_the_same(name, Savers(lambda: perdure.Runtime(shared_postgres_url)), "blocking")


def resume_and_update(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume="yes", update={"log": ["too"]}), T)


def resume_and_go(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume="yes", goto="b"), T)


def resume_with_a_dict(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume={"ok": True}), T)


def resume_by_id(graph: Any) -> Any:
    found = graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume={found["__interrupt__"][0].id: "yes"}), T)


def resume_what_was_updated(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    graph.update_state(T, {"log": ["by hand"]})
    yield graph.get_state(T).next
    yield graph.invoke(Command(resume="yes"), T)


def ask_again_after_an_update(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    graph.update_state(T, {"log": ["by hand"]})
    yield graph.invoke(None, T)
    yield graph.invoke(Command(resume="yes"), T)


def new_input_over_a_question(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T)
    yield graph.invoke({"log": ["instead"]}, T)
    yield graph.invoke(Command(resume="yes"), T)


def a_command_at_the_beginning(graph: Any) -> Any:
    yield graph.invoke(Command(goto="b", update={"log": ["in"]}), T)
    yield graph.invoke(Command(resume="for nothing"), T)


def breakpoints_of_one_call(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T, interrupt_before=["ask"])
    yield graph.get_state(T).next
    yield graph.invoke(None, T)


def forms_of_output(graph: Any) -> Any:
    yield graph.invoke({"log": ["in"]}, T, version="v2")
    yield graph.invoke(Command(resume="yes"), T, version="v2")
    yield graph.invoke({"log": ["in"]}, T, output_keys="log")
    yield graph.invoke(Command(resume="yes"), T, stream_mode="updates")
    yield graph.invoke({}, T, stream_mode=["updates", "values"], subgraphs=True)


def states_by_hand(graph: Any) -> Any:
    graph.update_state(T, {"log": ["first"]}, as_node="a")
    yield graph.get_state(T).next
    yield graph.invoke(None, T)
    past = list(graph.get_state_history(T))
    yield [(one.values, one.next) for one in past]
    graph.update_state(past[-1].config, {"log": ["another past"]}, as_node="ask")
    yield graph.invoke(None, T)


def without_end(graph: Any) -> Any:
    with pytest.raises(GraphRecursionError) as raised:
        graph.invoke({"log": ["in"]}, {**T, "recursion_limit": 1})
    yield str(raised.value)
    yield graph.invoke(None, T)


TALES = {
    tale.__name__: tale
    for tale in (
        resume_and_update,
        resume_and_go,
        resume_with_a_dict,
        resume_by_id,
        resume_what_was_updated,
        ask_again_after_an_update,
        new_input_over_a_question,
        a_command_at_the_beginning,
        breakpoints_of_one_call,
        forms_of_output,
        states_by_hand,
        without_end,
    )
}


@pytest.mark.parametrize("name", list(TALES))
def test_a_call_gives_what_langgraphs_gives(rt: TemporaryRuntime, name: str) -> None:
    expected = plain(list(TALES[name](asking().compile(checkpointer=InMemorySaver()))))
    assert plain(list(TALES[name](rt.register(asking(), name="agent")))) == expected


def chatty() -> Any:
    """A model that streams, in a subgraph, beside a node that writes to the stream itself."""

    def tell(state: Any) -> Any:
        get_stream_writer()({"progress": len(state["messages"])})

    def talk(state: Any) -> Any:
        model = GenericFakeChatModel(messages=iter([AIMessage("well met by moonlight", id="m")]))
        return {"messages": [model.invoke(state["messages"])]}

    inner = StateGraph(MessagesState)
    inner.add_sequence([("tell", tell), ("talk", talk)])
    inner.add_edge(START, "tell")
    outer: Any = StateGraph(MessagesState)
    outer.add_sequence([("before", tell), ("inner", inner.compile())])
    outer.add_edge(START, "before")
    return outer


def streamed(chunk: Any) -> Any:
    """A chunk to compare: of what differs from play to play, only that it is there."""
    ns, mode, payload = chunk
    if mode == "messages":
        payload = (payload[0].content, payload[1]["langgraph_node"])
    elif mode in ("checkpoints", "tasks", "debug"):
        payload = sorted(payload.keys() - {"metadata"})  # ours has the id of the run in it
    return plain((tuple(part.partition(":")[0] for part in ns), mode, payload))


HELLO = {"messages": [HumanMessage("hello", id="h")]}
MODES = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]


def test_a_stream_has_in_all_its_modes_what_langgraphs_has(rt: TemporaryRuntime) -> None:
    def chunks(graph: Any) -> Any:
        return [*map(streamed, graph.stream(HELLO, T, stream_mode=MODES, subgraphs=True))]

    expected = chunks(chatty().compile(checkpointer=InMemorySaver()))
    assert chunks(rt.register(chatty(), name="agent")) == expected
    assert {mode for _, (_, (_, mode), _) in expected} == set(MODES)


async def test_an_async_stream_has_in_all_its_modes_what_langgraphs_has() -> None:
    async def chunks(graph: Any) -> Any:
        found = graph.astream(HELLO, T, stream_mode=MODES, subgraphs=True)
        return [streamed(chunk) async for chunk in found]

    async with runtime() as rt:
        expected = await chunks(chatty().compile(checkpointer=InMemorySaver()))
        assert await chunks(rt.register(chatty(), name="agent")) == expected


@pytest.mark.parametrize("mode", ["values", "updates", "custom"])
def test_a_stream_of_one_mode_has_bare_chunks(rt: TemporaryRuntime, mode: str) -> None:
    stock = chatty().compile(checkpointer=InMemorySaver())
    ours = rt.register(chatty(), name="agent")
    expected = [plain(chunk) for chunk in stock.stream(HELLO, T, stream_mode=mode)]
    assert [plain(chunk) for chunk in ours.stream(HELLO, T, stream_mode=mode)] == expected


async def test_the_coroutines_do_as_their_blocking_twins() -> None:
    async with runtime() as rt:
        graph = rt.register(asking(), name="agent")
        found = await graph.ainvoke({"log": ["in"]}, T)
        assert found["__interrupt__"][0].value == {"seen": ["in", "a"]}
        await graph.aupdate_state(T, {"log": ["by hand"]})
        assert (await graph.aget_state(T)).values == {"log": ["in", "a", "by hand"]}
        end = {"log": ["in", "a", "by hand", "asked", "yes", "b"]}
        assert await graph.ainvoke(Command(resume="yes"), T) == end
        past = [one async for one in graph.aget_state_history(T)]
        assert (past[0].values, past[-1].values) == (end, {"log": []})


def test_an_answer_to_an_interrupt_of_another_time_is_refused(rt: TemporaryRuntime) -> None:
    """LangGraph would ask again; handing the whole dict over as the answer would be worse."""
    graph = rt.register(asking(), name="agent")
    old = graph.invoke({"log": ["in"]}, T)["__interrupt__"][0].id
    new = graph.invoke({"log": ["instead"]}, T)["__interrupt__"][0].id
    with pytest.raises(BadArgument, match=new):
        graph.invoke(Command(resume={old: "yes"}), T)
    assert graph.invoke(Command(resume={new: "yes"}), T)["log"][-3:] == ["asked", "yes", "b"]


def test_one_answer_for_two_questions_is_refused_with_their_ids(rt: TemporaryRuntime) -> None:
    builder = StateGraph(Log)
    for name in ("left", "right"):
        builder.add_node(name, asks)
        builder.add_edge(START, name)
    graph = rt.register(builder, name="agent")
    found = graph.invoke({"log": ["in"]}, T)["__interrupt__"]
    with pytest.raises(BadArgument, match="waits for 2 answers") as raised:
        graph.invoke(Command(resume="yes"), T)
    assert all(one.id in str(raised.value) for one in found)
    end = graph.invoke(Command(resume={one.id: n for n, one in enumerate(found)}), T)
    assert end == {"log": ["in", "asked", 0, "asked", 1]}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_run_without_a_lease_is_refused_with_the_reason(
    rt: TemporaryRuntime, name: str
) -> None:
    graph = rt.register(asking(), name="agent")
    with pytest.raises(NotDurable, match=rf"{name}\(\) of the graph 'agent' would run outside"):
        getattr(graph, name)


def test_everything_else_that_runs_a_graph_has_a_lease() -> None:
    """When LangGraph learns another way to run a graph, somebody has to look at it here."""
    told = {name for name in dir(asking().compile()) if not name.startswith("_")}
    looked_at = {
        "InputType", "OutputType", "aclear_cache", "aget_graph", "aget_subgraphs", "attach_branch",
        "attach_edge", "attach_node", "auto_validate", "builder", "cache", "cache_policy",
        "channels", "checkpointer", "clear_cache", "config", "config_schema", "config_specs",
        "context_schema", "debug", "get_config_jsonschema", "get_context_jsonschema", "get_graph",
        "get_input_jsonschema", "get_input_schema", "get_name", "get_output_jsonschema",
        "get_output_schema", "get_prompts", "get_subgraphs", "input_channels", "input_schema",
        "interrupt_after_nodes", "interrupt_before_nodes", "name", "node_error_handler_map",
        "nodes", "output_channels", "output_schema", "retry_policy", "schema_to_mapper",
        "step_timeout", "store", "stream_channels", "stream_channels_asis",
        "stream_channels_list", "stream_eager", "stream_mode", "stream_transformers",
        "trigger_to_nodes", "validate",
    }  # fmt: skip
    assert told - looked_at - REFUSED - set(dir(BoundGraph)) == set()


def test_a_call_without_a_thread_is_refused(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    for config in (None, RunnableConfig(), RunnableConfig(configurable={"thread_id": ""})):
        with pytest.raises(BadArgument, match="names no thread"):
            graph.invoke({"log": []}, config)
    assert rt.blocking.runs() == []


def test_a_bound_graph_can_be_copied(rt: TemporaryRuntime) -> None:
    graph = rt.register(sequence(a=says("a")), name="agent")
    assert copy.copy(graph).invoke({"log": []}, T) == {"log": ["a"]}


# -- each call is a run


def test_each_call_leaves_a_run_with_its_events(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    graph.invoke({"log": ["in"]}, {**T, "metadata": {"user": "ana"}})
    [run] = rt.blocking.runs()
    assert (run.graph, run.thread_id, run.state) == ("agent", "t", State.WAITING)
    assert run.metadata == {"user": "ana"}
    graph.invoke(Command(resume="yes"), T)
    assert rt.blocking.get(run.id).output == {"log": ["in", "a", "asked", "yes", "b"]}
    events = rt.blocking.events(run.id)
    assert [event.kind for event in events] == [
        "started", "claimed", "step", "step", "step", "wait", "waiting",
        "answer", "claimed", "step", "step", "done",
    ]  # fmt: skip
    assert [event.n for event in events] == list(range(1, len(events) + 1))


def test_a_new_input_supersedes_the_run_that_waits(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    graph.invoke({"log": ["in"]}, T)
    [old] = rt.blocking.waits()
    rt.clock.advance(timedelta(seconds=1))
    graph.invoke({"log": ["instead"]}, T)
    second, first = rt.blocking.runs()
    assert (first.state, second.state) == (State.CANCELLED, State.WAITING)
    assert second.id in str(first.reason)
    with pytest.raises(WaitClosed):
        rt.blocking.answer(old.id, "yes")
    assert [wait.run_id for wait in rt.blocking.waits()] == [second.id]


class OutOfPaper(Exception):
    pass


def test_an_exception_reaches_the_caller_and_the_run_is_failed(url: str) -> None:
    failing = [True]

    def flaky(state: Log) -> Log:
        if failing.pop() if failing else False:
            raise OutOfPaper("tray 2")
        return {"log": ["printed"]}

    with runtime(url) as rt:
        graph = rt.register(sequence(a=says("a"), flaky=flaky), name="agent")
        with pytest.raises(OutOfPaper, match="tray 2") as raised:
            graph.invoke({"log": ["in"]}, T)
        assert raised.traceback[-1].name == "flaky"
        [run] = rt.blocking.runs()
        assert run.state is State.FAILED
        assert run.error is not None
        assert (run.error.kind.rpartition(".")[2], run.error.message) == ("OutOfPaper", "tray 2")
        assert (rt.blocking.tick()).claimed == 0  # it is the caller's turn, not a retry's
        assert graph.invoke(None, T) == {"log": ["in", "a", "printed"]}
        assert states(rt) == ["done", "failed"]


async def test_an_exception_reaches_the_caller_of_a_coroutine() -> None:
    async def breaks(state: Log) -> Log:
        raise OutOfPaper("tray 3")

    async with runtime() as rt:
        graph = rt.register(sequence(a=says("a"), breaks=breaks), name="agent")
        with pytest.raises(OutOfPaper, match="tray 3"):
            await graph.ainvoke({"log": ["in"]}, T)
        with pytest.raises(OutOfPaper, match="tray 3"):
            async for _ in graph.astream(None, T):
                pass
        assert [run.state.value for run in await rt.runs()] == ["failed", "failed"]


def test_a_failed_call_can_be_retried_by_a_worker(rt: TemporaryRuntime) -> None:
    broken = [True]

    def flaky(state: Log) -> Log:
        if broken:
            raise OutOfPaper("tray 2")
        return {"log": ["printed"]}

    graph = rt.register(sequence(a=says("a"), flaky=flaky), name="agent")
    with pytest.raises(OutOfPaper):
        graph.invoke({"log": ["in"]}, T)
    broken.clear()
    [run] = rt.blocking.runs()
    rt.blocking.retry(run.id)
    rt.blocking.tick()
    assert graph.get_state(T).values == {"log": ["in", "a", "printed"]}


@dataclass
class Desk:
    operator: str


def test_what_a_call_was_given_is_there_when_a_worker_goes_on_with_it(url: str) -> None:
    def sign(state: Any, config: RunnableConfig, runtime: NodeRuntime[Desk]) -> Log:
        answer = interrupt("sign?")
        inner = config["configurable"]
        found = [answer, inner["user"], runtime.context.operator, config["metadata"]["ticket"]]
        return {"log": [*found, config["recursion_limit"], "urgent" in (config["tags"] or ())]}

    builder: Any = StateGraph(Log, context_schema=Desk)
    builder.add_node("sign", sign)
    builder.add_edge(START, "sign")
    heard: list[str] = []

    class Listener(BaseCallbackHandler):
        def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
            heard.append("start")

    with runtime(url) as rt, runtime(url) as worker:
        graph = rt.register(builder, name="agent")
        worker.register(builder, name="agent")
        config: RunnableConfig = {
            "configurable": {"thread_id": "t", "user": "ana", "phone": threading.Lock()},
            "metadata": {"ticket": 7},
            "tags": ["urgent"],
            "recursion_limit": 9,
            "callbacks": [Listener()],
        }
        graph.invoke({"log": []}, config, context=Desk("ugo"))
        assert heard
        [wait] = worker.blocking.waits()
        worker.blocking.answer(wait.id, "yes")
        assert worker.blocking.tick().done == 1
        assert graph.get_state(T).values == {"log": ["yes", "ana", "ugo", 7, 9, True]}


# -- together with workers


def test_a_run_of_a_worker_can_be_answered_through_the_graph(url: str) -> None:
    with runtime(url) as rt, runtime(url) as worker:
        graph = rt.register(asking(), name="agent")
        worker.register(asking(), name="agent")
        run = worker.blocking.start("agent", {"log": ["in"]}, thread_id="t")
        worker.blocking.tick()
        end = {"log": ["in", "a", "asked", "yes", "b"]}
        assert graph.invoke(Command(resume="yes"), T) == end
        assert worker.blocking.get(run.id).output == end


def test_none_drives_a_run_that_nobody_claimed_yet_with_its_own_input(
    rt: TemporaryRuntime,
) -> None:
    graph = rt.register(sequence(a=says("a")), name="agent")
    run = rt.blocking.start("agent", {"log": ["in"]}, thread_id="t")
    assert graph.invoke(None, T) == {"log": ["in", "a"]}
    assert rt.blocking.get(run.id).state is State.DONE


def test_a_sleep_of_a_call_is_ended_by_a_worker(rt: TemporaryRuntime) -> None:
    def nap(state: Log) -> Log:
        perdure.sleep(timedelta(days=4))
        return {"log": ["rested"]}

    graph = rt.register(sequence(nap=nap, a=says("a")), name="agent")
    assert "__interrupt__" in graph.invoke({"log": ["in"]}, T)
    [wait] = rt.blocking.waits(kind=Kind.CLOCK)
    assert wait.wake_at == rt.clock.time + timedelta(days=4)
    assert rt.blocking.tick().claimed == 0
    rt.clock.advance(timedelta(days=4))
    assert rt.blocking.tick().done == 1
    assert graph.get_state(T).values == {"log": ["in", "rested", "a"]}


def test_a_stream_that_is_not_read_to_its_end_leaves_the_run_to_workers(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(sequence(a=says("a"), b=says("b"), c=says("c")), name="agent")
        chunks: Any = graph.stream({"log": ["in"]}, T, stream_mode="updates")
        assert next(chunks) == {"a": {"log": ["a"]}}
        chunks.close()
        [run] = rt.blocking.runs()
        assert run.state is State.PENDING
        assert rt.blocking.tick().done == 1
        assert rt.blocking.get(run.id).output == {"log": ["in", "a", "b", "c"]}
        assert "released" in kinds(rt, run.id)


async def test_an_async_stream_that_is_closed_stops_its_nodes_before_it_lets_the_run_go() -> None:
    told: list[Any] = []

    async def slow(state: Log) -> Log:
        if "stopped" not in told:
            try:
                await asyncio.Event().wait()
            finally:
                told.append("stopped")
        return {"log": ["slow"]}

    builder = StateGraph(Log)
    for name, node in (("fast", says("fast")), ("slow", slow)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    async with runtime() as rt:
        graph = rt.register(builder, name="agent")
        chunks: Any = graph.astream({"log": ["in"]}, T, stream_mode="updates")
        assert await anext(chunks) == {"fast": {"log": ["fast"]}}
        await chunks.aclose()
        assert told == ["stopped"]
        [run] = await rt.runs()
        assert run.state is State.PENDING
        assert (await rt.tick()).done == 1
        assert (await rt.get(run.id)).output == {"log": ["in", "fast", "slow"]}


async def test_a_cancelled_call_leaves_its_run_to_workers() -> None:
    entered: list[asyncio.Event] = [asyncio.Event()]

    async def slow(state: Log) -> Log:
        if entered:
            entered.pop().set()
            await asyncio.Event().wait()
        return {"log": ["slow"]}

    async with runtime() as rt:
        graph = rt.register(sequence(a=says("a"), slow=slow), name="agent")
        is_in = entered[0]
        call = asyncio.create_task(graph.ainvoke({"log": ["in"]}, T))
        await is_in.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await rt.tick()).done == 1
        assert (await graph.aget_state(T)).values == {"log": ["in", "a", "slow"]}


CALLER = """
import sys, time
from pathlib import Path
from typing import Annotated, TypedDict
import operator
import perdure
from langgraph.graph import START, StateGraph

class Log(TypedDict, total=False):
    log: Annotated[list, operator.add]

def a(state):
    return {"log": ["a by the caller"]}

def slow(state):
    Path("entered").touch()
    time.sleep(600)

builder = StateGraph(Log)
builder.add_sequence([("a", a), ("slow", slow), ("b", a)])
builder.add_edge(START, "a")
graph = perdure.Runtime(sys.argv[1]).register(builder, name="agent")
config = {"configurable": {"thread_id": "t"}}
graph.invoke({"log": ["in"]}, config, durability="sync")
"""


@pytest.mark.slow
def test_a_worker_finishes_the_run_of_a_caller_that_was_killed(url: str, tmp_path: Path) -> None:
    caller = subprocess.Popen([sys.executable, "-c", CALLER, url], cwd=tmp_path)
    try:
        until((tmp_path / "entered").exists, 60)
        caller.send_signal(signal.SIGKILL)
        assert caller.wait(10) == -signal.SIGKILL
        with perdure.Runtime(url) as rt:
            rt.register(sequence(a=says("a"), slow=says("slow"), b=says("b")), name="agent")

            def is_done() -> bool:
                rt.blocking.tick()
                return rt.blocking.runs()[0].state is State.DONE

            until(is_done)
            [run] = rt.blocking.runs()
            assert run.output == {"log": ["in", "a by the caller", "slow", "b"]}
            assert "recovered" in [event.kind for event in rt.blocking.events(run.id)]
    finally:
        if caller.poll() is None:
            caller.kill()
            caller.wait()


# -- two at once


def two_calls(graph: Any, gate: Gate, second_is_on_its_way: Callable[[], Any]) -> list[Any]:
    """Call twice, the second time while the first is in the middle."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(graph.invoke, {"log": ["first"]}, T)
        try:
            assert gate.entered.wait(30)
            second = pool.submit(graph.invoke, {"log": ["second"]}, T)
            second_is_on_its_way()
        finally:
            gate.open.set()
        return [first.result(30), second.result(30)]


def test_stock_langgraph_loses_one_of_two_calls_at_once() -> None:
    """What this is about: two calls succeed, and the input of one is gone."""
    gates = [gate := Gate("one"), other := Gate("two")]
    turn = iter(gates)
    graph = sequence(gate=lambda state: next(turn)(state)).compile(checkpointer=InMemorySaver())

    def both_are_in() -> None:
        assert other.entered.wait(30)
        other.open.set()

    two_calls(graph, gate, both_are_in)
    assert len(graph.get_state(T).values["log"]) < len(["first", "one", "second", "two"])


def test_two_callers_at_once_take_turns_and_both_inputs_are_there(url: str) -> None:
    with runtime(url) as rt:
        gate = Gate("done")
        graph = rt.register(sequence(gate=gate), name="agent")
        ends = two_calls(graph, gate, lambda: until(lambda: len(rt.blocking.runs()) == 2))
        assert ends[0] == {"log": ["first", "done"]}
        assert ends[1] == {"log": ["first", "done", "second", "done"]}
        assert graph.get_state(T).values == ends[1]
        assert states(rt) == ["done", "done"]


async def test_a_call_waits_for_the_worker_that_drives_its_thread(url: str) -> None:
    gate = Gate("by the worker")
    async with runtime(url) as rt, runtime(url) as worker:
        graph = rt.register(sequence(gate=gate), name="agent")
        worker.register(sequence(gate=gate), name="agent")
        await worker.start("agent", {"log": ["first"]}, thread_id="t")
        driving = asyncio.create_task(worker.tick())
        try:
            await asyncio.to_thread(gate.entered.wait, 30)
            call = asyncio.create_task(graph.ainvoke({"log": ["second"]}, T))

            async def both() -> bool:
                return len(await rt.runs(thread_id="t")) == 2

            await auntil(both)
            assert not call.done()
        finally:
            gate.open.set()
        assert (await driving).done == 1
        assert await call == {"log": ["first", "by the worker", "second", "by the worker"]}


def test_a_call_supersedes_the_one_before_it_when_that_comes_to_a_question(url: str) -> None:
    with runtime(url) as rt:
        gate = Gate()
        graph = rt.register(sequence(gate=gate, ask=asks), name="agent")
        ends = two_calls(graph, gate, lambda: until(lambda: len(rt.blocking.runs()) == 2))
        assert [end["__interrupt__"][0].value["seen"] for end in ends] == [
            ["first", "through"],
            ["first", "through", "second", "through"],
        ]
        assert states(rt) == ["cancelled", "waiting"]
        [wait] = rt.blocking.waits()
        rt.blocking.answer(wait.id, "yes")
        assert rt.blocking.tick().done == 1


def test_a_call_takes_its_turn_behind_runs_that_were_started_before_it(url: str) -> None:
    with runtime(url) as rt:
        gate = Gate()
        graph = rt.register(sequence(gate=gate), name="agent")
        for n in range(2):
            rt.blocking.start("agent", {"log": [n]}, thread_id="t")
        with ThreadPoolExecutor(2) as pool:
            driving = pool.submit(rt.blocking.tick)
            try:
                assert gate.entered.wait(30)
                call = pool.submit(graph.invoke, {"log": ["call"]}, T)
                until(lambda: len(rt.blocking.runs()) == 3)
            finally:
                gate.open.set()
            assert call.result(30)["log"] == [0, "through", 1, "through", "call", "through"]
            assert driving.result(30).done == 2


def test_two_who_resume_at_once_open_the_gate_once(url: str) -> None:
    """LangGraph on a saver runs what is behind the question once per caller."""
    fired: list[str] = []

    def pay(state: Log) -> Log:
        fired.append("paid")
        return {"log": ["paid"]}

    with runtime(url) as rt:
        graph = rt.register(sequence(ask=asks, pay=pay), name="agent")
        graph.invoke({"log": ["in"]}, T)
        start = threading.Barrier(4)

        def resume(who: int) -> Any:
            start.wait(30)
            try:
                return graph.invoke(Command(resume=who), T)["log"]
            except (AnswerRefused, BadArgument, ThreadBusy) as refused:
                return type(refused).__name__

        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(resume, range(4)))
        assert fired == ["paid"]
        assert sum(isinstance(one, list) for one in told) >= 1
        assert graph.get_state(T).values["log"][-1] == "paid"


@pytest.mark.parametrize("stop", ["paused", "held"])
def test_a_call_behind_a_run_that_rests_is_refused_and_withdrawn(url: str, stop: str) -> None:
    with runtime(url) as rt, runtime(url) as changed:
        graph = rt.register(asking(), name="agent")
        head = rt.blocking.start("agent", {"log": ["in"]}, thread_id="t")
        rt.blocking.tick()
        if stop == "paused":
            rt.blocking.pause(head.id)
        else:
            changed.register(sequence(a=says("a"), b=says("b")), name="agent")
            [wait] = rt.blocking.waits()
            rt.blocking.answer(wait.id, "yes")
            assert changed.blocking.tick().held == 1
        with pytest.raises(ThreadBusy, match=f"is {stop}.*{head.id}"):
            graph.invoke({"log": ["more"]}, T)
        assert states(rt) == ["cancelled", stop]
        with pytest.raises(ThreadBusy):
            graph.invoke(None, T)
        assert states(rt) == ["cancelled", stop]
        (rt.blocking.resume if stop == "paused" else rt.blocking.retry)(head.id)
        rt.blocking.tick()
        [*rest] = rt.blocking.waits()
        for wait in rest:
            rt.blocking.answer(wait.id, "yes")
        rt.blocking.tick()
        assert rt.blocking.get(head.id).output == {"log": ["in", "a", "asked", "yes", "b"]}


# -- changing the state


async def test_the_state_of_a_run_that_is_driven_is_not_changed(url: str) -> None:
    gate = Gate()
    async with runtime(url) as rt:
        graph = rt.register(sequence(a=says("a"), gate=gate), name="agent")
        await rt.start("agent", {"log": ["in"]}, thread_id="t")
        driving = asyncio.create_task(rt.tick())
        try:
            await asyncio.to_thread(gate.entered.wait, 30)
            with pytest.raises(ThreadBusy, match="is running"):
                await graph.aupdate_state(T, {"log": ["by hand"]})
            with pytest.raises(ThreadBusy, match="is running"):
                await asyncio.to_thread(graph.update_state, T, {"log": ["by hand"]})
        finally:
            gate.open.set()
        assert (await driving).done == 1
        assert (await graph.aget_state(T)).values == {"log": ["in", "a", "through"]}
        assert len(await rt.runs()) == 1


def test_a_waiting_run_is_driven_again_on_the_state_it_was_given(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(asking(), name="agent")
        graph.invoke({"log": ["in"]}, T)
        [old] = rt.blocking.waits()
        graph.update_state(T, {"log": ["by hand"]})
        with pytest.raises(WaitClosed):  # it showed what is no longer so
            rt.blocking.answer(old.id, "yes")
        assert rt.blocking.tick().waiting == 1
        [new] = rt.blocking.waits()
        assert new.value == {"seen": ["in", "a", "by hand"]}
        rt.blocking.answer(new.id, "yes")
        assert rt.blocking.tick().done == 1
        assert graph.get_state(T).values["log"][-3:] == ["asked", "yes", "b"]
        assert "updated" in kinds(rt, new.run_id)


def test_an_answer_that_is_not_used_yet_is_not_lost_to_a_changed_state(
    rt: TemporaryRuntime,
) -> None:
    graph = rt.register(asking(), name="agent")
    graph.invoke({"log": ["in"]}, T)
    [wait] = rt.blocking.waits()
    rt.blocking.answer(wait.id, "yes")
    with pytest.raises(ThreadBusy):
        graph.update_state(T, {"log": ["by hand"]})
    rt.blocking.tick()
    assert graph.get_state(T).values == {"log": ["in", "a", "asked", "yes", "b"]}


def test_a_changed_state_lets_no_run_pass_its_breakpoint(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(
            sequence(draft=says("draft"), send=says("sent")).compile(interrupt_before=["send"]),
            name="agent",
        )
        graph.invoke({"log": ["in"]}, T)
        graph.update_state(T, {"log": ["better"]}, as_node="draft")
        assert rt.blocking.tick().claimed == 0
        [wait] = rt.blocking.waits(kind=Kind.HUMAN)
        assert wait.value == {"breakpoint": ["send"]}
        assert graph.get_state(T).values == {"log": ["in", "draft", "better"]}
        rt.blocking.answer(wait.id, True)
        assert rt.blocking.tick().done == 1
        assert graph.get_state(T).values == {"log": ["in", "draft", "better", "sent"]}


def test_a_state_that_no_node_takes_leaves_a_thread_that_goes_on(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    graph.invoke({"log": ["in"]}, T)
    with pytest.raises(Exception, match="nobody"):
        graph.update_state(T, {"log": ["by hand"]}, as_node="nobody")
    assert graph.invoke(Command(resume="yes"), T)["log"][-1] == "b"


def test_a_state_put_on_a_new_thread_is_a_run_too(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    graph.update_state(T, {"log": ["by hand"]}, as_node="a")
    [run] = rt.blocking.runs()
    assert (run.state, run.metadata) == (State.DONE, {"source": "update_state"})
    assert "__interrupt__" in graph.invoke(None, T)


def test_what_is_streamed_holds_nothing_that_json_does_not() -> None:
    with runtime() as rt:
        graph = rt.register(sequence(one=lambda state: {"log": ["one"]}), name="g")
        chunks = list(graph.stream({"log": []}, T, stream_mode="checkpoints"))
        assert [json.loads(json.dumps(chunk["config"])) for chunk in chunks]


def test_a_run_has_the_same_output_whoever_drove_it() -> None:
    class Two(TypedDict, total=False):
        said: str
        log: Annotated[list[str], operator.add]

    builder = StateGraph(Two).add_node("say", lambda state: {"said": "hello"})
    with runtime() as rt:
        graph = rt.register(builder.add_edge(START, "say"), name="g")
        returned = graph.invoke({"said": ""}, T)
        other = rt.blocking.start("g", {"said": ""})
        rt.blocking.tick()
        [mine] = rt.blocking.runs(thread_id="t")
        assert returned == mine.output == rt.blocking.get(other.id).output
        assert returned == {"said": "hello", "log": []}
