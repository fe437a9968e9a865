"""A thread copied from one of LangGraph's savers goes on with ours, with the versions it came with.

LangGraph's savers number the versions of channels with texts, ours with integers. A thread keeps
the kind it began with.
"""

import itertools
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from perdure.errors import Error
from perdure.saver import Saver
from tests.support.scripts import Graph

A: RunnableConfig = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}


def joined(left: list[str], right: list[str]) -> list[str]:
    return [*left, *right]


class State(TypedDict, total=False):
    log: Annotated[list[str], joined]
    answer: str


def build(saver: BaseCheckpointSaver[Any]) -> Graph:
    builder = StateGraph(State)
    builder.add_node("draft", lambda state: {"log": ["drafted " * 20]})
    builder.add_node("review", lambda state: {"answer": interrupt("send it?")})
    builder.add_node("send", lambda state: {"log": [f"sent: {state['answer']}"]})
    builder.add_edge(START, "draft").add_edge("draft", "review").add_edge("review", "send")
    return builder.compile(checkpointer=saver)


def copy(source: BaseCheckpointSaver[Any], target: Saver) -> None:
    """What a user's own script does: every checkpoint, oldest first, with its pending writes."""
    for one in reversed(list(source.list(A))):
        for task, writes in itertools.groupby(one.pending_writes or (), lambda write: write[0]):
            target.put_writes(one.config, [write[1:] for write in writes], task)
        parent = one.parent_config or A
        versions = one.checkpoint["channel_versions"]
        target.put(parent, one.checkpoint, one.metadata, versions)


def test_a_copied_thread_keeps_texts_as_versions(sqlite_url: str) -> None:
    stock = InMemorySaver()
    build(stock).invoke({"log": ["begun"]}, A)
    with Saver(sqlite_url) as saver:
        copy(stock, saver)
        build(saver).invoke(Command(resume="yes"), A)
        found = saver.get_tuple(A)
        assert found is not None
        assert {type(one) for one in found.checkpoint["channel_versions"].values()} == {str}


def test_a_copied_thread_forks_from_any_of_its_checkpoints(sqlite_url: str) -> None:
    stock = InMemorySaver()
    build(stock).invoke({"log": ["begun"]}, A)
    with Saver(sqlite_url) as saver:
        copy(stock, saver)
        graph = build(saver)
        for snapshot in list(graph.get_state_history(A)):
            moved = graph.update_state(snapshot.config, {"log": ["forked"]}, as_node="draft")
            assert graph.get_state(moved).values["log"][-1] == "forked"
            assert "__interrupt__" in graph.invoke(None, moved)


def test_the_next_version_is_of_the_same_kind_and_sorts_behind() -> None:
    with Saver("sqlite:///:memory:") as saver:
        assert saver.get_next_version(None, None) == 1
        assert saver.get_next_version(41, None) == 42
        stock = InMemorySaver().get_next_version(None, None)
        texts = [stock]
        for _ in range(12):
            texts.append(saver.get_next_version(texts[-1], None))
        assert texts == sorted(texts)
        assert texts[-1].startswith(f"{13:032}.0")
        assert len({*texts}) == len(texts)
        # And LangGraph's saver can go on from there.
        assert InMemorySaver().get_next_version(texts[-1], None) > texts[-1]


def test_a_text_without_a_number_has_no_next_version() -> None:
    with (
        Saver("sqlite:///:memory:") as saver,
        pytest.raises(Error, match="'draft' does not begin with a number"),
    ):
        saver.get_next_version("draft", None)
