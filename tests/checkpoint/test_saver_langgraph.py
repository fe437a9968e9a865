"""A graph behaves with our saver as it does with LangGraph's own in memory.

Every story is played on LangGraph's `InMemorySaver` and on ours, blocking and as coroutines, with
one saver for all calls (its memory warm) and with a new one for each (cold, as after a crash). Each
database has two of these four pairs. The results of all calls, the whole history and the calls of
the nodes must be the same.
"""

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import perdure
from tests.support import stories
from tests.support.polling import auntil
from tests.support.scripts import Api, Savers, play
from tests.support.stories import Branches, is_left_stored

STORIES = stories.STORIES

EVERY_STORY = pytest.mark.parametrize("name", sorted(STORIES))


def is_told_the_same(name: str, savers: Savers, api: Api) -> None:
    thread_id = f"{name}, {api}"
    expected = play(STORIES[name], Savers(InMemorySaver), api, thread_id)
    assert play(STORIES[name], savers, api, thread_id) == expected


@EVERY_STORY
@pytest.mark.parametrize(("api", "temper"), [("blocking", "cold"), ("coroutines", "warm")])
def test_a_story_on_a_server_is_the_same_as_in_memory(
    shared_url: str, name: str, api: Api, temper: str
) -> None:
    is_told_the_same(name, Savers(lambda: perdure.Saver(shared_url), temper == "cold"), api)


@pytest.mark.slow
@EVERY_STORY
def test_an_encrypted_story_is_the_same_as_in_memory(sqlite_url: str, name: str) -> None:
    keys = {"second": b"2" * 32, "first": b"1" * 16}
    is_told_the_same(
        name, Savers(lambda: perdure.Saver(sqlite_url, encryption_keys=keys), True), "blocking"
    )


@pytest.mark.slow
@EVERY_STORY
def test_a_story_that_is_put_through_at_once_is_the_same_as_in_memory(
    sqlite_url: str, name: str
) -> None:
    is_told_the_same(name, Savers(lambda: perdure.Saver(sqlite_url, "exit")), "blocking")


@pytest.mark.parametrize("waits_for_left", [True, False])
async def test_what_a_failed_sibling_leaves_is_a_question_of_timing_in_langgraph_too(
    sqlite_url: str, waits_for_left: bool
) -> None:
    """So the story of a node that fails beside one that succeeds fixes the order."""

    async def left_behind(saver: BaseCheckpointSaver[Any]) -> list[Any]:
        async def left(state: Branches) -> Branches:
            if not waits_for_left:
                await asyncio.Event().wait()
            return {"results": ["left"]}

        async def right(state: Branches) -> Branches:
            if waits_for_left:
                await auntil(lambda: asyncio.to_thread(is_left_stored))
            raise ConnectionError("the far side is away")

        builder = StateGraph(Branches)
        for node in (left, right):
            builder.add_node(node)
            builder.add_edge(START, node.__name__)
        graph = builder.compile(checkpointer=saver)
        with pytest.raises(ConnectionError):
            await graph.ainvoke({"count": 0}, {"configurable": {"thread_id": "t"}})
        state = await graph.aget_state({"configurable": {"thread_id": "t"}})
        return sorted((task.name, task.result) for task in state.tasks)

    async with perdure.Saver(sqlite_url) as saver:
        found = await left_behind(saver)
    assert found == await left_behind(InMemorySaver())
    assert dict(found)["left"] == ({"results": ["left"]} if waits_for_left else None)
