"""Nothing that a run of an evaluation does leaves the process: every way to reach the far side is
refused by name, or simulated, by every driver, even if the code catches the error."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt

import perdure
from perdure import Runtime
from perdure.errors import BadArgument, EffectFailed, NotInRun
from perdure.evals import Example, evaluate
from perdure.langchain import Durable
from perdure.testing import TemporaryRuntime
from perdure.types import State
from tests.contract.test_evaluation import (
    SENT,
    evaluated,
    far_side,
    guarded_mail,
    mail,
    outer,
    stored,
)
from tests.contract.test_evaluation import rt as rt
from tests.support.agents import Log, chain
from tests.support.langchain_child import Script, calls, says


def take_back(result: str, to: str) -> None:
    far_side(f"take back {to}")


@perdure.effect(name="undoable", compensate=take_back)
def undoable(to: str) -> str:
    return far_side(f"undoable {to}")


async def test_an_effect_in_a_subgraph_or_inside_another_effect_is_refused(
    rt: TemporaryRuntime,
) -> None:
    def node(state: Log) -> Log:
        return {"value": mail(state["value"])}

    for inner in (chain(node).compile(), chain(node).compile(checkpointer=False)):
        result = await evaluated(rt, chain(("inner", inner)), example=Example({"value": "ada"}))
        assert "'mail' was not called" in str(result.error)
    result = await evaluated(rt, outer, effects={"outer": "real"})
    assert "'mail' was not called" in str(result.error)
    assert SENT == []


async def test_a_node_reaches_no_other_run(rt: TemporaryRuntime) -> None:
    other = rt.register(chain(lambda state: far_side("other run")), name="other")
    there: Any = {"configurable": {"thread_id": "there"}}

    async def starts(input: Any) -> Any:
        await rt.start("other", {"value": 1})

    def signals(input: Any) -> Any:
        rt.blocking.signal("there", "news")

    def invokes(input: Any) -> Any:
        other.invoke({"value": 1}, there)

    def streams(input: Any) -> Any:
        list(other.stream({"value": 1}, there))

    def updates(input: Any) -> Any:
        other.update_state(there, {"value": 1})

    expected = {starts: "start", signals: "signal", invokes: "invoke", streams: "stream"}
    for target, name in {**expected, updates: "update_state"}.items():
        result = await evaluated(rt, target)
        assert f"'perdure.{name}' was not called" in str(result.error), (target, result)
    assert SENT == []
    assert await rt.runs(thread_id="there") == [] == await rt.runs(graph="other")
    with pytest.raises(BadArgument, match="reaches other runs"):
        await evaluated(rt, starts, effects={"perdure.start": "real"})


async def test_a_graph_with_another_checkpointer_neither_calls_effects_nor_reaches_runs(
    rt: TemporaryRuntime,
) -> None:
    rt.register(chain(lambda state: far_side("other run")), name="other")

    def sends(state: Log) -> Log:
        return {"value": mail("ada")}

    def starts(state: Log) -> Log:
        return {"value": rt.blocking.start("other", {"value": 1}).id}

    def signals(state: Log) -> Log:
        return {"value": rt.blocking.signal("there", "news")}

    there: Any = {"configurable": {"thread_id": "there"}}
    names = {sends: "mail", starts: "perdure.start", signals: "perdure.signal"}
    with perdure.Saver(rt.url) as saver:
        for checkpointer in (saver, InMemorySaver()):
            for node, name in names.items():
                inner = chain(node).compile(checkpointer=checkpointer)
                result = await evaluated(rt, lambda _, graph=inner: graph.invoke({}, there))
                assert f"{name!r} was not called" in str(result.error), (node, result)
            inner = chain(sends).compile(checkpointer=checkpointer)
            await evaluated(rt, lambda _, graph=inner: in_bare_thread(graph.invoke, {}, there))
    assert SENT == []
    assert await rt.runs(graph="other") == []


def in_bare_thread(function: Any, *args: Any) -> None:
    def call() -> None:
        with contextlib.suppress(NotInRun):
            function(*args)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


async def test_a_message_of_an_effect_that_is_really_called_is_not_sent(
    rt: TemporaryRuntime,
) -> None:
    result = await evaluated(rt, stored, effects={"stored": "real"})
    assert "'outbox' was not called" in str(result.error)
    result = await evaluated(rt, stored, effects={"stored": "real", "outbox": "not sent"})
    assert result.output == "stored ada"
    assert await rt.messages() == []


async def test_an_evaluator_calls_no_effect_and_reaches_no_run(rt: TemporaryRuntime) -> None:
    rt.register(chain(lambda state: far_side("other run")), name="other")

    def sends(outputs: Any) -> bool:
        return bool(mail(outputs))

    async def starts(outputs: Any) -> bool:
        return bool(await rt.start("other", {"value": 1}))

    def signals(outputs: Any) -> bool:
        rt.blocking.signal("there", "news")
        return True

    for judge in (sends, starts, signals):
        found = await evaluate(
            str, [Example("a")], [judge], name="a", runtime=rt, effects={"mail": "not sent"}
        )
        [result] = found.results
        assert (result.state, result.scores) == (State.DONE, {})
        assert "was not called" in result.evaluator_errors[judge.__name__]
    assert SENT == []
    assert await rt.runs(graph="other") == []


async def test_a_simulated_effect_is_recorded_and_leaves_its_guards_alone(
    rt: TemporaryRuntime,
) -> None:
    async def simulated(to: str) -> str:
        return f"not sent to {to}"

    def sends(input: Any) -> Any:
        return [mail(input), stored(input), guarded_mail(input), undoable(input), outer(to=input)]

    rules = {
        "mail": simulated,
        "stored": lambda to: f"not stored: {to}",
        "guarded_mail": None,
        "undoable": 7,
        "outer": "real",
    }
    result = await evaluated(rt, sends, effects=rules)
    assert result.output == [
        "not sent to ada",
        "not stored: ada",
        None,
        7,
        "not sent to ada",
    ], result.error
    found = [one.data for one in await rt.events(result.run_id) if one.kind == "effect"]
    assert [one.get("how") for one in found if one["name"] != "outer"] == ["simulated"] * 5
    assert SENT == []
    assert await rt.messages() == []
    rt.register(chain(lambda state: {"value": guarded_mail("ada")}), name="real")
    run = await rt.start("real", {"value": 0})
    await rt.work(until_idle=True)
    assert (await rt.get(run.id)).output["value"] == "guarded_mail ada"  # its key was free


async def test_a_cancelled_evaluation_undoes_nothing(rt: TemporaryRuntime) -> None:
    def sends(input: Any) -> Any:
        undoable(input)
        raise KeyError("it fails")

    rt.register(chain(lambda state: sends(state["value"])), name="letter", retry=perdure.Retry(1))
    simulated = {"undoable": "not sent"}
    result = await evaluated(rt, "letter", effects=simulated, example=Example({"value": "ada"}))
    assert result.state is State.FAILED
    await rt.retry(result.run_id)
    cancelled = await rt.cancel(result.run_id)
    assert cancelled.state is State.CANCELLED
    assert SENT == []


async def test_a_function_that_simulates_is_missing_in_another_process(
    rt: TemporaryRuntime,
) -> None:
    def node(state: Log) -> Log:
        return {"value": mail(state["value"])}

    graph = chain(node)
    simulated = {"mail": lambda to: "not sent"}
    example = Example({"value": "ada"})
    result = await evaluated(rt, graph, effects=simulated, example=example)
    assert result.output["value"] == "not sent"
    worker = Runtime(rt.engine.url, clock=rt.clock)
    worker.register(graph, name="evals:graph", version="0", retry=perdure.Retry(1))
    async with worker:
        start: Any = next(
            one.data["checkpoint"]
            for one in await worker.events(result.run_id)
            if one.kind == "step"
        )
        forked = await worker.fork(result.run_id, at=start)
        await worker.work(until_idle=True)
        assert "is not in this process" in str((await worker.get(forked.id)).error)
    assert SENT == []


async def test_a_thread_that_does_not_know_its_run_calls_no_effect(rt: TemporaryRuntime) -> None:
    raised: list[BaseException] = []

    def in_thread(input: Any) -> Any:
        def call() -> None:
            with contextlib.suppress(NotInRun):
                raised.append(AssertionError(mail(input)))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    assert (await evaluated(rt, in_thread)).state is State.DONE
    assert raised == []
    assert SENT == []
    assert mail("grace") == "mail to grace"  # not while it evaluates


async def test_tools_of_an_agent_are_refused_and_its_model_is_called(rt: TemporaryRuntime) -> None:
    @tool
    def send(to: str) -> str:
        """Send a letter."""
        return far_side(f"tool to {to}")

    @tool
    def look_up(name: str) -> str:
        """Find an address."""
        return f"address of {name}"

    model = Script(
        answers=[
            calls(("look_up", {"name": "ada"}, "1")),
            calls(("send", {"to": "ada"}, "2")),
            says("bye"),
        ]
    )
    durable = Durable({"look_up": "read"})
    agent = create_agent(model, [send, look_up], middleware=[durable], name="agent")
    example = Example({"messages": [("user", "write")]})
    result = await evaluated(rt, agent, example=example)
    assert "'tool send' was not called" in str(result.error)
    assert len(model.asked) == 2
    result = await evaluated(rt, agent, example=example, effects={"tool send": "not sent"})
    said = [message.content for message in result.output["messages"]]
    assert said == ["write", "", "address of ada", "", "not sent", "bye"]
    rules: Any = {"tool send": lambda to: f"not to {to}", "tool look_up": "nowhere"}
    result = await evaluated(rt, agent, example=example, effects=rules)
    said = [message.content for message in result.output["messages"]]
    assert said == ["write", "", "nowhere", "", "not to ada", "bye"]
    asks = HumanInTheLoopMiddleware(interrupt_on={"send": True})
    agent = create_agent(model, [send, look_up], middleware=[asks, durable], name="agent")
    approved = Example(example.input, answers=[{"decisions": [{"type": "reject"}]}])
    result = await evaluated(rt, agent, example=approved)
    assert result.output["messages"][-1].content == "bye"
    result = await evaluated(rt, agent, example=Example(example.input, answers=["what?"]))
    assert "cannot be given answer 1 of its example" in str(result.error)
    assert SENT == []


async def test_a_tool_that_is_no_effect_is_refused_unless_it_only_reads(
    rt: TemporaryRuntime,
) -> None:
    @perdure.effect(name="another")
    def send(to: str) -> str:  # of the same name
        return to

    @tool("send")
    def send_plainly(to: str) -> str:
        """Send a letter."""
        return far_side(f"tool to {to}")

    @tool
    def look_up(name: str) -> str:
        """Find an address."""
        return f"address of {name}"

    look_up.metadata = {"readOnlyHint": True}
    wanted = [("look_up", {"name": "ada"}, "1"), ("mail", {"to": "ada"}, "2")]
    answers = [*(calls(one) for one in wanted), calls(("send", {"to": "ada"}, "3")), says("bye")]
    tools = [look_up, tool(mail, description="mail"), send_plainly]
    agent = create_agent(Script(answers=answers), tools, name="agent")
    example = Example({"messages": [("user", "write")]})
    result = await evaluated(rt, agent, example=example, effects={"mail": "not sent"})
    assert "'tool send' was not called" in str(result.error)
    assert SENT == []
    rules: Any = {"mail": "not sent", "tool send": "real"}
    result = await evaluated(rt, agent, example=example, effects=rules)
    assert result.output["messages"][-2].content == "tool to ada", result.error
    assert SENT == ["tool to ada"]


async def test_a_tool_that_another_tool_calls_is_refused(rt: TemporaryRuntime) -> None:
    @tool
    def send(to: str) -> str:
        """Send a letter."""
        return far_side(f"tool to {to}")

    helper: Any = create_agent(
        Script(answers=[calls(("send", {"to": "ada"}, "2")), says("bye")]), [send]
    )

    @tool
    def delegate(what: str) -> str:
        """Let another agent do it."""
        return str(helper.invoke({"messages": [("user", what)]})["messages"][-1].content)

    example, rules = Example({"messages": [("user", "write")]}), {"tool delegate": "real"}
    for middleware in ([Durable()], [Durable({"delegate": "read"})], []):
        model = Script(answers=[calls(("delegate", {"what": "write"}, "1")), says("bye")])
        agent = create_agent(model, [delegate], middleware=middleware, name="agent")
        result = await evaluated(rt, agent, example=example, effects=rules)
        assert "'tool send' was not called" in str(result.error)
    assert SENT == []


async def test_a_store_is_read_and_not_written(rt: TemporaryRuntime) -> None:
    store = InMemoryStore()
    store.put(("people",), "ada", {"likes": "engines"})

    def remembers(state: Log, *, store: BaseStore) -> Log:
        found = store.get(("people",), "ada")
        store.put(("people",), "grace", {"likes": "ships"})
        return {"value": found and found.value}

    graph = chain(("inner", chain(remembers).compile())).compile(store=store)
    result = await evaluated(rt, graph, example=Example({"value": 0}))
    assert "'store' was not called" in str(result.error)
    result = await evaluated(rt, graph, example=Example({"value": 0}), effects={"store": None})
    assert result.output["value"] == {"likes": "engines"}
    assert store.get(("people",), "grace") is None
    await evaluated(rt, graph, example=Example({"value": 0}), effects={"store": "real"})
    assert store.get(("people",), "grace") is not None


async def test_an_evaluation_asks_no_person_and_does_not_wait(rt: TemporaryRuntime) -> None:
    rt.deliver("perdure.question", lambda message: far_side("a question"))

    def waits(input: Any) -> Any:
        perdure.sleep(timedelta(days=30))
        interrupt({"wake_at": "2100-01-01T00:00:00+00:00"})
        late = perdure.wait_for("never", timeout=timedelta(days=1), default="late")
        return [
            interrupt("who?"),
            perdure.ask("sure?"),
            perdure.wait_for("reply"),
            perdure.ask("still?", expires=timedelta(days=1), default="nobody"),
            late,
        ]

    given: Any = {"answers": ["ada", True], "signals": {"reply": "hello"}}
    result = await evaluated(rt, waits, example=Example("x", **given))
    assert result.output == ["ada", True, "hello", "nobody", "late"], result.error
    result = await evaluated(rt, waits, example=Example("x", answers=["ada"]))
    assert "asks question 2, and its example has 1 answers" in str(result.error)
    result = await evaluated(rt, waits, example=Example("x", answers=["ada", True]))
    assert "waits for the signal 'reply'" in str(result.error)
    stops = chain(lambda state: {"value": "went on"}).compile(interrupt_before="*")
    result = await evaluated(rt, stops, example=Example({"value": 0}))
    assert result.output["value"] == "went on", result.error
    await rt.work(until_idle=True)
    assert SENT == []
    assert await rt.messages() == []


async def test_a_recorded_outcome_is_that_of_the_run_the_example_was_made_from(
    rt: TemporaryRuntime,
) -> None:
    @perdure.effect(name="refuses", retry=None)
    def refuses(to: str) -> str:
        far_side(f"refused {to}")
        raise ValueError(f"no {to}")

    def node(state: Log) -> Log:
        with contextlib.suppress(ValueError, EffectFailed):
            refuses("ada")
            return {"value": "it should have raised"}
        return {"value": mail(state["value"])}

    rt.register(chain(node), name="letter")
    real = await rt.start("letter", {"value": "ada"})
    await rt.work(until_idle=True)
    sent = [*SENT]
    example = Example({"value": "ada"}, run_id=real.id)
    result = await evaluated(rt, "letter", effects="recorded", example=example)
    assert result.output["value"] == "mail to ada", result.error
    other = Example({"value": "grace"}, run_id=real.id)
    result = await evaluated(rt, "letter", effects="recorded", example=other)
    assert f"run {real.id} did not call it with these arguments" in str(result.error)
    result = await evaluated(rt, "letter", effects="recorded", example=Example({"value": "ada"}))
    assert "was not made from a run" in str(result.error)
    assert sent == SENT
