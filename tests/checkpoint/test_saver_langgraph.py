"""A graph behaves with our saver as it does with LangGraph's own in memory.

Every story is played on LangGraph's `InMemorySaver` and on ours, blocking and as coroutines, with
one saver for all calls (its memory warm) and with a new one for each (cold, as after a crash). Each
database has two of these four pairs. The results of all calls, the whole history and the calls of
the nodes must be the same.
"""

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import perdure
from tests.support import channel_stories, flow_stories, stories
from tests.support.scripts import Api, Savers, play

MODULES = (stories, flow_stories, channel_stories)  # they fill one table
STORIES = stories.STORIES

EVERY_STORY = pytest.mark.parametrize("name", sorted(STORIES))


def is_told_the_same(name: str, savers: Savers, api: Api) -> None:
    thread_id = f"{name}, {api}"
    expected = play(STORIES[name], Savers(InMemorySaver), api, thread_id)
    assert play(STORIES[name], savers, api, thread_id) == expected


@EVERY_STORY
@pytest.mark.parametrize(
    ("api", "temper"),
    [("blocking", "warm"), pytest.param("coroutines", "cold", marks=pytest.mark.slow)],
)
def test_a_story_on_sqlite_is_the_same_as_in_memory(
    sqlite_url: str, name: str, api: Api, temper: str
) -> None:
    is_told_the_same(name, Savers(lambda: perdure.Saver(sqlite_url), temper == "cold"), api)


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
