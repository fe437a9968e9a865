"""How a task is interrupted, where it finds its answers, and what resumes it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt, UnknownInterruptError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from perdure.langgraph_port import checkpoint_names, configs, task_interrupts

T: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def one(function: Any) -> StateGraph[Any]:
    return StateGraph(Log).add_node("node", function).add_edge(START, "node")


def asks(state: Log) -> Any:
    return {"log": [interrupt("first?"), interrupt("second?")]}


def here() -> dict[str, Any]:
    found: dict[str, Any] = get_config()["configurable"]
    return found


def test_interrupts_read_the_answers_of_a_task_from_a_list_by_number() -> None:
    seen: list[Any] = []

    def asks(state: Log) -> None:
        answers = task_interrupts.answers_given(here())
        seen.append(list(answers))
        if answers:
            answers[0] = "another"
        seen.append(interrupt("first"))
        seen.append(interrupt("second"))

    graph = one(asks).compile(InMemorySaver())
    graph.invoke({}, T)
    graph.invoke(Command(resume="yes"), T)
    graph.invoke(Command(resume="no"), T)
    assert seen == [[], [], "yes", ["yes"], "another", "no"]


def test_a_question_that_a_task_asks_twice_has_two_ids() -> None:
    def asks(state: Log) -> None:
        interrupt("again?")
        interrupt("again?")

    graph = one(asks).compile(InMemorySaver())
    [first] = graph.invoke({}, T)[checkpoint_names.INTERRUPT]
    [second] = graph.invoke(Command(resume="yes"), T)[checkpoint_names.INTERRUPT]
    assert first.id != second.id


def test_the_interrupts_of_a_task_are_counted_and_can_be_skipped() -> None:
    counts: list[int] = []
    answers: list[Any] = []
    recorded: set[str] = set()

    def ask(name: str) -> None:
        counter = task_interrupts.interrupt_counter(here())
        assert counter is not None
        counts.append(task_interrupts.interrupts_so_far(counter))
        if name in recorded:
            counter()
        else:
            answers.append(interrupt(name))
            recorded.add(name)

    def asks(state: Log) -> None:
        ask("first")
        ask("second")
        ask("third")

    graph = one(asks).compile(InMemorySaver())
    graph.invoke({}, T)
    for answer in "abc":
        graph.invoke(Command(resume=answer), T)
    assert counts == [0, 0, 1, 0, 1, 2, 0, 1, 2]
    assert answers == ["a", "b", "c"]
    assert task_interrupts.interrupts_so_far(None) == 0


def test_an_interrupt_is_noticed_in_the_task_that_raises_it() -> None:
    noticed: list[tuple[str, Any]] = []
    make = GraphInterrupt.__init__

    def notice(interrupts: Any) -> None:
        config = configs.current_configurable()
        noticed.append((configs.task_info(config).namespace, interrupts))

    def asks(state: Log) -> None:
        interrupt("ok?")

    try:
        task_interrupts.watch_interrupts(notice)
        graph = one(one(asks).compile()).compile(InMemorySaver())
        assert graph.invoke({}, T)["__interrupt__"][0].value == "ok?"
        GraphInterrupt()  # a breakpoint
    finally:
        GraphInterrupt.__init__ = make  # type: ignore[method-assign]
    [(ns, found)] = noticed
    assert [node for node, _ in checkpoint_names.namespace_nodes(ns)] == ["node", "node"]
    assert found[0].value == "ok?"


def test_an_answer_to_nothing_resumes_at_an_old_checkpoint_with_the_answers_there() -> None:
    saver = InMemorySaver()
    graph = one(asks).compile(saver)
    graph.invoke({"log": []}, T)
    asked = graph.get_state(T)
    graph.invoke(Command(resume="one"), T)
    graph.invoke(Command(resume="two"), T)
    saver.put_writes(asked.config, [("__resume__", ["uno", "due"])], asked.tasks[0].id)
    end = graph.invoke(task_interrupts.resume_nothing(), asked.config)
    assert end == {"log": ["uno", "due"]}
    assert "__interrupt__" in graph.invoke(None, asked.config), "None asks again"


@pytest.mark.parametrize("resume", [{}, {"0" * 32: "x"}])
def test_a_strict_resume_is_checked_as_langgraph_does(resume: Any) -> None:
    strict: Any = {"configurable": {"thread_id": "t", "__pregel_strict_resume": True}}
    graph = one(asks).compile(InMemorySaver())
    [asked] = graph.invoke({"log": []}, T)["__interrupt__"]
    with pytest.raises(UnknownInterruptError) as theirs:
        graph.invoke(Command(resume=resume), strict)
    with pytest.raises(UnknownInterruptError) as ours:
        task_interrupts.check_strict_resume(strict["configurable"], resume, [asked.id])
    assert vars(ours.value) == vars(theirs.value)
    assert str(ours.value) == str(theirs.value)
    task_interrupts.check_strict_resume(T["configurable"], resume, [asked.id])
    task_interrupts.check_strict_resume(strict["configurable"], {asked.id: "x"}, [asked.id])


def test_sends_of_a_command_replace_the_tasks_that_wait() -> None:
    builder = StateGraph(Log)
    builder.add_node("node", lambda state: {"log": [interrupt(state["log"])]})
    builder.add_conditional_edges(START, lambda state: [Send("node", {"log": ["sent"]})])
    graph = builder.compile(InMemorySaver())
    graph.invoke({"log": ["in"]}, T)
    command: Any = Command(resume="yes", goto=[Send("node", {"log": ["new"]})])
    assert task_interrupts.replaces_tasks(command)
    assert not task_interrupts.replaces_tasks(Command(resume="yes", goto="node"))
    assert graph.invoke(command, T) == {"log": ["in", "yes"]}


def test_a_command_without_writes_is_an_error_and_with_an_answer_is_none() -> None:
    writes = task_interrupts.writes_more_than_answer
    assert not any(map(writes, [Command(resume=1), Command(resume=1, update={}, goto=[])]))
    assert all(map(writes, [Command(resume=1, update={"log": []}), Command(goto="node")]))
    with pytest.raises(TypeError, match="goto"):
        writes(Command(goto=["node", 5]))
    graph = one(asks).compile(InMemorySaver())
    graph.invoke({}, T)
    with pytest.raises(Exception, match=r"resume_is_map|empty Command"):
        graph.invoke(Command(update={}), T)
