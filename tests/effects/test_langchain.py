"""Agents of LangChain whose model calls and tool calls settle: create_agent, deepagents, ToolNode.

A call that was recorded is not made again, whoever died; what retries, falls back or handles errors
in LangChain means what it meant; tools say what they are, and nothing is asked of them.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelFallbackMiddleware,
    ModelRequest,
    ModelRetryMiddleware,
    TodoListMiddleware,
    ToolRetryMiddleware,
    dynamic_prompt,
)
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import InjectedState, InjectedToolCallId, ToolRuntime
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from pydantic import BaseModel

import perdure
from perdure.errors import BadArgument
from perdure.langchain import Durable, Policy, tool_node
from perdure.langchain.calls import prompt_digest as digest
from perdure.types import EffectRecord, EffectState, Retry, Run, State
from tests.contract.test_langchain import killed as killed
from tests.contract.test_langchain import mailer, taken_over
from tests.support.langchain_child import HELLO, Breaks, Broken, Script, calls, says
from tests.support.sqlite_only import url as url
from tests.support.waiters import data_of, drive, healthy, only_wait

AT_ONCE = Retry(attempts=3, first=timedelta(0))
CONFIG: Any = {"configurable": {"thread_id": "t"}}

Middleware = AgentMiddleware[Any, Any, Any]


class Post:
    """A tool that sends mails, and what it sent, with which key."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.keys: list[str] = []
        self.fails: list[Exception] = []

    def send(self, to: str) -> str:
        """Send a mail."""
        self.sent.append(to)
        self.keys.append(perdure.key())
        if self.fails:
            raise self.fails.pop(0)
        return f"sent to {to}"

    @property
    def tool(self) -> BaseTool:
        return StructuredTool.from_function(self.send)


def texts(output: Any) -> list[str]:
    return [message.text for message in output["messages"]]


WELL = ["hello", "", "sent to ann", "it is sent"]


# -- both ways to drive an agent that only has a saver


@dataclass
class Sync:
    def __call__(self, agent: Any, given: Any) -> Any:
        return agent.invoke(given, CONFIG)


@dataclass
class Async:
    def __call__(self, agent: Any, given: Any) -> Any:
        return asyncio.run(agent.ainvoke(given, CONFIG))


Drive = Callable[[Any, Any], Any]
EITHER = pytest.mark.parametrize("api", [Sync(), Async()], ids=["invoke", "ainvoke"])


def come_back(api: Drive, agent: Any) -> Any:
    """Break, and go on from the last checkpoint."""
    with pytest.raises(Broken):
        api(agent, HELLO)
    return api(agent, None)


# -- and one with a runtime


@asynccontextmanager
async def agent_run(
    agent: Any, url: str | None = None, **options: Any
) -> AsyncIterator[tuple[perdure.Runtime, Run]]:
    """A run of an agent, driven until it rests."""
    async with healthy(url, **options) as rt:
        rt.register(agent, name="agent", retry=AT_ONCE)
        started = await rt.start("agent", HELLO, thread_id="t")
        await drive(rt)
        yield rt, await rt.get(started.id)


async def effects(rt: perdure.Runtime, run: Run) -> dict[str, EffectRecord]:
    """By name; there may be one of each."""
    found = await rt.effects(run.id)
    assert len({one.name for one in found}) == len(found), found
    return {one.name: one for one in found}


# -- models


@EITHER
def test_a_model_call_that_was_recorded_is_not_made_again(api: Drive, url: str) -> None:
    post, model = Post(), mailer()
    with perdure.Saver(url) as saver:
        agent = create_agent(
            model, [post.tool], middleware=[Breaks("model"), Durable()], checkpointer=saver
        )
        assert texts(come_back(api, agent)) == WELL
    assert model.asked == [["hello"], ["hello", "", "sent to ann"]]


async def test_what_was_not_paid_again_is_counted(url: str) -> None:
    model = mailer()
    agent = create_agent(model, [Post().tool], middleware=[Breaks("model"), Durable()])
    async with agent_run(agent, url) as (_, run):
        assert run.state is State.DONE
        assert texts(run.output) == WELL
        assert run.saved == {"steps": 0, "effects": 1, "model_calls": 1}
    assert len(model.asked) == 2


async def test_of_a_prompt_only_the_hash_and_the_model_are_recorded() -> None:
    agent = create_agent(
        Script(answers=[says("hi")]), system_prompt="Be kind", middleware=[Durable()]
    )
    async with agent_run(agent) as (rt, run):
        record = (await effects(rt, run))["model"]
    assert record.arguments["model"] == "script-1"
    assert set(record.arguments) == {"model", "prompt"}
    assert len(record.arguments["prompt"]) == 32
    assert [message.text for message in record.result["messages"]] == ["hi"]


def restless_prompt() -> Middleware:
    """A system prompt that is another one each time."""
    times = iter(range(100))

    @dynamic_prompt
    def prompt(request: ModelRequest[Any]) -> str:
        return f"It is {next(times)} o'clock."

    return prompt


async def test_a_prompt_that_differs_on_the_way_back_gets_the_recorded_answer() -> None:
    model = mailer()
    around = [Breaks("model"), ModelRetryMiddleware(on_failure="error"), restless_prompt()]
    agent = create_agent(model, [Post().tool], middleware=[*around, Durable()])
    async with agent_run(agent) as (rt, run):
        assert texts(run.output) == WELL
        [differs] = data_of(await rt.events(run.id), "differs")
    assert differs["name"] == "model"
    assert len(model.asked) == 2


@EITHER
def test_so_does_one_inside_of_a_tool(api: Drive, sqlite_url: str) -> None:
    inner = Script(answers=[says("ann has it")])
    helper = create_agent(inner, middleware=[Breaks("model"), restless_prompt(), Durable()])

    @tool
    def send(to: str) -> str:
        """Have a helper send a mail."""
        helper.invoke(HELLO)
        return f"sent to {to}"

    with perdure.Saver(sqlite_url) as saver:
        agent = create_agent(mailer(), [send], middleware=[Durable()], checkpointer=saver)
        assert texts(come_back(api, agent)) == WELL
    assert len(inner.asked) == 1


@EITHER
def test_who_retries_a_model_calls_it_again_and_its_answer_is_the_one_record(
    api: Drive, sqlite_url: str
) -> None:
    model = mailer()
    model.fail(ConnectionError("no line"), ConnectionError("no line"))
    again = ModelRetryMiddleware(max_retries=2, initial_delay=0, on_failure="error")
    with perdure.Saver(sqlite_url) as saver:
        agent = create_agent(
            model, [Post().tool], middleware=[Breaks("model"), again, Durable()], checkpointer=saver
        )
        assert texts(come_back(api, agent)) == WELL
    assert len(model.asked) == 2 + 2


async def test_a_fallback_that_was_recorded_is_found_and_nobody_else_is_asked() -> None:
    first, second = mailer(), mailer()
    second.model_name = "script-2"
    first.fail(ConnectionError("no line"))
    around = [Breaks("model"), ModelFallbackMiddleware(second)]
    agent = create_agent(first, [Post().tool], middleware=[*around, Durable()])
    async with agent_run(agent) as (rt, run):
        assert texts(run.output) == WELL
        assert data_of(await rt.events(run.id), "differs") == []
    assert [len(model.asked) for model in (first, second)] == [2, 1]


async def test_a_run_that_is_tried_again_asks_a_model_that_failed_again() -> None:
    model = mailer()
    model.fail(ConnectionError("no line"))
    agent = create_agent(model, [Post().tool], middleware=[Durable()])
    async with agent_run(agent) as (rt, run):
        assert run.state is State.DONE
        told = data_of(await rt.events(run.id), "effect")[0]
    assert (told["state"], told["error"]) == ("again", "ConnectionError: no line")
    assert len(model.asked) == 3


async def test_what_retries_may_be_inside_too() -> None:
    model = mailer()
    model.fail(ConnectionError("no line"))
    again = ModelRetryMiddleware(max_retries=1, initial_delay=0, on_failure="error")
    agent = create_agent(model, [Post().tool], middleware=[Breaks("model"), Durable(), again])
    async with agent_run(agent) as (_, run):
        assert texts(run.output) == WELL
    assert len(model.asked) == 3


class Noting(AgentMiddleware[Any, Any, Any]):
    """Changes the state beside what the model says."""

    class Notes(AgentState[Any]):
        notes: list[str]

    state_schema = Notes

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        answer = await handler(request)
        return ExtendedModelResponse(answer, Command(update={"notes": [answer.result[0].text]}))


async def test_what_middleware_inside_does_to_the_state_comes_back_with_the_answer() -> None:
    model = Script(answers=[says("hi")])
    agent = create_agent(model, middleware=[Breaks("model"), Durable(), Noting()])
    async with agent_run(agent) as (_, run):
        assert run.output["notes"] == ["hi"]
    assert len(model.asked) == 1


class Weather(BaseModel):
    degrees: int


def forecaster() -> Script:
    return Script(answers=[calls(("Weather", {"degrees": 20}, "w"))])


def forecasting(model: Script) -> Any:
    around = [Breaks("model"), Durable()]
    return create_agent(model, middleware=around, response_format=ToolStrategy(Weather))


async def test_a_structured_answer_comes_back_as_what_it_was(url: str) -> None:
    model = forecaster()
    async with agent_run(forecasting(model), url, allow=[Weather]) as (_, run):
        assert run.output["structured_response"] == Weather(degrees=20)
    assert len(model.asked) == 1


async def test_tokens_are_streamed_once(sqlite_url: str) -> None:
    model = Script(answers=[says("one two")])
    with perdure.Saver(sqlite_url) as saver:
        agent = create_agent(model, middleware=[Breaks("model"), Durable()], checkpointer=saver)
        with pytest.raises(Broken):
            await agent.ainvoke(HELLO, CONFIG)
        stream: Any = agent.astream(None, CONFIG, stream_mode="messages")
        parts = [part async for part, _ in stream]
    assert [part.text for part in parts] == ["one two"]  # as the node's result, whole
    assert len(model.asked) == 1


def request(**changes: Any) -> ModelRequest[Any]:
    asked: dict[str, Any] = {
        "model": mailer(),
        "messages": list(HELLO["messages"]),
        "tools": [Post().tool],
        "system_prompt": "Be kind",
    }
    return ModelRequest(**{**asked, **changes})


def send_letter(to: str, stamp: str) -> str:
    """Send a letter."""
    return to + stamp


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [AIMessage("hello")]},
        {"messages": [*HELLO["messages"], *HELLO["messages"]]},
        {"system_prompt": "Be brief"},
        {"tools": []},
        {"tools": [StructuredTool.from_function(send_letter, name="send")]},
        {"tool_choice": "any"},
        {"model_settings": {"temperature": 1}},
        {"response_format": ToolStrategy(Weather)},
        {"response_format": Weather},
    ],
    ids=["words", "history", "system", "no tools", "tools", "choice", "settings", "format", "type"],
)
def test_whatever_changes_the_answer_changes_the_hash(changes: dict[str, Any]) -> None:
    assert digest(request()) == digest(request())
    assert digest(request(**changes)) != digest(request())


def test_what_no_model_is_told_does_not_change_the_hash() -> None:
    told = [message.model_copy(update={"id": "other"}) for message in HELLO["messages"]]
    assert digest(request(messages=told)) == digest(request())
    assert digest(request(model_settings={"client": object()})) == digest(
        request(model_settings={"client": object()})
    )


# -- tools


@EITHER
def test_a_tool_call_that_was_recorded_is_not_made_again(api: Drive, url: str) -> None:
    post, model = Post(), mailer()
    with perdure.Saver(url) as saver:
        agent = create_agent(
            model, [post.tool], middleware=[Breaks("send"), Durable()], checkpointer=saver
        )
        assert texts(come_back(api, agent)) == WELL
    assert post.sent == ["ann"]


@EITHER
def test_calls_of_one_node_find_their_own_outcomes_though_they_look_the_same(
    api: Drive, url: str
) -> None:
    counted = iter(range(100))

    def draw(of: str) -> str:
        """Draw a number."""
        return str(next(counted))

    node = tool_node([draw])
    told: list[dict[str, str]] = []

    def ask() -> list[AIMessage]:
        """The first time it gets to three of them, the second time in another order."""
        numbers = reversed(range(6)) if told else range(3)
        return [calls(*[("draw", {"of": "all"}, f"c{n}") for n in numbers])]

    def tell(asked: list[AIMessage], found: list[ToolMessage]) -> MessagesState:
        assert [one.tool_call_id for one in found] == [one["id"] for one in asked[0].tool_calls]
        told.append({one.tool_call_id: str(one.content) for one in found})
        if len(told) == 1:
            raise Broken
        return {"messages": []}

    async def in_loop(state: MessagesState, config: RunnableConfig) -> MessagesState:
        asked = ask()
        return tell(asked, await node.ainvoke(asked, config))

    def in_thread(state: MessagesState, config: RunnableConfig) -> MessagesState:
        asked = ask()
        return tell(asked, node.invoke(asked, config))

    graph = StateGraph(MessagesState)
    graph.add_node("tools", in_loop if isinstance(api, Async) else in_thread)
    graph.add_edge(START, "tools")
    with perdure.Saver(url) as saver:
        come_back(api, graph.compile(checkpointer=saver))
    assert told[0] == {id: told[1][id] for id in told[0]}
    assert sorted(told[1].values()) == ["0", "1", "2", "3", "4", "5"]


HINTED: list[tuple[str, dict[str, Any] | None, str]] = [
    ("nothing", None, "hold"),
    ("other", {"owner": "ann"}, "hold"),
    ("read", {"readOnlyHint": True, "destructiveHint": True}, "read"),
    ("idempotent", {"idempotentHint": True}, "retry"),
    ("destructive", {"readOnlyHint": False, "destructiveHint": True}, "hold"),
    ("both", {"idempotentHint": True, "destructiveHint": True}, "retry"),
    ("mcp", {"title": None, "readOnlyHint": None, "destructiveHint": None}, "hold"),
    ("nested", {"annotations": {"destructiveHint": True}}, "hold"),
]


def how(durable: Durable, given: BaseTool | None, name: str = "send") -> str:
    """What a middleware makes of a tool, in a word."""
    call: Any = {"name": name, "args": {}, "id": "c", "type": "tool_call"}
    policy = durable.policy(ToolCallRequest(call, given, {}, None))  # type: ignore[arg-type]
    return "read" if policy is None else policy.spec(name).unknown


@pytest.mark.parametrize(
    ("metadata", "word"), [pytest.param(*rest, id=name) for name, *rest in HINTED]
)
def test_a_tool_says_what_it_is(metadata: dict[str, Any] | None, word: str) -> None:
    given = Post().tool
    given.metadata = metadata
    assert how(Durable(), given) == word


def test_a_tool_may_say_it_in_its_class() -> None:
    class Deletes(BaseTool):
        name: str = "delete"
        description: str = "Delete it."
        annotations: dict[str, bool] = {"destructiveHint": True}  # noqa: RUF012 (a field)

        def _run(self) -> str:
            return "gone"

    assert how(Durable(), Deletes()) == "hold"


def test_the_mapping_has_the_last_word() -> None:
    given = Post().tool
    given.metadata = {"destructiveHint": True}
    assert how(Durable({"send": "read"}), given) == "read"
    assert how(Durable({"send": "retry"}), given) == "retry"
    assert how(Durable({"send": Policy(unknown="hold")}), None) == "hold"
    assert how(Durable({"send": Policy(unknown="retry")}), None) == "retry"
    assert how(Durable({"other": "read"}), given) == "hold"


def test_a_policy_with_a_key_still_holds_a_call_that_was_cut_off() -> None:
    """A business key guards other runs; only `unknown="retry"` says that a repeat is harmless."""
    spec = Policy(key=lambda to: to).spec("send")
    assert (spec.unknown, spec.trust_errors) == ("hold", True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Durable({"send": "always"}), "'send': 'always'.*'read', 'retry', 'hold'"),
        (lambda: Durable({"send": {}}), "'send'.*a Policy"),  # type: ignore[dict-item]
        (lambda: Policy(unknown="read"), "unknown='read'"),  # type: ignore[arg-type]
        (lambda: Policy(timeout=0), "timeout=0"),
    ],
    ids=["name", "kind", "unknown", "timeout"],
)
def test_a_policy_that_is_none_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        make()


async def test_reads_are_made_every_time_and_not_recorded() -> None:
    looked: list[str] = []

    @tool
    def send(to: str) -> str:
        """Look whether it was sent."""
        looked.append(to)
        return f"sent to {to}"

    send.metadata = {"readOnlyHint": True}
    agent = create_agent(mailer(), [send], middleware=[Breaks("send"), Durable()])
    async with agent_run(agent) as (rt, run):
        assert texts(run.output) == WELL
        assert {one.name for one in await rt.effects(run.id)} == {"model"}
    assert looked == ["ann", "ann"]


async def test_a_tool_that_failed_is_called_again_with_the_same_key(url: str) -> None:
    post = Post()
    post.fails = [ConnectionError("no line")]
    agent = create_agent(mailer(), [post.tool], middleware=[Durable()])
    async with agent_run(agent, url) as (rt, run):
        assert texts(run.output) == WELL
        [record] = [one for one in await rt.effects(run.id) if one.name == "tool send"]
    assert post.keys == [record.key] * 2
    assert (record.state, record.attempts) == (EffectState.DONE, 2)
    assert record.arguments == {"to": "ann"}


@EITHER
def test_who_retries_a_tool_calls_it_again_with_the_same_key(api: Drive, sqlite_url: str) -> None:
    post = Post()
    post.fails = [ConnectionError("no line"), ConnectionError("no line")]
    again = ToolRetryMiddleware(max_retries=2, initial_delay=0)
    with perdure.Saver(sqlite_url) as saver:
        agent = create_agent(
            mailer(),
            [post.tool],
            middleware=[Breaks("send"), again, Durable()],
            checkpointer=saver,
        )
        assert texts(come_back(api, agent)) == WELL
    assert post.sent == ["ann"] * 3
    assert len(set(post.keys)) == 1


async def test_a_result_that_is_asked_for_again_is_another_call() -> None:
    post = Post()

    class Twice(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            await handler(request)
            return await handler(request)

    agent = create_agent(mailer(), [post.tool], middleware=[Breaks("send"), Twice(), Durable()])
    async with agent_run(agent) as (_, run):
        assert texts(run.output) == WELL
    assert len(post.sent) == len(set(post.keys)) == 2


async def test_with_a_policy_an_exception_is_tried_and_then_recorded() -> None:
    post = Post()
    post.fails = [ValueError(f"no {n}") for n in range(9)]
    durable = Durable({"send": Policy(retry=Retry(attempts=2, first=timedelta(0)))})
    agent = create_agent(mailer(), [post.tool], middleware=[durable])
    async with agent_run(agent) as (_, run):
        assert run.state is State.FAILED
        assert run.error is not None
        assert run.error.message == "no 1"
    assert post.sent == ["ann"] * 2


async def test_a_destructive_tool_that_failed_holds_the_run_and_a_person_settles_it() -> None:
    post = Post()
    post.fails = [TimeoutError("no answer")]
    durable = Durable({"send": "hold"})
    agent = create_agent(mailer(), [post.tool], middleware=[durable])
    async with agent_run(agent) as (rt, run):
        assert run.state is State.HELD
        [unknown] = await rt.effects(state="unknown")
        assert unknown.name == "tool send"
        await rt.settle(unknown.key, "done", "sent to ann", by="ana")
        await drive(rt)
        output = (await rt.get(run.id)).output
    assert texts(output) == WELL
    assert output["messages"][2].tool_call_id == "c1"
    assert post.sent == ["ann"]


@pytest.mark.parametrize("as_command", [False, True], ids=["message", "command"])
async def test_a_business_key_guards_across_threads_and_each_call_gets_its_own_message(
    as_command: bool, url: str
) -> None:
    keys: list[str] = []
    durable = Durable({"send": Policy(key=lambda to: to)})

    @tool
    def send(to: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Send a mail."""
        keys.append(perdure.key())
        message = ToolMessage(f"sent to {to}", tool_call_id=tool_call_id)
        return Command(update={"messages": [message]}) if as_command else message

    def agent(id: str) -> Any:
        model = Script(answers=[calls(("send", {"to": "ann"}, id)), says("it is sent")])
        return create_agent(model, [send], middleware=[durable])

    async with healthy(url) as rt:
        for n in range(2):
            rt.register(agent(f"c{n}"), name=f"agent {n}")
            await rt.start(f"agent {n}", HELLO, thread_id=f"t{n}")
        await drive(rt)
        outputs = [run.output for run in await rt.runs()]
    assert [texts(output) for output in outputs] == [WELL, WELL]
    ids = {m.tool_call_id for output in outputs for m in output["messages"] if m.type == "tool"}
    assert ids == {"c0", "c1"}
    assert keys == ["tool send:ann"]


async def test_a_policy_says_how_long_a_call_may_take_and_what_is_kept_of_it() -> None:
    never = asyncio.Event()

    @tool
    async def send(to: str) -> str:
        """Wait for ever."""
        await never.wait()
        return to

    durable = Durable({"send": Policy(timeout=timedelta(milliseconds=1), record=())})
    agent = create_agent(mailer(), [send], middleware=[durable])
    async with agent_run(agent) as (rt, run):
        assert run.error is not None
        assert run.error.kind == "perdure.errors.EffectTimeout"
        [record] = [one for one in await rt.effects(run.id) if one.name == "tool send"]
    assert record.arguments == {}
    assert record.state is EffectState.AGAIN


async def test_a_tool_that_is_an_effect_settles_itself() -> None:
    sent: list[str] = []

    @tool
    @perdure.effect(unknown="hold")
    async def send(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return f"sent to {to}"

    agent = create_agent(mailer(), [send], middleware=[Breaks("send"), Durable()])
    async with agent_run(agent) as (rt, run):
        assert texts(run.output) == WELL
        names = [one.name for one in await rt.effects(run.id)]
    assert sorted(names) == ["model", "model", "send"]
    assert sent == ["ann"]


async def test_a_command_comes_back_as_it_was(url: str) -> None:
    sent: list[str] = []

    @tool
    def send(to: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Send a mail, and note it."""
        sent.append(to)
        message = ToolMessage(f"sent to {to}", tool_call_id=tool_call_id)
        return Command(update={"messages": [message], "notes": [to]})

    agent = create_agent(
        mailer(),
        [send],
        middleware=[Breaks("send"), Durable()],
        state_schema=Noting.Notes,
    )
    async with agent_run(agent, url) as (_, run):
        assert texts(run.output) == WELL
        assert run.output["notes"] == ["ann"]
    assert sent == ["ann"]


async def test_what_is_injected_and_what_is_secret_is_not_recorded_and_there_again() -> None:
    seen: list[Any] = []

    @tool
    def send(
        to: str, password: str, state: Annotated[Any, InjectedState], runtime: ToolRuntime
    ) -> str:
        """Send a mail."""
        seen.append((password, len(state["messages"]), runtime.tool_call_id))
        if len(seen) == 1:
            raise ConnectionError
        return f"sent to {to}"

    model = Script(
        answers=[calls(("send", {"to": "ann", "password": "x"}, "c1")), says("it is sent")]
    )
    agent = create_agent(model, [send], middleware=[Durable()])
    async with agent_run(agent) as (rt, run):
        assert texts(run.output) == WELL
        [record] = [one for one in await rt.effects(run.id) if one.name == "tool send"]
    assert record.arguments == {"to": "ann"}
    assert seen == [("x", 2, "c1")] * 2


async def test_a_tool_may_ask_a_person(url: str) -> None:
    answers: list[str] = []

    @tool
    async def send(to: str) -> str:
        """Send a mail, if that is all right."""
        answers.append(perdure.ask(f"to {to}?"))
        return f"sent to {to}"

    agent = create_agent(mailer(), [send], middleware=[Durable()])
    async with agent_run(agent, url) as (rt, run):
        assert run.state is State.WAITING
        await rt.answer((await only_wait(rt, run)).id, "yes")
        await drive(rt)
        assert texts((await rt.get(run.id)).output) == WELL
        found = {one.name: one.state for one in await rt.effects(run.id)}
    assert found["tool send"] is EffectState.DONE
    assert answers == ["yes"]


async def test_a_result_that_cannot_be_stored_is_refused_by_the_name_of_its_tool() -> None:
    sent: list[str] = []

    @tool(response_format="content_and_artifact")
    def send(to: str) -> tuple[str, Any]:
        """Send a mail."""
        sent.append(to)
        return f"sent to {to}", object()

    agent = create_agent(mailer(), [send], middleware=[Durable()])
    async with agent_run(agent) as (_, run):
        assert run.state is State.FAILED
        assert run.error is not None
        assert "the result of effect 'tool send'" in run.error.message
        assert "artifact" in run.error.message
    assert sent == ["ann"]  # it happened, and must not again


async def test_an_error_that_the_tool_node_handles_is_a_result() -> None:
    post = Post()
    post.fails = [ValueError("no such address")]
    node = tool_node([post.tool], handle_tool_errors=True)
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_edge(START, "tools")
    asked = calls(("send", {"to": "ann"}, "c1"))
    async with healthy() as rt:
        rt.register(graph, name="tools")
        run = await rt.start("tools", {"messages": [asked]})
        await drive(rt)
        [record] = await rt.effects(run.id)
    assert record.state is EffectState.DONE
    assert record.result.status == "error"
    assert post.sent == ["ann"]


async def test_a_tool_that_is_not_there_is_told_to_the_model() -> None:
    model = Script(answers=[calls(("fax", {"to": "ann"}, "c1")), says("no fax")])
    agent = create_agent(model, [Post().tool], middleware=[Breaks("fax"), Durable()])
    async with agent_run(agent) as (_, run):
        assert run.state is State.DONE
        assert "fax is not a valid tool" in texts(run.output)[2]


# -- where it is


@EITHER
def test_outside_of_a_run_everything_is_called_plainly(api: Drive) -> None:
    post, model = Post(), mailer()
    agent = create_agent(model, [post.tool], middleware=[Durable()])
    assert texts(api(agent, HELLO)) == WELL
    assert texts(api(agent, HELLO)) == WELL
    assert len(model.asked) == 4
    assert len(set(post.keys)) == 2


def test_without_langchain_it_says_what_is_missing() -> None:
    code = "import sys; sys.modules['langchain'] = None; import perdure.langchain"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "perdure.langchain needs langchain, 1.3 or newer" in done.stderr


def test_a_tool_that_only_changes_the_state_is_safe() -> None:
    [given] = TodoListMiddleware().tools
    assert how(Durable(), given, "write_todos") == "retry"


# -- and processes that die


Killed = Callable[[str, str, Path, str], None]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after model", "after send"])
async def test_a_subagent_of_a_deep_agent_repeats_nothing_that_was_recorded(
    killed: Killed, point: str, sqlite_url: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    killed("deep", sqlite_url, ledger, point)
    run, lines = await taken_over("deep", sqlite_url, ledger)
    assert run.state is State.DONE, (run.reason, run.error)
    assert lines == ["helper 0", "helper 1", "model 0", "model 1", "send ann"]
    assert texts(run.output)[-1] == "all sent"
