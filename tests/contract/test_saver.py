"""The saver alone: as LangGraph's own, ordered, and safe to share."""

from __future__ import annotations

import operator
import threading
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Self, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import perdure
from perdure import Saver
from tests.support import stories
from tests.support.scripts import Api, Graph, Savers, play


async def failures(saver: BaseCheckpointSaver[Any], capability: Capability) -> list[str]:
    """The tests of a capability that a saver does not pass; at least one must have run."""

    @checkpointer_test(name="perdure")
    async def given() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield saver

    report = await validate(given, capabilities={capability.value})
    result = report.results[capability.value]
    assert result.detected
    assert result.tests_passed + result.tests_failed > 0
    return result.failures


@pytest.mark.parametrize("capability", list(Capability), ids=lambda one: str(one.value))
async def test_every_conformance_test_passes_through_the_coroutines(
    url: str, capability: Capability
) -> None:
    async with perdure.Saver(url) as saver:
        assert await failures(saver, capability) == []


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


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    count: int


class Late(Saver):
    """Its writes arrive only when the checkpoint that is made of them was handed over.

    After each checkpoint it looks from outside: the writes of the step must be there.
    """

    def __init__(self, url: str, tasks: int = 1) -> None:
        super().__init__(url, "sync")
        self.outside = Saver(url)
        self.tasks = tasks
        self.checked = 0
        self.early: list[Any] = []
        self.handed_over = threading.Event()

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if threading.current_thread() is not threading.main_thread():
            self.handed_over.wait(60)
        super().put_writes(config, writes, task_id, task_path)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self.handed_over.set()
        stored = super().put(config, checkpoint, metadata, new_versions)
        self.handed_over.clear()
        if metadata["source"] == "loop":
            tasks = 1 if metadata["step"] == 0 else self.tasks
            parent = self.outside.get_tuple(config)
            assert parent is not None
            writes = parent.pending_writes or ()
            found = {task for task, channel, _ in writes if channel not in WRITES_IDX_MAP}
            self.checked += 1
            if len(found) < tasks:
                self.early.append((metadata["step"], found, tasks))
        return stored

    def close(self) -> None:
        super().close()
        self.outside.close()

    def __enter__(self) -> Self:
        super().__enter__()
        return self


def step(state: State) -> Any:
    return {"log": ["x" * 100], "count": state.get("count", 0) + 1}


def line(saver: Saver, **compiling: Any) -> Graph:
    builder = StateGraph(State)
    builder.add_sequence([("first", step), ("second", step)])
    builder.add_edge(START, "first")
    return builder.compile(checkpointer=saver, **compiling)


def on(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def test_a_put_is_never_durable_before_the_writes_of_its_step(sqlite_url: str) -> None:
    with Late(sqlite_url) as saver:
        for _ in range(3):
            line(saver).invoke({"count": 0}, on("a"))
        assert saver.checked == 9
        assert saver.early == []
