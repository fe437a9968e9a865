"""Every method of a LangGraph graph works on a bound one, and each of its calls is a run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained, UnknownInterruptError
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from langgraph.types import Command, StateUpdate

import perdure
from perdure.errors import BadArgument, NotDurable
from perdure.testing import TemporaryRuntime, runtime
from perdure.types import State
from tests.support.bound import Log, T, asking, asks, kinds, says, sequence, states
from tests.support.bound import rt as rt
from tests.support.scripts import plain


def thread(n: int) -> RunnableConfig:
    return {"configurable": {"thread_id": f"t{n}"}}


def test_a_bound_graph_is_a_graph_of_the_class_it_was(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    assert isinstance(graph, CompiledStateGraph)

    @entrypoint()
    def flow(input: int) -> int:
        return input + 1

    bound = rt.register(flow)
    assert isinstance(bound, Pregel)
    assert bound.invoke(1, T) == 2
    assert rt.register(graph, name="the same").invoke({"log": []}, T)["log"] == ["a"]


def test_a_batch_is_a_run_for_each_input(rt: TemporaryRuntime) -> None:
    graph = rt.register(sequence(a=says("a")), name="agent")
    ends = graph.batch([{"log": [n]} for n in range(3)], [thread(n) for n in range(3)])
    assert ends == [{"log": [n, "a"]} for n in range(3)]
    assert states(rt) == ["done"] * 3


async def test_events_are_those_of_langgraph_and_a_run() -> None:
    async def names(graph: Any) -> list[Any]:
        events = graph.astream_events({"log": []}, T, version="v2")
        return [(event["event"], event["name"]) async for event in events]

    async with runtime() as rt:
        compiled = sequence(a=says("a")).compile(checkpointer=InMemorySaver(), name="agent")
        graph = rt.register(sequence(a=says("a")), name="agent")
        assert await names(graph) == await names(compiled)
        assert [run.state for run in await rt.runs()] == [State.DONE]


def test_many_updates_at_once_are_as_langgraphs_and_one_run(rt: TemporaryRuntime) -> None:
    updates = [[StateUpdate({"log": ["one"]}, "a")], [StateUpdate({"log": ["two"]}, "b")]]

    def tale(graph: Any) -> Any:
        graph.bulk_update_state(T, updates)
        return [(one.values, one.next) for one in graph.get_state_history(T)]

    expected = tale(asking().compile(checkpointer=InMemorySaver()))
    assert tale(rt.register(asking(), name="agent")) == expected
    assert states(rt) == ["done"]


def test_a_graph_with_a_config_of_its_own_is_still_bound(rt: TemporaryRuntime) -> None:
    def look(state: Log, config: RunnableConfig) -> Log:
        return {"log": [config["configurable"]["team"], config["recursion_limit"]]}

    graph: Any = rt.register(sequence(look=look), name="agent")
    configured = graph.with_config({**thread(7), "recursion_limit": 9})
    end = configured.invoke({"log": []}, {"configurable": {"team": "night"}})
    assert end == {"log": ["night", 9]}
    [run] = rt.blocking.runs()
    assert (run.thread_id, run.state) == ("t7", State.DONE)
    retried = graph.with_retry().invoke(
        {"log": []}, {"configurable": {**T["configurable"], "team": 1}}
    )
    assert retried["log"][0] == 1
    assert len(rt.blocking.runs()) == 2


def test_a_copy_on_another_saver_is_refused(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    with pytest.raises(NotDurable, match="in-memory saver"):
        graph.copy({"checkpointer": InMemorySaver()})


def test_a_bound_graph_as_a_node_is_a_part_of_the_outer_run(rt: TemporaryRuntime) -> None:
    inner = rt.register(asking(), name="inner")
    outer = StateGraph(Log)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    graph: Any = rt.register(outer, name="outer")
    [asked] = graph.invoke({"log": ["in"]}, T)["__interrupt__"]
    assert asked.value == {"seen": ["in", "a"]}
    end = graph.invoke(Command(resume="yes"), T)
    assert end == {"log": ["in", "in", "a", "asked", "yes", "b"]}
    [run] = rt.blocking.runs()
    assert run.graph == "outer"


def test_a_bound_graph_called_in_a_node_with_a_thread_of_its_own_is_a_run(
    rt: TemporaryRuntime,
) -> None:
    inner: Any = rt.register(sequence(a=says("inner")), name="inner")

    def call(state: Log) -> Log:
        return {"log": [*inner.invoke({"log": []}, thread(2))["log"]]}

    def nested(state: Log) -> Log:
        return {"log": [*inner.invoke({"log": []})["log"]]}

    graph: Any = rt.register(sequence(call=call, nested=nested), name="outer")
    assert graph.invoke({"log": []}, T) == {"log": ["inner", "inner"]}
    assert sorted((run.graph, run.thread_id) for run in rt.blocking.runs()) == [
        ("inner", "t2"),
        ("outer", "t"),
    ]


class Whole(TypedDict, total=False):
    log: list[str]
    secret: str


class Out(TypedDict):
    log: list[str]


def test_what_is_returned_follows_the_output_schema(rt: TemporaryRuntime) -> None:
    builder = StateGraph(Whole, output_schema=Out)
    builder.add_node("a", lambda state: {"log": ["a"], "secret": "no"})
    builder.add_edge(START, "a")
    graph: Any = rt.register(builder, name="agent")
    assert graph.invoke({"log": []}, T) == {"log": ["a"]}


def test_nothing_of_ours_is_in_what_a_caller_sees(rt: TemporaryRuntime) -> None:
    """Streams of all kinds and snapshots: the configs and metadata are those of LangGraph."""

    def seen(graph: Any) -> Any:
        config = {**T, "tags": ["mine"], "metadata": {"team": "night"}}
        modes = ["checkpoints", "debug", "tasks"]
        chunks = list(graph.stream({"log": ["in"]}, config, stream_mode=modes))
        found = [
            (mode, kind, sorted(what["configurable"]) if kind == "config" else sorted(what))
            for mode, chunk in chunks
            for kind, what in {**chunk, **chunk.get("payload", {})}.items()
            if kind in ("config", "parent_config", "metadata") and what
        ]
        history = list(graph.get_state_history(T))
        found += [("snapshot", one.metadata, sorted(one.config["configurable"])) for one in history]
        streamed = next(chunk for mode, chunk in chunks if mode == "checkpoints")
        return found, graph.get_state(streamed["config"]).values

    expected = seen(asking().compile(checkpointer=InMemorySaver()))
    assert plain(seen(rt.register(asking(), name="agent"))) == plain(expected)


def test_with_durability_exit_only_the_end_is_kept(rt: TemporaryRuntime) -> None:
    def tale(graph: Any) -> Any:
        yield graph.invoke({"log": ["in"]}, T, durability="exit")
        yield len(list(graph.get_state_history(T)))
        yield graph.invoke(Command(resume="yes"), T, durability="exit")
        yield len(list(graph.get_state_history(T)))

    expected = plain(list(tale(asking().compile(checkpointer=InMemorySaver()))))
    assert plain(list(tale(rt.register(asking(), name="agent")))) == expected
    assert states(rt) == ["done"]


def test_an_effect_is_refused_where_nothing_is_stored_before_the_end(rt: TemporaryRuntime) -> None:
    called: list[int] = []
    send = perdure.effect(name="send")(lambda: called.append(1))

    def node(state: Log) -> Log:
        send()
        return {"log": ["sent"]}

    graph: Any = rt.register(sequence(node=node), name="agent")
    with pytest.raises(BadArgument, match="durability='exit'"):
        graph.invoke({"log": []}, T, durability="exit")
    assert called == []
    assert graph.invoke({"log": []}, thread(1)) == {"log": ["sent"]}


def test_a_call_can_be_drained_by_its_own_control(rt: TemporaryRuntime) -> None:
    control = RunControl()

    def a(state: Log) -> Log:
        control.request_drain("enough")
        return {"log": ["a"]}

    graph: Any = rt.register(sequence(a=a, b=says("b")), name="agent")
    with pytest.raises(GraphDrained, match="enough"):
        graph.invoke({"log": []}, T, control=control)
    assert states(rt) == ["pending"]
    assert graph.invoke(None, T) == {"log": ["a", "b"]}


def test_a_strict_resume_raises_langgraphs_error_and_the_question_stays(
    rt: TemporaryRuntime,
) -> None:
    graph: Any = rt.register(asking(), name="agent")
    config: Any = {"configurable": {"thread_id": "t", "__pregel_strict_resume": True}}
    graph.invoke({"log": ["in"]}, T)
    for resume, reason in (({}, "empty_map"), ({"0" * 32: "yes"}, "not_pending")):
        with pytest.raises(UnknownInterruptError) as raised:
            graph.invoke(Command(resume=resume), config)
        assert raised.value.reason == reason
    assert states(rt) == ["waiting"]
    assert graph.invoke(Command(resume="yes"), config)["log"][-1] == "b"


def test_a_new_input_replaces_a_run_that_its_reader_left(rt: TemporaryRuntime) -> None:
    graph: Any = rt.register(sequence(a=says("a"), ask=asks), name="agent")
    reading = graph.stream({"log": ["left"]}, T)
    next(reading)
    reading.close()
    assert states(rt) == ["pending"]
    rt.clock.advance(timedelta(seconds=10))  # no worker takes it up
    end = graph.invoke({"log": ["new"]}, T)
    assert end["__interrupt__"][0].value == {"seen": ["left", "a", "new", "a"]}
    old = rt.blocking.runs()[-1]
    assert kinds(rt, old.id)[-1] == "cancelled"
