"""What the config of a task holds."""

from __future__ import annotations

import operator
import weakref
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, interrupt

from perdure.langgraph_port import configs
from perdure.langgraph_port.configs import TaskInfo

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Empty(TypedDict, total=False):
    value: Any


def one(function: Any, **options: Any) -> StateGraph[Any]:
    builder: StateGraph[Any] = StateGraph(Empty)
    return builder.add_node("node", function, **options).add_edge(START, "node")


def here() -> dict[str, Any]:
    found: dict[str, Any] = get_config()["configurable"]
    return found


def test_a_task_knows_its_namespace_its_checkpoint_and_its_attempt() -> None:
    tasks: list[TaskInfo] = []

    def fails_once(state: Empty) -> None:
        tasks.append(configs.task_info(here()))
        if len(tasks) == 1:
            raise ConnectionError("again")

    saver = InMemorySaver()
    retry = RetryPolicy(initial_interval=0, jitter=False)
    one(fails_once, retry_policy=retry).compile(saver).invoke({}, CONFIG)
    started = [found.config["configurable"]["checkpoint_id"] for found in saver.list(CONFIG)][1]
    assert [task.attempt for task in tasks] == [1, 2]
    assert {task.checkpoint_id for task in tasks} == {started}
    assert {task.namespace.partition(":")[0] for task in tasks} == {"node"}


def test_attempts_of_one_execution_share_an_object_that_the_next_execution_does_not() -> None:
    executions: list[Any] = []

    def asks(state: Empty) -> None:
        executions.append(configs.task_info(here()).execution)
        if len(executions) == 1:
            raise ConnectionError("again")
        interrupt("?")

    retry = RetryPolicy(initial_interval=0, jitter=False)
    graph = one(asks, retry_policy=retry).compile(InMemorySaver())
    graph.invoke({}, CONFIG)
    graph.invoke(Command(resume="!"), CONFIG)
    first, second, resumed = executions
    assert first is second
    assert first is not resumed
    assert weakref.ref(first)() is first


def test_each_attempt_at_a_node_has_a_scratchpad_of_its_own() -> None:
    pads: list[Any] = []

    def fails_once(state: Empty) -> None:
        pads.append(configs.task_info(here()).scratchpad)
        if len(pads) == 1:
            raise ConnectionError("again")

    retry = RetryPolicy(initial_interval=0, jitter=False)
    one(fails_once, retry_policy=retry).compile().invoke({})
    first, second = pads
    assert first is not second


def test_a_task_is_known_by_its_scratchpad_and_other_code_has_none() -> None:
    found: list[bool] = []
    one(lambda _: found.append(configs.is_in_task(here()))).compile().invoke({})
    assert found == [True]
    with configs.running_with({"configurable": {"thread_id": "t"}}):
        assert not configs.is_in_task(here())
        assert configs.task_info(here()) == TaskInfo("", None, 1, None)


def test_the_scratchpad_of_the_node_outside_is_reached_from_the_one_inside() -> None:
    pads: list[Any] = []

    def look(state: Empty) -> None:
        pads.append(configs.task_info(here()).scratchpad)

    inner = one(look).compile(checkpointer=False)
    middle = one(inner).compile(checkpointer=False)

    def outside(state: Empty) -> Any:
        look(state)
        return middle.invoke({})

    one(outside).compile(InMemorySaver()).invoke({}, CONFIG)
    outer, innermost = pads
    assert outer is not innermost
    assert configs.outer_scratchpad(innermost, 0) is innermost
    assert configs.outer_scratchpad(innermost, 2) is outer
    assert configs.outer_scratchpad(innermost, 9) is outer


class Notes(InMemorySaver):
    """Notes the configs with which it is asked for a checkpoint, and handed one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self.handed: list[Any] = []

    def get_tuple(self, config: RunnableConfig) -> Any:
        self.asked.append(config["configurable"])
        return super().get_tuple(config)

    def put(self, config: RunnableConfig, *rest: Any) -> RunnableConfig:
        self.handed.append(config["configurable"])
        return super().put(config, *rest)


def test_a_saver_can_tell_a_graph_that_runs_from_one_that_is_looked_at() -> None:
    saver = Notes()
    graph = one(lambda _: None).compile(saver)
    graph.invoke({}, CONFIG)
    graph.get_state(CONFIG)
    assert [configs.is_graph_run(asked) for asked in saver.asked] == [True, False]


def test_a_task_finds_the_saver_and_the_durability_of_its_graph_and_the_saver_the_latter() -> None:
    found: list[Any] = []

    def look(state: Empty) -> None:
        found.append((configs.checkpointer_of(here()), configs.durability_of(here())))

    for durability in ("sync", "async", "exit"):
        saver = Notes()
        one(look).compile(saver).invoke({}, CONFIG, durability=durability)
        assert found.pop() == (saver, durability)
        assert {configs.durability_of(handed) for handed in saver.handed} == {durability}


def test_the_runtime_of_a_task_has_the_store_of_its_graph() -> None:
    found: list[Any] = []
    store = InMemoryStore()
    graph = one(lambda _: found.append(configs.runtime_of(here()))).compile(store=store)
    graph.invoke({})
    assert found[0].store is store


def test_code_that_is_called_with_a_runtime_uses_its_store() -> None:
    found: list[Any] = []
    store = InMemoryStore()
    config: Any = {"configurable": {}}
    configs.set_runtime(config["configurable"], Runtime(store=store))
    with configs.running_with(config):
        found.append(get_store())
        one(lambda _: found.append(get_store())).compile().invoke({}, config)
    assert [one is store for one in found] == [True, True]


def test_a_task_names_the_checkpoints_it_belongs_to() -> None:
    found: list[dict[str, str]] = []

    def look(state: Empty) -> None:
        found.append(configs.checkpoints_above(here()))

    saver = InMemorySaver()
    one(one(look).compile()).compile(saver).invoke({}, CONFIG)
    [above] = found
    stored = {
        (one.config["configurable"]["checkpoint_ns"], one.config["configurable"]["checkpoint_id"])
        for one in saver.list({"configurable": {"thread_id": "t"}})
    }
    assert [ns.partition(":")[0] for ns in sorted(above)] == ["", "node"]
    assert stored.issuperset(above.items())


def test_a_functional_task_belongs_to_one_checkpoint_of_its_entrypoint() -> None:
    found: list[dict[str, str]] = []

    @task
    def look() -> None:
        found.append(configs.checkpoints_above(here()))

    saver = InMemorySaver()

    @entrypoint(saver)
    def flow(given: int) -> None:
        look().result()

    flow.invoke(1, CONFIG)
    [above] = found
    assert list(above) == [""]


def test_code_runs_with_a_config_for_as_long_as_it_is_told() -> None:
    with configs.running_with({"tags": ["a"]}):
        with configs.running_with({"tags": ["b"]}):
            assert get_config()["tags"] == ["b"]
        assert get_config()["tags"] == ["a"]


T: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def logging(function: Any) -> StateGraph[Any]:
    return StateGraph(Log).add_node("node", function).add_edge(START, "node")


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_the_config_of_a_task_alone_has_the_key_of_a_saver(saver: Any) -> None:
    seen: list[Any] = []

    def node(state: Log) -> None:
        seen.append(configs.is_nested(get_config()["configurable"]))
        inner = logging(lambda state: None).compile()
        full = configs.full_config(inner, None)["configurable"]
        seen.append(configs.is_nested(full))
        full = configs.full_config(inner, T)["configurable"]
        seen.append(configs.is_nested(full))

    graph = logging(node).compile(checkpointer=saver)
    assert not configs.is_nested(configs.full_config(graph, T)["configurable"])
    graph.invoke({}, T)
    assert seen == [True, True, False], "a thread of its own is no part of the outer run"


def test_a_graph_adds_its_own_config() -> None:
    graph = logging(lambda state: None).compile().with_config({"configurable": {"team": "night"}})
    found = configs.full_config(graph, T)["configurable"]
    assert found == {"thread_id": "t", "team": "night"}


def test_a_hidden_key_reaches_tasks_and_neither_streams_nor_metadata() -> None:
    key, seen = f"{configs.HIDDEN}mine", []
    saver = InMemorySaver()
    graph = logging(lambda state: seen.append(get_config()["configurable"][key])).compile(saver)
    config: Any = {"configurable": {**T["configurable"], key: "secret"}}
    chunks = list(graph.stream({}, config, stream_mode=["checkpoints", "debug", "tasks"]))
    assert seen == ["secret"]
    assert "secret" not in repr([chunks, list(saver.list(T))])


def test_keys_of_a_config_that_are_not_the_users_are_known() -> None:
    found: list[Any] = []
    inner = logging(lambda _: found.append(get_config()["configurable"])).compile()
    config: Any = {"configurable": {"thread_id": "t", "mine": 1}}
    logging(inner).compile(InMemorySaver()).invoke({}, config)
    assert {key for key in found[0] if not configs.is_own_key(key)} == {"mine"}


def test_a_place_is_named_by_a_checkpoint_not_by_a_namespace() -> None:
    place_of, root = configs.place_of, configs.root_checkpoint
    assert place_of({"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": None}) == {}
    assert place_of({"checkpoint_ns": "node:1"}) == {}
    assert root(place_of({"checkpoint_ns": "", "checkpoint_id": "c"})) == "c"
    assert root({"checkpoint_map": {"": "c"}, "checkpoint_id": "d"}) == "c"
    inner = {"checkpoint_ns": "node:1", "checkpoint_map": {"": "c", "node:1": "d"}}
    assert place_of(inner) == inner
    assert root(inner) is None


def test_a_graph_begins_at_the_place_of_its_config() -> None:
    graph = logging(lambda state: {"log": ["ran"]}).compile(InMemorySaver())
    graph.invoke({"log": ["in"]}, T)
    first = list(graph.get_state_history(T))[-2]
    place = configs.place_of(first.config["configurable"])
    assert graph.invoke(None, {"configurable": {**T["configurable"], **place}}) == {
        "log": ["in", "ran"]
    }


class Names(TypedDict):
    name: str


def test_a_graph_in_a_node_inherits_its_run_and_takes_no_second_input_in_it() -> None:
    seen, inherits = [], []
    inner: StateGraph[Any] = StateGraph(Names)
    inner.add_node("note", lambda state: seen.append(state["name"]))
    inner.add_edge(START, "note")
    called = inner.compile(checkpointer=InMemorySaver())

    def call(state: Names) -> None:
        for name in "ab":
            config: Any = {"configurable": {"thread_id": "inner"}}
            inherits.append(configs.inherits_run(configs.full_config(called, config)))
            called.invoke({"name": name}, config)

    outer: StateGraph[Any] = StateGraph(Names)
    outer.add_node("call", call)
    outer.add_edge(START, "call")
    outer.compile().invoke({"name": ""}, {"metadata": {configs.RUN: "the run"}})
    assert seen == ["a"]
    assert inherits == [True, True]
    assert not configs.inherits_run({"metadata": {configs.RUN: "its own"}})
