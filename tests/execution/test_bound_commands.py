"""`Command(resume=…, update=…, goto=…)` of a bound graph: all of it is applied, or nothing.

What a caller leaves behind that is killed:

| killed                                      | the next driver                                  |
|---------------------------------------------|--------------------------------------------------|
| before the batch that answers               | nothing is applied, the question is open         |
| after it (`answer_wait` and `set_setup`)    | has the command in the setup of the run          |
| after its claim                             | the same                                         |
| after LangGraph stored the command's writes | finds them at the checkpoint, and adds no others |
| after the next checkpoint                   | is past the checkpoint that the command is for   |
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import perdure
from perdure.errors import BadAnswer, ThreadBusy, WaitClosed
from perdure.execution.bound_runs import BoundRuns
from perdure.execution.segment_start import begin_segment
from perdure.testing import Clock, TemporaryRuntime, runtime
from perdure.types import State
from tests.support.bound import Log, T
from tests.support.bound import rt as rt
from tests.support.fork_server import ForkServer
from tests.support.forked_python import start
from tests.support.polling import until

COMMAND: Command[Any] = Command(resume="yes", update={"log": ["given"]}, goto="aside")
SEND: Command[Any] = Command(resume="yes", goto=Send("aside", {"log": []}))
COMMANDS = {"a node": COMMAND, "a send": SEND}
HOME = Path(__file__).parents[2]
BEGIN = "perdure.execution.bound_runs.begin_segment"
POINTS = ("answered", "claimed", "in the node", "in the next node")


def _die_if(point: str) -> None:
    if os.environ.get("DIE_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def ask(state: Log) -> Log:
    said = interrupt("may I?")
    _die_if("in the node")
    return {"log": [said]}


def aside(state: Log) -> Log:
    return {"log": ["aside"]}


def after(state: Log) -> Log:
    _die_if("in the next node")
    return {"log": ["after"]}


def builder() -> StateGraph[Log]:
    made = StateGraph(Log)
    for node in (ask, aside, after):
        made.add_node(node.__name__, node)
    made.add_edge(START, "ask")
    made.add_edge("ask", "after")
    return made


def _call(url: str, which: str, point: str) -> None:
    """Answer in a process of its own, and die."""
    if point == "answered":
        BoundRuns._claim = lambda *_: _die_if(point)  # type: ignore[assignment, method-assign]
    rt = perdure.Runtime(url)
    graph = rt.register(builder(), name="g")
    if point == "claimed":
        pytest.MonkeyPatch().setattr(BEGIN, lambda *_, **__: _die_if(point))
    graph.invoke(COMMANDS[which], T, durability="sync")


def finish(rt: perdure.Runtime) -> Any:
    def is_done() -> bool:
        rt.blocking.tick()
        return rt.blocking.runs()[0].state is State.DONE

    until(is_done)
    [run] = rt.blocking.runs()
    return run.output


@pytest.mark.slow
@pytest.mark.parametrize("which", COMMANDS)
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_applies_the_whole_command_of_a_caller_that_was_killed(
    fork_server: ForkServer, sqlite_url: str, which: str, point: str
) -> None:
    url = sqlite_url
    with runtime() as other:
        graph = other.register(builder(), name="g")
        graph.invoke({"log": []}, T)
        expected = graph.invoke(COMMANDS[which], T)
    with perdure.Runtime(url) as rt:
        rt.register(builder(), name="g").invoke({"log": []}, T)
    script = (
        "import sys; from tests.execution.test_bound_commands import _call; _call(*sys.argv[1:])"
    )
    environment = {**os.environ, "DIE_AT": point}
    caller = start(fork_server, "-c", script, url, which, point, cwd=HOME, env=environment)
    assert caller.wait() == -signal.SIGKILL
    with perdure.Runtime(url) as rt:
        rt.register(builder(), name="g")
        assert finish(rt) == expected


def two_questions() -> StateGraph[Log]:
    made = StateGraph(Log)
    made.add_node("one", lambda state: {"log": [perdure.ask("one", response_schema=str)]})
    made.add_node("two", lambda state: {"log": [perdure.ask("two", response_schema=str)]})
    made.add_node("aside", aside)
    made.add_edge(START, "one")
    made.add_edge(START, "two")
    return made


def ids(rt: TemporaryRuntime) -> list[Any]:
    """The interrupt ids of the two questions."""
    return [one.interrupt_id for one in sorted(rt.blocking.waits(), key=lambda one: one.value)]


def test_of_several_answers_in_one_call_all_are_taken_or_none(rt: TemporaryRuntime) -> None:
    graph = rt.register(two_questions(), name="g")
    graph.invoke({"log": []}, T)
    one, two = ids(rt)
    with pytest.raises(BadAnswer):
        graph.invoke(Command(resume={one: "fine", two: 7}), T)
    assert len(rt.blocking.waits()) == 2
    assert graph.invoke(Command(resume={one: "1", two: "2"}), T) == {"log": ["1", "2"]}


def test_of_several_answers_the_one_that_a_signal_withdrew_is_named(rt: TemporaryRuntime) -> None:
    made = StateGraph(Log)
    made.add_node("one", lambda state: {"log": [perdure.ask("one", unless="reply", default="")]})
    made.add_node("two", lambda state: {"log": [perdure.ask("two")]})
    made.add_edge(START, "one")
    made.add_edge(START, "two")
    graph = rt.register(made, name="g")
    graph.invoke({"log": []}, T)
    one, two = ids(rt)
    rt.blocking.signal(T["configurable"]["thread_id"], "reply", "no")
    with pytest.raises(WaitClosed, match="'reply' withdrew"):
        graph.invoke(Command(resume={one: "1", two: "2"}), T)


def test_a_command_is_not_replaced_before_it_is_applied(rt: TemporaryRuntime) -> None:
    graph = rt.register(two_questions(), name="g")
    graph.invoke({"log": []}, T)
    one, two = ids(rt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundRuns, "_claim", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            graph.invoke(Command(resume={one: "1"}, update={"log": ["first"]}), T)
    with pytest.raises(ThreadBusy, match="not applied yet"):
        graph.invoke(Command(resume={two: "2"}, update={"log": ["second"]}), T)
    assert rt.blocking.tick().waiting == 1
    found = graph.invoke(Command(resume={two: "2"}, update={"log": ["second"]}), T)
    assert found == {"log": ["first", "second", "1", "2"]}


def _interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_a_command_for_a_run_that_does_not_rest_stores_no_answer(sqlite_url: str) -> None:
    with runtime(sqlite_url) as rt:
        graph = rt.register(builder(), name="g")
        graph.invoke({"log": []}, T)
        [run] = rt.blocking.runs()
        rt.blocking.pause(run.id)
        with pytest.raises(ThreadBusy, match=run.id):
            graph.invoke(COMMAND, T)
        assert len(rt.blocking.waits()) == 1
        rt.blocking.resume(run.id)
        rt.blocking.tick()
        assert graph.invoke(COMMAND, T) == {"log": ["given", "aside", "yes", "after"]}


def test_a_command_is_applied_once_if_its_run_asks_again_at_the_same_checkpoint(
    url: str,
) -> None:
    def twice(state: Log) -> Log:
        return {"log": [interrupt("one"), interrupt("two"), interrupt("three")]}

    made = StateGraph(Log)
    made.add_node("twice", twice)
    made.add_edge(START, "twice")
    with runtime(url) as rt:
        graph = rt.register(made, name="g")
        graph.invoke({"log": []}, T)
        graph.invoke(Command(resume="1", update={"log": ["first"]}), T)
        [wait] = rt.blocking.waits()
        rt.blocking.answer(wait.id, "2")
        assert rt.blocking.tick().waiting == 1
        found = graph.invoke(Command(resume="3", update={"log": ["last"]}), T)
        assert found == {"log": ["first", "last", "1", "2", "3"]}


def test_an_answer_that_came_with_a_send_answers_one_question(rt: TemporaryRuntime) -> None:
    def asks(state: Log) -> Log:
        return {"log": [interrupt("one"), interrupt("two"), interrupt("three")]}

    made = StateGraph(Log)
    made.add_node("asks", asks)
    made.add_node("aside", aside)
    made.add_edge(START, "asks")
    graph = rt.register(made, name="g")
    graph.invoke({"log": []}, T)
    graph.invoke(Command(resume="1", goto=Send("aside", {"log": []})), T)
    for question, answer in (("two", "2"), ("three", "3")):
        [wait] = rt.blocking.waits()
        assert wait.value == question
        rt.blocking.answer(wait.id, answer)
        rt.blocking.tick()
    [run] = rt.blocking.runs()
    assert run.output["log"] == ["1", "2", "3", "aside"]


def test_a_question_is_open_again_if_a_send_of_its_node_took_its_answer(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(builder(), name="g")
        graph.invoke({"log": []}, T)
        asked = graph.invoke(Command(resume="first", goto=Send("ask", {"log": []})), T)
        [wait] = rt.blocking.waits()
        assert [wait.interrupt_id] == [one.id for one in asked["__interrupt__"]]
        rt.blocking.answer(wait.id, "second")
        rt.blocking.tick()
        [run] = rt.blocking.runs()
        assert sorted(run.output["log"]) == ["after", "first", "second"]


def three_questions() -> StateGraph[Log]:
    made = StateGraph(Log)
    questions = ("one", "two", "three")
    made.add_node("asks", lambda state: {"log": [interrupt(value) for value in questions]})
    made.add_node("aside", aside)
    made.add_edge(START, "asks")
    return made


def _answer_and_die(url: str) -> None:
    """Answer, set the clock back, and die when the next question is asked."""
    clock = Clock()
    rt = perdure.Runtime(url, clock=clock)
    graph = rt.register(three_questions(), name="g")

    def set_back(*args: Any, **options: Any) -> Any:
        clock.advance(-timedelta(hours=1))
        return begin_segment(*args, **options)

    def die(*_: Any) -> Any:
        until(lambda: len(rt.blocking.waits()) == 1, "the question to be stored")
        os.kill(os.getpid(), signal.SIGKILL)

    patch = pytest.MonkeyPatch()
    patch.setattr(BEGIN, set_back)
    patch.setattr("perdure.execution.bound_runs.finish_segment", die)
    graph.invoke(SEND, T)


@pytest.mark.slow
def test_an_answer_that_came_with_a_send_answers_one_question_if_the_clock_is_set_back(
    fork_server: ForkServer, sqlite_url: str
) -> None:
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(three_questions(), name="g").invoke({"log": []}, T)
    script = "import sys; from tests.execution.test_bound_commands import _answer_and_die; "
    script += "_answer_and_die(sys.argv[1])"
    assert start(fork_server, "-c", script, sqlite_url, cwd=HOME).wait() == -signal.SIGKILL
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(three_questions(), name="g")
        until(lambda: rt.blocking.tick().waiting)
        assert [wait.value for wait in rt.blocking.waits()] == ["two"]


def lose_call(graph: Any, command: Command[Any]) -> None:
    """A call that ends after its command is stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundRuns, "_claim", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            graph.invoke(command, T)


@pytest.mark.parametrize("which", COMMANDS)
def test_a_command_whose_answer_was_withdrawn_does_not_come_with_the_next_answer(
    rt: TemporaryRuntime, which: str
) -> None:
    graph = rt.register(builder(), name="g")
    graph.invoke({"log": []}, T)
    [wait] = rt.blocking.waits()
    lose_call(graph, COMMANDS[which])
    rt.blocking.withdraw(wait.id)
    rt.blocking.answer(wait.id, "no")
    assert finish(rt) == {"log": ["no", "after"]}


def test_a_withdrawn_answer_that_came_with_a_send_is_not_taken(url: str) -> None:
    def careful(state: Log) -> Log:
        if (said := interrupt("may I?")) == "yes":
            raise ValueError(said)
        return {"log": [said]}

    made = StateGraph(Log)
    made.add_node("careful", careful)
    made.add_node("aside", aside)
    made.add_edge(START, "careful")
    with runtime(url) as rt:
        graph = rt.register(made, name="g")
        graph.invoke({"log": []}, T)
        [wait] = rt.blocking.waits()
        with pytest.raises(ValueError, match="yes"):
            graph.invoke(SEND, T)
        rt.blocking.withdraw(wait.id)
        rt.blocking.answer(wait.id, "no")
        assert finish(rt) == {"log": ["no", "aside"]}


@pytest.mark.parametrize(
    "empty", [{"update": {}}, {"update": []}, {"goto": []}, {"goto": ""}], ids=str
)
def test_a_command_with_empty_parts_is_an_answer(
    rt: TemporaryRuntime, empty: dict[str, Any]
) -> None:
    graph = rt.register(builder(), name="g")
    graph.invoke({"log": []}, T)
    assert graph.invoke(Command(resume="yes", **empty), T) == {"log": ["yes", "after"]}


def test_a_command_that_langgraph_does_not_take_answers_nothing(rt: TemporaryRuntime) -> None:
    graph = rt.register(builder(), name="g")
    graph.invoke({"log": []}, T)
    with pytest.raises(TypeError, match="goto"):
        graph.invoke(Command(resume="yes", goto=5), T)
    assert len(rt.blocking.waits()) == 1
    assert graph.invoke(COMMAND, T) == {"log": ["given", "aside", "yes", "after"]}


def test_an_answer_by_id_is_not_lost_if_its_send_is_stored_before_it_is_taken(
    rt: TemporaryRuntime,
) -> None:
    errors: list[type[BaseException]] = []

    def stopped(state: Log) -> Log:
        if errors:
            raise errors.pop()
        return {"log": [interrupt("may I?")]}

    made = StateGraph(Log)
    made.add_node("stopped", stopped)
    made.add_node("aside", aside)
    made.add_edge(START, "stopped")
    graph = rt.register(made, name="g")
    graph.invoke({"log": []}, T)
    [wait] = rt.blocking.waits()
    errors.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(Command(resume={wait.interrupt_id: "yes"}, goto=SEND.goto), T)
    assert finish(rt) == {"log": ["yes", "aside"]}


@pytest.mark.parametrize("place", ["the last checkpoint", "an old checkpoint"])
@pytest.mark.parametrize("resume", [None, "yes"])
def test_a_command_that_begins_a_run_is_applied_once_if_its_caller_ends_before_a_step(
    rt: TemporaryRuntime, place: str, resume: str | None
) -> None:
    errors: list[type[BaseException]] = []

    def second(state: Log) -> Log:
        if errors:
            raise errors.pop()
        return {"log": ["second"]}

    made = StateGraph(Log)
    made.add_node("first", lambda state: {"log": ["first"]})
    made.add_node("second", second)
    made.add_edge(START, "first")
    made.add_edge("first", "second")
    graph = rt.register(made, name="g")
    graph.invoke({"log": []}, T)
    old = T
    if place == "an old checkpoint":
        [old] = [one.config for one in graph.get_state_history(T) if one.next == ("second",)]
    errors.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(Command(resume=resume, update={"log": ["given"]}, goto="second"), old)
    until(lambda: rt.blocking.tick().done)
    done = ["second"] if old is T else []
    assert graph.get_state(T).values == {"log": ["first", *done, "given", "second"]}


def test_a_command_for_a_changed_state_is_applied_whole_if_its_caller_ends(
    rt: TemporaryRuntime,
) -> None:
    errors: list[type[BaseException]] = []

    def stopped(state: Log) -> Log:
        if errors:
            raise errors.pop()
        return {"log": [interrupt("one"), interrupt("two")]}

    made = StateGraph(Log)
    made.add_node("stopped", stopped)
    made.add_edge(START, "stopped")
    graph = rt.register(made, name="g")
    graph.invoke({"log": []}, T)
    graph.update_state(T, {"log": ["changed"]}, as_node=START)
    errors.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(Command(resume="1", update={"log": ["given"]}), T)
    for answer in ("2", None):
        until(lambda: not rt.blocking.tick().released)
        if answer is not None:
            [wait] = rt.blocking.waits()
            assert wait.value == "two"
            rt.blocking.answer(wait.id, answer)
    [run] = rt.blocking.runs()
    assert run.output == {"log": ["changed", "given", "1", "2"]}
