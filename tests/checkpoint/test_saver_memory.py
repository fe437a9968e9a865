"""What a process remembers of a thread never changes what is seen or stored.

The saver hands a run the very message objects of the run before it. These tests try to make that
visible: by changes in place, by messages with odd fields, by looking from outside, by clocks that
disagree, and by savers that nobody remembers.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, interrupt

from perdure.saver import Saver
from tests.support.raw import config, put, values_of
from tests.support.scripts import Graph

LONG = "secret " * 20


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    go: int


def one_node(saver: Saver, node: Any) -> Graph:
    builder = StateGraph(Chat)
    builder.add_node("n", node)
    builder.add_edge(START, "n")
    return builder.compile(checkpointer=saver)


def redact(state: Chat) -> Any:
    state["messages"][0].content = "REDACTED"
    return {"messages": [state["messages"][0]]}


def redact_by_overwrite(state: Chat) -> Any:
    state["messages"][0].content = "REDACTED"
    return {"messages": Overwrite(state["messages"])}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("node", [redact, redact_by_overwrite])
def test_a_message_edited_in_place_and_returned_is_stored_edited(
    sqlite_url: str, node: Any, durability: Any
) -> None:
    with Saver(sqlite_url) as saver:
        graph = one_node(saver, node)
        graph.update_state(config(), {"messages": [HumanMessage(LONG, id="1")]}, as_node="n")
        graph.invoke({"go": 1}, config(), durability=durability)
    with Saver(sqlite_url) as saver:
        assert values_of(saver)["messages"][0].content == "REDACTED"


def test_a_message_with_an_array_in_it_can_be_loaded_again_and_again(sqlite_url: str) -> None:
    message = ToolMessage("x" * 80, tool_call_id="1", id="1", artifact=np.arange(5))
    with Saver(sqlite_url) as saver:
        graph = one_node(saver, lambda state: {"messages": [message]})
        for _ in range(3):
            graph.invoke({"go": 1}, config())
        assert (values_of(saver)["messages"][0].artifact == np.arange(5)).all()


def test_an_attribute_put_on_a_message_and_not_returned_does_not_live_on(sqlite_url: str) -> None:
    seen: list[Any] = []

    def scribble(state: Chat) -> Any:
        message: Any = state["messages"][0]
        seen.append(getattr(message, "foo", None))
        message.foo = "scribbled"
        return {"go": 2}

    with Saver(sqlite_url) as saver:
        graph = one_node(saver, scribble)
        graph.update_state(config(), {"messages": [HumanMessage(LONG, id="1")]}, as_node="n")
        for _ in range(3):
            graph.invoke({"go": 1}, config())
    assert seen == [None, None, None]


def test_an_answer_goes_to_its_question_though_the_next_machine_is_behind_in_time(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(state: Chat) -> Any:
        return {"messages": [HumanMessage(" ".join(interrupt(f"q{n}") for n in (1, 2, 3)))]}

    def asked(command: Any) -> Any:
        with Saver(sqlite_url) as saver:
            found = one_node(saver, ask).invoke(command, config())
            return found.get("__interrupt__", found["messages"])[0]

    assert asked({"go": 1}).value == "q1"
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
        assert saver._cache._total == 0
