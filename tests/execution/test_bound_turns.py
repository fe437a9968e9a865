"""Callers of a bound graph take turns, and a state is changed only while no run is driven."""

from __future__ import annotations

import asyncio
import json
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from perdure.errors import AnswerRefused, BadArgument, ThreadBusy, WaitClosed
from perdure.testing import TemporaryRuntime, runtime
from perdure.types import Kind, State
from tests.support.bound import Gate, Log, T, asking, asks, kinds, says, sequence, states, two_calls
from tests.support.bound import rt as rt
from tests.support.polling import auntil, until

# -- two at once


async def test_a_call_waits_for_the_worker_that_drives_its_thread(url: str) -> None:
    gate = Gate("by the worker")
    async with runtime(url) as rt, runtime(url) as worker:
        graph = rt.register(sequence(gate=gate), name="agent")
        worker.register(sequence(gate=gate), name="agent")
        await worker.start("agent", {"log": ["first"]}, thread_id="t")
        driving = asyncio.create_task(worker.tick())
        try:
            await asyncio.to_thread(gate.entered.wait, 30)
            call = asyncio.create_task(graph.ainvoke({"log": ["second"]}, T))

            async def both() -> bool:
                return len(await rt.runs(thread_id="t")) == 2

            await auntil(both)
            assert not call.done()
        finally:
            gate.open.set()
        assert (await driving).done == 1
        assert await call == {"log": ["first", "by the worker", "second", "by the worker"]}


def test_a_call_supersedes_the_one_before_it_when_that_comes_to_a_question(url: str) -> None:
    with runtime(url) as rt:
        gate = Gate()
        graph = rt.register(sequence(gate=gate, ask=asks), name="agent")
        ends = two_calls(graph, gate, lambda: until(lambda: len(rt.blocking.runs()) == 2))
        assert [end["__interrupt__"][0].value["seen"] for end in ends] == [
            ["first", "through"],
            ["first", "through", "second", "through"],
        ]
        assert states(rt) == ["cancelled", "waiting"]
        [wait] = rt.blocking.waits()
        rt.blocking.answer(wait.id, "yes")
        assert rt.blocking.tick().done == 1


def test_two_who_resume_at_once_open_the_gate_once(url: str) -> None:
    """LangGraph on a saver runs what is behind the question once per caller."""
    fired: list[str] = []

    def pay(state: Log) -> Log:
        fired.append("paid")
        return {"log": ["paid"]}

    with runtime(url) as rt:
        graph = rt.register(sequence(ask=asks, pay=pay), name="agent")
        graph.invoke({"log": ["in"]}, T)
        start = threading.Barrier(4)

        def resume(who: int) -> Any:
            start.wait(30)
            try:
                return graph.invoke(Command(resume=who), T)["log"]
            except (AnswerRefused, BadArgument, ThreadBusy) as refused:
                return type(refused).__name__

        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(resume, range(4)))
        assert fired == ["paid"]
        assert sum(isinstance(one, list) for one in told) >= 1
        assert graph.get_state(T).values["log"][-1] == "paid"


@pytest.mark.parametrize("stop", ["paused", "held"])
def test_a_call_behind_a_run_that_rests_is_refused_and_withdrawn(url: str, stop: str) -> None:
    with runtime(url) as rt, runtime(url) as changed:
        graph = rt.register(asking(), name="agent")
        head = rt.blocking.start("agent", {"log": ["in"]}, thread_id="t")
        rt.blocking.tick()
        if stop == "paused":
            rt.blocking.pause(head.id)
        else:
            changed.register(sequence(a=says("a"), b=says("b")), name="agent")
            [wait] = rt.blocking.waits()
            rt.blocking.answer(wait.id, "yes")
            assert changed.blocking.tick().held == 1
        with pytest.raises(ThreadBusy, match=f"is {stop}.*{head.id}"):
            graph.invoke({"log": ["more"]}, T)
        assert states(rt) == ["cancelled", stop]
        with pytest.raises(ThreadBusy):
            graph.invoke(None, T)
        assert states(rt) == ["cancelled", stop]
        (rt.blocking.resume if stop == "paused" else rt.blocking.retry)(head.id)
        rt.blocking.tick()
        [*rest] = rt.blocking.waits()
        for wait in rest:
            rt.blocking.answer(wait.id, "yes")
        rt.blocking.tick()
        assert rt.blocking.get(head.id).output == {"log": ["in", "a", "asked", "yes", "b"]}


# -- changing the state


async def test_the_state_of_a_run_that_is_driven_is_not_changed(url: str) -> None:
    gate = Gate()
    async with runtime(url) as rt:
        graph = rt.register(sequence(a=says("a"), gate=gate), name="agent")
        await rt.start("agent", {"log": ["in"]}, thread_id="t")
        driving = asyncio.create_task(rt.tick())
        try:
            await asyncio.to_thread(gate.entered.wait, 30)
            with pytest.raises(ThreadBusy, match="is running"):
                await graph.aupdate_state(T, {"log": ["by hand"]})
            with pytest.raises(ThreadBusy, match="is running"):
                await asyncio.to_thread(graph.update_state, T, {"log": ["by hand"]})
        finally:
            gate.open.set()
        assert (await driving).done == 1
        assert (await graph.aget_state(T)).values == {"log": ["in", "a", "through"]}
        assert len(await rt.runs()) == 1


def test_a_waiting_run_is_driven_again_on_the_state_it_was_given(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(asking(), name="agent")
        graph.invoke({"log": ["in"]}, T)
        [old] = rt.blocking.waits()
        graph.update_state(T, {"log": ["by hand"]})
        with pytest.raises(WaitClosed):  # it showed what is no longer so
            rt.blocking.answer(old.id, "yes")
        assert rt.blocking.tick().waiting == 1
        [new] = rt.blocking.waits()
        assert new.value == {"seen": ["in", "a", "by hand"]}
        rt.blocking.answer(new.id, "yes")
        assert rt.blocking.tick().done == 1
        assert graph.get_state(T).values["log"][-3:] == ["asked", "yes", "b"]
        assert "updated" in kinds(rt, new.run_id)


def test_an_answer_that_is_not_used_yet_is_not_lost_to_a_changed_state(
    rt: TemporaryRuntime,
) -> None:
    graph = rt.register(asking(), name="agent")
    graph.invoke({"log": ["in"]}, T)
    [wait] = rt.blocking.waits()
    rt.blocking.answer(wait.id, "yes")
    with pytest.raises(ThreadBusy):
        graph.update_state(T, {"log": ["by hand"]})
    rt.blocking.tick()
    assert graph.get_state(T).values == {"log": ["in", "a", "asked", "yes", "b"]}


def test_a_changed_state_lets_no_run_pass_its_breakpoint(url: str) -> None:
    with runtime(url) as rt:
        graph = rt.register(
            sequence(draft=says("draft"), send=says("sent")).compile(interrupt_before=["send"]),
            name="agent",
        )
        graph.invoke({"log": ["in"]}, T)
        graph.update_state(T, {"log": ["better"]}, as_node="draft")
        assert rt.blocking.tick().claimed == 0
        [wait] = rt.blocking.waits(kind=Kind.HUMAN)
        assert wait.value == {"breakpoint": ["send"]}
        assert graph.get_state(T).values == {"log": ["in", "draft", "better"]}
        rt.blocking.answer(wait.id, True)
        assert rt.blocking.tick().done == 1
        assert graph.get_state(T).values == {"log": ["in", "draft", "better", "sent"]}


def test_a_state_that_no_node_takes_leaves_a_thread_that_goes_on(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    graph.invoke({"log": ["in"]}, T)
    with pytest.raises(Exception, match="nobody"):
        graph.update_state(T, {"log": ["by hand"]}, as_node="nobody")
    assert graph.invoke(Command(resume="yes"), T)["log"][-1] == "b"


def test_a_state_put_on_a_new_thread_is_a_run_too(rt: TemporaryRuntime) -> None:
    graph = rt.register(asking(), name="agent")
    graph.update_state(T, {"log": ["by hand"]}, as_node="a")
    [run] = rt.blocking.runs()
    assert (run.state, run.metadata) == (State.DONE, {"source": "update_state"})
    assert "__interrupt__" in graph.invoke(None, T)


def test_what_is_streamed_holds_nothing_that_json_does_not() -> None:
    with runtime() as rt:
        graph = rt.register(sequence(one=lambda state: {"log": ["one"]}), name="g")
        chunks = list(graph.stream({"log": []}, T, stream_mode="checkpoints"))
        assert [json.loads(json.dumps(chunk["config"])) for chunk in chunks]


def test_a_run_has_the_same_output_whoever_drove_it() -> None:
    class Two(TypedDict, total=False):
        said: str
        log: Annotated[list[str], operator.add]

    builder = StateGraph(Two).add_node("say", lambda state: {"said": "hello"})
    with runtime() as rt:
        graph = rt.register(builder.add_edge(START, "say"), name="g")
        returned = graph.invoke({"said": ""}, T)
        other = rt.blocking.start("g", {"said": ""})
        rt.blocking.tick()
        [mine] = rt.blocking.runs(thread_id="t")
        assert returned == mine.output == rt.blocking.get(other.id).output
        assert returned == {"said": "hello", "log": []}
