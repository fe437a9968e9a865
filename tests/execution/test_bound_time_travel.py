"""A bound graph at another checkpoint than its thread's last: answers, forks, replays.

As in LangGraph; and each is a run, whose worker takes it up at the same place.
"""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import perdure
from perdure.testing import TemporaryRuntime
from perdure.types import State
from tests.support.bound import Log, T, asking, asks, says, sequence, states
from tests.support.bound import rt as rt
from tests.support.fork_server import ForkServer
from tests.support.forked_python import start
from tests.support.polling import until
from tests.support.scripts import plain


def answer_at_the_snapshot(graph: Any) -> Any:
    graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(Command(resume="yes"), graph.get_state(T).config)
    yield graph.get_state(T).next


def answer_after_a_fork(graph: Any) -> Any:
    graph.invoke({"log": ["in"]}, T)
    graph.invoke(Command(resume="yes"), T)
    before = next(one for one in graph.get_state_history(T) if one.next == ("ask",))
    fork = graph.update_state(before.config, {"log": ["forked"]})
    yield graph.invoke(None, fork)
    yield graph.invoke(Command(resume="another"), fork)
    yield graph.get_state(T).next


def replay(graph: Any) -> Any:
    graph.invoke({"log": ["in"]}, T)
    graph.invoke(Command(resume="yes"), T)
    past = list(graph.get_state_history(T))
    yield graph.invoke(None, past[-2].config)
    yield graph.invoke(Command(resume="again"), T)
    yield len(list(graph.get_state_history(T))) - len(past)


def replay_while_it_waits(graph: Any) -> Any:
    graph.invoke({"log": ["in"]}, T)
    yield graph.invoke(None, graph.get_state(T).config)
    yield graph.invoke(Command(resume="yes"), T)


def two_updates_and_a_new_input(graph: Any) -> Any:
    graph.invoke({"log": ["in"]}, T)
    graph.update_state(T, {"log": ["one"]})
    graph.update_state(T, {"log": ["two"]})
    yield graph.get_state(T).values
    yield graph.invoke({"log": ["instead"]}, T)
    yield graph.invoke(Command(resume="yes"), T)


def new_input_at_an_old_checkpoint(graph: Any) -> Any:
    graph.invoke({"log": ["in"]}, T)
    first = list(graph.get_state_history(T))[-1]
    yield graph.invoke({"log": ["instead"]}, first.config)
    yield graph.invoke(Command(resume="yes"), T)


TALES = {
    tale.__name__: tale
    for tale in (
        answer_at_the_snapshot,
        answer_after_a_fork,
        replay,
        replay_while_it_waits,
        two_updates_and_a_new_input,
        new_input_at_an_old_checkpoint,
    )
}


@pytest.mark.parametrize("name", list(TALES))
def test_another_checkpoint_gives_what_langgraph_gives(rt: TemporaryRuntime, name: str) -> None:
    expected = plain(list(TALES[name](asking().compile(checkpointer=InMemorySaver()))))
    assert plain(list(TALES[name](rt.register(asking(), name="agent")))) == expected
    assert State.PENDING.value not in states(rt)
    [*waiting] = (run for run in rt.blocking.runs() if run.state is State.WAITING)
    assert len(waiting) == len(rt.blocking.waits()), "a run that waits has what it waits for"


def fan_out() -> Any:
    builder = StateGraph(Log)
    builder.add_node("asks", asks)
    builder.add_conditional_edges(START, lambda state: [Send("asks", {"log": ["sent"]})])
    return builder


def test_an_answer_with_a_send_goes_to_the_task_that_asks_now(rt: TemporaryRuntime) -> None:
    def tale(graph: Any) -> Any:
        yield graph.invoke({"log": ["in"]}, T)
        goto = [Send("asks", {"log": ["one"]}), Send("asks", {"log": ["two"]})]
        yield graph.invoke(Command(resume="yes", goto=goto), T)["log"]

    expected = plain(list(tale(fan_out().compile(checkpointer=InMemorySaver()))))
    assert plain(list(tale(rt.register(fan_out(), name="agent")))) == expected


def test_a_second_question_at_an_old_checkpoint_is_answered_there(rt: TemporaryRuntime) -> None:
    """The answer of a person comes to the run, not to whatever the thread did last."""

    def asks_twice(state: Log) -> Log:
        return {"log": [interrupt("first?"), interrupt("second?")]}

    graph: Any = rt.register(sequence(a=says("a"), ask=asks_twice, b=says("b")), name="agent")
    graph.invoke({"log": ["in"]}, T)
    asked = graph.get_state(T).config
    graph.invoke(Command(resume="one"), T)
    graph.invoke(Command(resume="two"), T)
    late = {"log": ["in", "a", "one", "two", "b"]}
    assert graph.get_state(T).values == late
    graph.update_state(asked, None, as_node="__copy__")
    copied = graph.get_state(T).config
    graph.invoke(Command(resume="another"), copied)
    [wait] = rt.blocking.waits()
    rt.blocking.answer(wait.id, "end")
    assert rt.blocking.tick().done == 1
    assert graph.get_state(T).values == {"log": ["in", "a", "another", "end", "b"]}


REPLAYS = """
import os, signal, sys
import perdure
from tests.support.bound import T, says, sequence

def dies(state):
    os.kill(os.getpid(), signal.SIGKILL)

graph = perdure.Runtime(sys.argv[1]).register(sequence(a=dies, b=says("b")), name="agent")
first = [*graph.get_state_history(T)][-2]
assert first.next == ("a",)
graph.invoke(None, first.config)
"""


@pytest.mark.slow
def test_a_worker_replays_from_the_place_whose_caller_was_killed(
    fork_server: ForkServer, url: str
) -> None:
    def build(word: str) -> Any:
        return sequence(a=says(word), b=says("b"))

    with perdure.Runtime(url) as before:
        before.register(build("a"), name="agent").invoke({"log": ["in"]}, T)
    caller = start(fork_server, "-c", REPLAYS, url, cwd=Path(__file__).parents[2])
    assert caller.wait() == -signal.SIGKILL
    with perdure.Runtime(url) as rt:
        rt.register(build("replayed"), name="agent")

        def are_done() -> bool:
            rt.blocking.tick()
            return all(run.state is State.DONE for run in rt.blocking.runs())

        until(are_done)
        [new, _] = rt.blocking.runs()
        assert new.output == {"log": ["in", "replayed", "b"]}


def test_a_replay_that_was_accepted_and_not_begun_ends_with_its_caller(
    rt: TemporaryRuntime,
) -> None:
    """As after the death of its caller right after the run was accepted."""
    seen: list[Any] = []

    def a(state: Log) -> Log:
        seen.append(list(state["log"]))
        return {"log": ["a"]}

    graph: Any = rt.register(sequence(a=a, b=says("b")), name="agent")
    graph.invoke({"log": ["in"]}, T)
    first = list(graph.get_state_history(T))[-2]
    call = graph._call(None, first.config, {})
    accept = rt.engine.accept_inline(graph._graph, "t", call.setup())
    accepted = rt.journal.run(accept)
    rt.clock.advance(timedelta(minutes=1))  # until then it is reserved for its caller
    assert rt.blocking.tick().cancelled == 1
    assert seen == [["in"]]
    assert rt.blocking.get(accepted.id).reason == "its caller went away"
