"""What of a state is stored and handed out: only what nodes returned, and all of it.

What a process remembers of a thread never changes that. The saver hands a run the very message
objects of the run before it, and these tests try to make that visible: by changes in place, by
messages with odd fields, by looking from outside, by clocks that disagree. A node that changes a
message and does not return it changes its own copy: the next run, and whoever asks for the state,
gets what was stored. And the history of LangGraph's DeltaChannel is what LangGraph's own slow way
of collecting it finds.
"""

import multiprocessing
import os
import time
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, interrupt

from perdure.errors import Damaged
from perdure.saver import Saver
from tests.support.raw import config, put, values_of
from tests.support.scripts import Graph, Savers, plain
from tests.support.stories import build_delta

LONG = "secret " * 20
A: RunnableConfig = {"configurable": {"thread_id": "a"}}


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    items: list[Any]
    count: int


def build(saver: BaseCheckpointSaver[Any], *nodes: Any) -> Graph:
    builder = StateGraph(State)
    sequence: Any = [(f"{n}", node) for n, node in enumerate(nodes)]
    builder.add_sequence(sequence)
    builder.add_edge(START, "0")
    return builder.compile(checkpointer=saver)


def reply(state: State) -> Any:
    return {"messages": [AIMessage("reply " * 20, id=f"r{len(state['messages'])}")]}


def nothing(state: State) -> Any:
    return None


def scribble(state: Any) -> Any:
    for message in state["messages"]:
        message.content = "scribbled"
        message.additional_kwargs["scribbled"] = True
    return {"count": state.get("count", 0) + 1}


@pytest.mark.parametrize("memory", ["warm", "cold"])
def test_messages_changed_in_place_but_not_returned_do_not_reach_the_next_run(
    url: str, memory: str
) -> None:
    with Savers(lambda: Saver(url), memory == "cold") as savers:
        for n in range(3):
            graph = build(savers.next(), scribble, reply, scribble)
            said = {"messages": [HumanMessage(f"hello {n} " * 20, id=f"h{n}")]}
            graph.invoke(said, A, durability="sync")
        found = build(savers.next(), reply).get_state(A).values["messages"]
    with Saver(url) as fresh:
        stored = build(fresh, reply).get_state(A).values["messages"]
    assert found == stored
    # A message is stored as it was when the step that brought it ended.
    assert [m.content for m in stored if m.id.startswith("h")] == [
        f"hello {n} " * 20 for n in range(3)
    ]
    assert [m.content for m in stored if m.id.startswith("r")] == ["reply " * 20] * 3


def test_whoever_scribbles_on_the_state_they_asked_for_changes_nothing(url: str) -> None:
    with Saver(url) as saver:
        graph = build(saver, reply)
        graph.invoke({"messages": [HumanMessage("hello " * 20, id="h")], "items": [{"a": [1]}]}, A)
        before = plain(graph.get_state(A).values)
        for _ in range(2):
            state = graph.get_state(A).values
            scribble(state)
            state["items"][0]["a"].append(2)
            state["messages"].clear()
            assert plain(graph.get_state(A).values) == before
        graph.update_state(A, {"count": 1})
        scribble(graph.get_state(A).values)
        graph.update_state(A, {"messages": [HumanMessage("more", id="m")]})
        contents = [m.content for m in graph.get_state(A).values["messages"]]
        assert contents == ["hello " * 20, "reply " * 20, "more"]


# -- LangGraph's DeltaChannel


CHANNELS = ["fast", "slow", "never", "messages", "no such channel"]


async def is_the_same_history(saver: Saver, graph: Graph) -> int:
    seen = 0
    for snapshot in list(graph.get_state_history(A)):
        ours = saver.get_delta_channel_history(config=snapshot.config, channels=CHANNELS)
        theirs = BaseCheckpointSaver.get_delta_channel_history(
            saver, config=snapshot.config, channels=CHANNELS
        )
        assert plain(ours) == plain(theirs)
        again = await saver.aget_delta_channel_history(config=snapshot.config, channels=CHANNELS)
        assert plain(again) == plain(theirs)
        seen += 1
    return seen


async def test_the_history_of_delta_channels_is_what_langgraph_would_find(url: str) -> None:
    with Saver(url) as saver:
        graph = build_delta(saver, [])
        for n in range(6):
            graph.invoke({"fast": [n], "messages": [HumanMessage(f"{n} " * 50, id=f"h{n}")]}, A)
        past = list(graph.get_state_history(A))
        graph.invoke({"fast": ["fork"]}, past[5].config)
        graph.update_state(past[9].config, {"slow": ["from outside"]}, "grow")
        assert await is_the_same_history(saver, graph) > 24


def test_the_history_of_a_delta_channel_may_be_longer_than_a_page(sqlite_url: str) -> None:
    with Saver(sqlite_url) as saver:
        graph = build_delta(saver, [])
        for n in range(60):
            graph.invoke({"fast": [n]}, A)
        found = saver.get_delta_channel_history(config=A, channels=["never", "fast"])
        assert len(found["never"]["writes"]) == 60
        assert graph.get_state(A).values["never"] == {str(n): {"n": n} for n in range(60)}
    with Saver(sqlite_url) as cold:
        again = cold.get_delta_channel_history(config=A, channels=["never", "fast"])
        assert plain(again) == plain(found)


# -- one saver for many graphs


@pytest.mark.parametrize("memory", ["warm", "cold"])
def test_a_list_may_become_a_dict_and_a_dict_a_list(url: str, memory: str) -> None:
    big_list, big_dict = ["x" * 1000, "y" * 1000], {"p": "x" * 1000, "q": "y" * 1000}
    small_dict, small_list = {"a": "b" * 70, "c": 1}, [["a", "b" * 70], ["c", 1]]
    with Savers(lambda: Saver(url), memory == "cold") as savers:
        for value in (big_list, small_dict, big_dict, small_list, big_list, small_dict):
            build(savers.next(), nothing).update_state(A, {"items": value})
            graph = build(savers.next(), nothing)
            assert graph.get_state(A).values["items"] == value
            assert next(graph.get_state_history(A)).values["items"] == value


@pytest.mark.parametrize("length", [1, 2, 200])
@pytest.mark.timeout(60)
async def test_a_cycle_of_parents_is_damage_and_not_an_endless_walk(
    length: int, sqlite_url: str
) -> None:
    with Saver(sqlite_url, "async") as saver:
        ids = [f"{n:04}" for n in range(length)]
        for n, id in enumerate(ids):
            checkpoint: Any = {**empty_checkpoint(), "id": id}
            parent: RunnableConfig = {
                "configurable": {**A["configurable"], "checkpoint_id": ids[n - 1]}
            }
            saver.put(parent, checkpoint, {"source": "loop", "step": n, "parents": {}}, {})
        told = rf"checkpoint '{ids[-1]}' of thread 'a' is damaged: it is among its own ancestors"
        with pytest.raises(Damaged, match=told):
            saver.get_delta_channel_history(config=A, channels=["x"])
        with pytest.raises(Damaged, match=told):
            await saver.aget_delta_channel_history(config=A, channels=["x"])
        assert len(list(saver.list(A))) == length  # the rest can be read
        saver.prune(["a"])
        saver.delete_thread("a")


# -- what the process remembers


def redact(state: State) -> Any:
    state["messages"][0].content = "REDACTED"
    return {"messages": [state["messages"][0]]}


def redact_by_overwrite(state: State) -> Any:
    state["messages"][0].content = "REDACTED"
    return {"messages": Overwrite(state["messages"])}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("node", [redact, redact_by_overwrite])
def test_a_message_edited_in_place_and_returned_is_stored_edited(
    sqlite_url: str, node: Any, durability: Any
) -> None:
    with Saver(sqlite_url) as saver:
        graph = build(saver, node)
        graph.update_state(config(), {"messages": [HumanMessage(LONG, id="1")]}, as_node="0")
        graph.invoke({"count": 1}, config(), durability=durability)
    with Saver(sqlite_url) as saver:
        assert values_of(saver)["messages"][0].content == "REDACTED"


def test_a_message_with_an_array_in_it_can_be_loaded_again_and_again(sqlite_url: str) -> None:
    message = ToolMessage("x" * 80, tool_call_id="1", id="1", artifact=np.arange(5))
    with Saver(sqlite_url) as saver:
        graph = build(saver, lambda state: {"messages": [message]})
        for _ in range(3):
            graph.invoke({"count": 1}, config())
        assert (values_of(saver)["messages"][0].artifact == np.arange(5)).all()


def test_an_attribute_put_on_a_message_and_not_returned_does_not_live_on(sqlite_url: str) -> None:
    seen: list[Any] = []

    def scribble(state: State) -> Any:
        message: Any = state["messages"][0]
        seen.append(getattr(message, "foo", None))
        message.foo = "scribbled"
        return {"count": 2}

    with Saver(sqlite_url) as saver:
        graph = build(saver, scribble)
        graph.update_state(config(), {"messages": [HumanMessage(LONG, id="1")]}, as_node="0")
        for _ in range(3):
            graph.invoke({"count": 1}, config())
    assert seen == [None, None, None]


def test_an_answer_goes_to_its_question_though_the_next_machine_is_behind_in_time(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(state: State) -> Any:
        return {"messages": [HumanMessage(" ".join(interrupt(f"q{n}") for n in (1, 2, 3)))]}

    def asked(command: Any) -> Any:
        with Saver(sqlite_url) as saver:
            found = build(saver, ask).invoke(command, config())
            return found.get("__interrupt__", found["messages"])[0]

    assert asked({"count": 1}).value == "q1"
    assert asked(Command(resume="one")).value == "q2"
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 5_000_000_000)
    assert asked(Command(resume="two")).value == "q3"
    assert asked(Command(resume="three")).content == "one two three"


def _put_and_end(url: str) -> None:
    put(Saver(url, "exit"), {"x": LONG})


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_what_is_queued_is_stored_when_a_child_of_multiprocessing_ends(
    sqlite_url: str, method: str
) -> None:
    if method == "fork" and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=_put_and_end, args=(sqlite_url,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    with Saver(sqlite_url) as saver:
        assert values_of(saver) == {"x": LONG}


def test_the_bytes_of_forgotten_threads_are_not_counted_for_ever(sqlite_url: str) -> None:
    with Saver(sqlite_url, cache_bytes=400_000) as saver:
        for n in range(12):
            where = None
            for size in (100_000, 200_000, 300_000):
                where = put(saver, {"x": ["y" * size]}, f"thread {n}", parent=where)
        for n in range(12):
            saver.delete_thread(f"thread {n}")
        assert saver.cache._total == 0
