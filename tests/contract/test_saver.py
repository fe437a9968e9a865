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
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

import perdure
from perdure import Saver
from perdure.testing import watch_points
from tests.support import raw, stories
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


def test_nor_when_one_node_runs_again_and_again(sqlite_url: str) -> None:
    with Late(sqlite_url) as saver:
        builder = StateGraph(State)
        builder.add_node("step", step)
        builder.add_edge(START, "step")
        builder.add_conditional_edges("step", lambda state: "step" if state["count"] < 5 else END)
        builder.compile(checkpointer=saver).invoke({"count": 0}, on("a"))
        assert saver.checked == 6
        assert saver.early == []


def test_nor_in_a_process_that_has_just_loaded_the_thread(sqlite_url: str) -> None:
    for _ in range(3):
        with Late(sqlite_url) as saver:
            line(saver).invoke({"count": 0}, on("a"))
            assert saver.checked == 3
            assert saver.early == []


def test_nor_when_a_run_goes_on_from_an_older_checkpoint(sqlite_url: str) -> None:
    with Late(sqlite_url) as saver:
        graph = line(saver)
        for _ in range(2):
            graph.invoke({"count": 0}, on("a"))
        past = list(graph.get_state_history(on("a")))
        for snapshot in (past[1], past[2], past[5], past[-1]):
            graph.invoke(None, snapshot.config)
        assert saver.early == []


def test_nor_when_a_run_is_given_input_at_an_older_checkpoint(sqlite_url: str) -> None:
    with Late(sqlite_url) as saver:
        graph = line(saver)
        for _ in range(2):
            graph.invoke({"count": 0}, on("a"))
        past = list(graph.get_state_history(on("a")))
        graph.invoke({"count": 9}, past[4].config)
        graph.invoke({"count": 9}, past[2].config)
        assert saver.early == []


def test_nor_after_the_state_was_updated(sqlite_url: str) -> None:
    with Late(sqlite_url) as saver:
        graph = line(saver)
        graph.update_state(on("a"), {"count": 3}, "__start__")
        graph.invoke(None, on("a"))
        graph.update_state(on("a"), {"count": 3}, "first")
        graph.invoke(None, on("a"))
        assert saver.early == []


def test_nor_for_a_fan_out(sqlite_url: str) -> None:
    builder = StateGraph(State)
    builder.add_node("plan", lambda state: None)
    builder.add_node("part", lambda given: {"log": ["y" * 100]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("part", {"n": n}) for n in range(4)])
    with Late(sqlite_url) as saver:
        graph = builder.compile(checkpointer=saver)
        for _ in range(2):
            saver.tasks = 1
            for event in graph.stream(
                {"count": 0}, on("a"), stream_mode="tasks", durability="sync"
            ):
                if isinstance(event, dict) and event.get("name") == "part":
                    saver.tasks = 4
        assert saver.early == []


def test_nor_when_the_answer_to_a_question_comes_to_another_process(sqlite_url: str) -> None:
    def ask(state: State) -> Any:
        return {"log": [interrupt("sure?")]}

    def build(saver: Saver) -> Graph:
        builder = StateGraph(State)
        builder.add_node("ask", ask)
        builder.add_node("beside", step)
        builder.add_edge(START, "ask")
        builder.add_edge(START, "beside")
        return builder.compile(checkpointer=saver)

    with Saver(sqlite_url) as first:
        build(first).invoke({"count": 0}, on("a"))
    with Late(sqlite_url, tasks=2) as saver:
        build(saver).invoke(Command(resume="yes"), on("a"))
        assert saver.checked == 1
        assert saver.early == []


def test_who_reads_sees_what_was_put_before_though_its_commit_is_under_way(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, go_on = threading.Event(), threading.Event()

    def hook(point: str) -> None:
        if point == "commit.before" and threading.current_thread().name == "perdure":
            under_way.set()
            go_on.wait(60)

    with Saver(url, "async") as saver:
        graph = line(saver)
        graph.invoke({"count": 0}, on("a"))
        saver.flush()
        watch_points(hook)
        graph.update_state(on("a"), {"count": 77})
        assert under_way.wait(60)
        read: list[Any] = []
        reader = threading.Thread(target=lambda: read.append(graph.get_state(on("a"))))
        reader.start()
        reader.join(0.3)
        go_on.set()
        reader.join()
        watch_points(None)
        assert read[0].values["count"] == 77


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and stored again"])
def test_a_put_whose_base_another_saver_deletes_before_its_commit_is_stored_whole(
    url: str, again: bool
) -> None:
    first = {"log": [raw.LONG], "text": raw.LONG}
    second = {"log": [raw.LONG, "grown " * 30], "text": raw.LONG}
    with Saver(url, "async") as saver, Saver(url) as other:
        base = raw.put(saver, first)
        saver.flush()
        saver.journal.set_interval(3600)  # the next put is formed, and committed when we say so
        stored = saver.get_tuple(base)
        assert stored is not None
        checkpoint = {**stored.checkpoint, "channel_values": second, "id": "9" * 32}
        put = saver.put(base, checkpoint, stored.metadata, {"log": 2})  # type: ignore[arg-type]
        other.delete_thread("t")
        if again:  # with the id of the base, and other values
            fewer = {**stored.checkpoint, "channel_values": {"log": ["other"]}}
            other.put(raw.config(), fewer, stored.metadata, {"log": 1})  # type: ignore[arg-type]
        saver.flush()
    with Saver(url) as cold:
        assert raw.values_of(cold, put) == second


def test_a_put_and_its_writes_that_are_sent_twice_are_stored_once(url: str) -> None:
    values = {"log": [raw.LONG], "text": raw.LONG}
    with Saver(url, "async") as saver:
        sent: list[Any] = []
        defer = saver.journal.defer

        def note(op: Any, **how: Any) -> Any:
            sent.append(op)
            return defer(op, **how)

        saver.journal.defer = note  # type: ignore[method-assign]
        base = raw.put(saver, {})
        saver.put_writes(base, [("log", [raw.LONG]), ("text", raw.LONG)], "task")
        put = raw.put(saver, values, parent=base)
        saver.flush()
        for op in sent:  # as after a reply that was lost
            saver.journal.do(op)
    with Saver(url) as cold:
        assert raw.values_of(cold, put) == values
        assert [one.config for one in cold.list(raw.config())] == [put, base]
        found = cold.get_tuple(base)
        assert found is not None
        assert len(found.pending_writes or ()) == 2
