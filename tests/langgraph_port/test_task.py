"""What the config of a task holds."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, TypedDict

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store
from langgraph.errors import GraphInterrupt
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, interrupt

from perdure import langgraph_port
from perdure.langgraph_port import TaskInfo

CONFIG: Any = {"configurable": {"thread_id": "t", "mine": 1}}


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
        tasks.append(langgraph_port.task_info(here()))
        if len(tasks) == 1:
            raise ConnectionError("again")

    saver = InMemorySaver()
    retry = RetryPolicy(initial_interval=0, jitter=False)
    one(fails_once, retry_policy=retry).compile(saver).invoke({}, CONFIG)
    started = [found.config["configurable"]["checkpoint_id"] for found in saver.list(CONFIG)][1]
    assert [task.attempt for task in tasks] == [1, 2]
    assert {task.checkpoint_id for task in tasks} == {started}
    assert {task.namespace.partition(":")[0] for task in tasks} == {"node"}


def test_interrupts_read_the_answers_of_a_task_from_a_list_by_number() -> None:
    seen: list[Any] = []

    def asks(state: Empty) -> None:
        answers = langgraph_port.answers_given(here())
        seen.append(list(answers))
        if answers:
            answers[0] = "another"
        seen.append(interrupt("first"))
        seen.append(interrupt("second"))

    graph = one(asks).compile(InMemorySaver())
    graph.invoke({}, CONFIG)
    graph.invoke(Command(resume="yes"), CONFIG)
    graph.invoke(Command(resume="no"), CONFIG)
    assert seen == [[], [], "yes", ["yes"], "another", "no"]


def test_attempts_of_one_execution_share_an_object_that_the_next_execution_does_not() -> None:
    executions: list[Any] = []

    def asks(state: Empty) -> None:
        executions.append(langgraph_port.task_info(here()).execution)
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
        pads.append(langgraph_port.task_info(here()).scratchpad)
        if len(pads) == 1:
            raise ConnectionError("again")

    retry = RetryPolicy(initial_interval=0, jitter=False)
    one(fails_once, retry_policy=retry).compile().invoke({})
    first, second = pads
    assert first is not second


def test_a_question_that_a_task_asks_twice_has_two_ids() -> None:
    def asks(state: Empty) -> None:
        interrupt("again?")
        interrupt("again?")

    graph = one(asks).compile(InMemorySaver())
    [first] = graph.invoke({}, CONFIG)[langgraph_port.INTERRUPT]
    [second] = graph.invoke(Command(resume="yes"), CONFIG)[langgraph_port.INTERRUPT]
    assert first.id != second.id


def test_a_task_is_known_by_its_scratchpad_and_other_code_has_none() -> None:
    found: list[bool] = []
    one(lambda _: found.append(langgraph_port.is_in_task(here()))).compile().invoke({})
    assert found == [True]
    with langgraph_port.running_with({"configurable": {"thread_id": "t"}}):
        assert not langgraph_port.is_in_task(here())
        assert langgraph_port.task_info(here()) == TaskInfo("", None, 1, None)


def test_the_scratchpad_of_the_node_outside_is_reached_from_the_one_inside() -> None:
    pads: list[Any] = []

    def look(state: Empty) -> None:
        pads.append(langgraph_port.task_info(here()).scratchpad)

    inner = one(look).compile(checkpointer=False)
    middle = one(inner).compile(checkpointer=False)

    def outside(state: Empty) -> Any:
        look(state)
        return middle.invoke({})

    one(outside).compile(InMemorySaver()).invoke({}, CONFIG)
    outer, innermost = pads
    assert outer is not innermost
    assert langgraph_port.outer_scratchpad(innermost, 0) is innermost
    assert langgraph_port.outer_scratchpad(innermost, 2) is outer
    assert langgraph_port.outer_scratchpad(innermost, 9) is outer


def test_the_interrupts_of_a_task_are_counted_and_can_be_skipped() -> None:
    counts: list[int] = []
    answers: list[Any] = []
    recorded: set[str] = set()

    def ask(name: str) -> None:
        counter = langgraph_port.interrupt_counter(here())
        assert counter is not None
        counts.append(langgraph_port.interrupts_so_far(counter))
        if name in recorded:
            counter()
        else:
            answers.append(interrupt(name))
            recorded.add(name)

    def asks(state: Empty) -> None:
        ask("first")
        ask("second")
        ask("third")

    graph = one(asks).compile(InMemorySaver())
    graph.invoke({}, CONFIG)
    for answer in "abc":
        graph.invoke(Command(resume=answer), CONFIG)
    assert counts == [0, 0, 1, 0, 1, 2, 0, 1, 2]
    assert answers == ["a", "b", "c"]
    assert langgraph_port.interrupts_so_far(None) == 0


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
    assert [langgraph_port.is_graph_run(asked) for asked in saver.asked] == [True, False]


def test_a_task_finds_the_saver_and_the_durability_of_its_graph_and_the_saver_the_latter() -> None:
    found: list[Any] = []

    def look(state: Empty) -> None:
        found.append((langgraph_port.checkpointer_of(here()), langgraph_port.durability_of(here())))

    for durability in ("sync", "async", "exit"):
        saver = Notes()
        one(look).compile(saver).invoke({}, CONFIG, durability=durability)
        assert found.pop() == (saver, durability)
        assert {langgraph_port.durability_of(handed) for handed in saver.handed} == {durability}


def test_the_runtime_of_a_task_has_the_store_of_its_graph() -> None:
    found: list[Any] = []
    store = InMemoryStore()
    graph = one(lambda _: found.append(langgraph_port.runtime_of(here()))).compile(store=store)
    graph.invoke({})
    assert found[0].store is store


def test_code_that_is_called_with_a_runtime_uses_its_store() -> None:
    found: list[Any] = []
    store = InMemoryStore()
    config: Any = {"configurable": {}}
    langgraph_port.set_runtime(config["configurable"], Runtime(store=store))
    with langgraph_port.running_with(config):
        found.append(get_store())
        one(lambda _: found.append(get_store())).compile().invoke({}, config)
    assert [one is store for one in found] == [True, True]


def test_a_task_names_the_checkpoints_it_belongs_to() -> None:
    found: list[dict[str, str]] = []

    def look(state: Empty) -> None:
        found.append(langgraph_port.checkpoints_above(here()))

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
        found.append(langgraph_port.checkpoints_above(here()))

    saver = InMemorySaver()

    @entrypoint(saver)
    def flow(given: int) -> None:
        look().result()

    flow.invoke(1, CONFIG)
    [above] = found
    assert list(above) == [""]


def test_keys_of_a_config_that_are_not_the_users_are_known() -> None:
    found: list[Any] = []
    inner = one(lambda _: found.append(here())).compile()
    one(inner).compile(InMemorySaver()).invoke({}, CONFIG)
    assert {key for key in found[0] if not langgraph_port.is_own_key(key)} == {"mine"}


def test_code_runs_with_a_config_for_as_long_as_it_is_told() -> None:
    with langgraph_port.running_with({"tags": ["a"]}):
        with langgraph_port.running_with({"tags": ["b"]}):
            assert get_config()["tags"] == ["b"]
        assert get_config()["tags"] == ["a"]


async def test_the_node_is_known_in_tasks_that_it_starts() -> None:
    found: list[str | None] = []

    async def node(state: Empty) -> None:
        async def helper() -> None:
            found.append(langgraph_port.current_node())

        await asyncio.create_task(helper())

    await one(node).compile().ainvoke({})
    assert found == ["node"]
    assert langgraph_port.current_node() is None


def test_the_namespace_of_a_node_is_the_same_when_it_runs_again() -> None:
    found: list[str] = []

    def node(state: Empty) -> None:
        found.append(langgraph_port.current_namespace())
        interrupt("go on?")

    graph, thread = one(node).compile(checkpointer=InMemorySaver()), {"thread_id": "t"}
    graph.invoke({}, {"configurable": thread})
    graph.invoke(Command(resume="yes"), {"configurable": thread})
    first, second = found
    assert first == second
    assert first.startswith("node:")
    assert langgraph_port.current_namespace() == ""


def test_callbacks_of_a_node_are_told_from_those_of_what_it_calls() -> None:
    found: list[str | None] = []

    class Callbacks(BaseCallbackHandler):
        def on_chain_start(self, serialized: Any, inputs: Any, **more: Any) -> None:
            found.append(langgraph_port.node_of_callback(more["tags"], more["metadata"]))

    def node(state: Empty) -> None:
        inner: RunnableLambda[str, None] = RunnableLambda(lambda _: None)
        inner.invoke("inner")

    one(node).compile().invoke({}, {"callbacks": [Callbacks()]})
    assert found == [None, "node", None]


def test_an_interrupt_is_noticed_in_the_task_that_raises_it() -> None:
    noticed: list[tuple[str, Any]] = []
    make = GraphInterrupt.__init__

    def notice(interrupts: Any) -> None:
        config = langgraph_port.current_configurable()
        noticed.append((langgraph_port.task_info(config).namespace, interrupts))

    def asks(state: Empty) -> None:
        interrupt("ok?")

    try:
        langgraph_port.watch_interrupts(notice)
        graph = one(one(asks).compile()).compile(InMemorySaver())
        assert graph.invoke({}, CONFIG)["__interrupt__"][0].value == "ok?"
        GraphInterrupt()  # a breakpoint
    finally:
        GraphInterrupt.__init__ = make  # type: ignore[method-assign]
    [(ns, found)] = noticed
    assert [node for node, _ in langgraph_port.namespace_nodes(ns)] == ["node", "node"]
    assert found[0].value == "ok?"
