"""Agents for the crash test: some are careful, each of the others has one fault."""

from __future__ import annotations

import asyncio
import http.client
import operator
import os
import random
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from pydantic import Field

import perdure
import perdure.testing
from perdure.langchain import Durable

if notes := os.environ.get("CRASHTEST_PIDS"):
    (Path(notes) / f"import-{os.getpid()}").touch()


class State(TypedDict, total=False):
    folder: str
    port: int
    log: Annotated[list[Any], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


def graph(*nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(State)
    builder.add_sequence(nodes)
    builder.add_edge(START, nodes[0].__name__)
    return builder


def plan(state: State) -> State:
    return {"log": ["plan"]}


def last(state: State) -> State:
    return {"log": ["last"]}


# -- careful ones


@perdure.effect
def mail(to: str) -> str:
    return f"mailed {to}" if perdure.key() else ""


@perdure.effect
def letter(to: str) -> str:
    return f"posted to {to}"


def posts_a_letter(state: State) -> State:
    return {"log": [letter("ana")]}


def mails(state: State) -> State:
    return {"log": [mail("ana"), mail("ben")]}


async def rests(state: State) -> State:
    perdure.sleep(timedelta(days=4))
    answer = perdure.ask({"draft": "hello"})
    return {"log": [answer]}


careful = graph(plan, mails, rests)
one_mail = graph(mails)
one_letter = graph(posts_a_letter)


@task
def mail_task(to: str) -> str:
    return mail(to)


@entrypoint()
def functional(given: dict[str, Any]) -> list[str]:
    return [mail_task(to).result() for to in given["log"]]


def factory() -> StateGraph[Any, Any, Any, Any]:
    return graph(plan)


def answers(state: State) -> State:
    """A message without an id of its own: LangGraph draws one."""
    return {"messages": [AIMessage("hello")]}


greeter = graph(answers)


@perdure.effect(unknown="hold")
def pay() -> int:
    return 7


def pays(state: State) -> State:
    return {"log": [pay()]}


careful_payer = graph(pays)


def listens(state: State) -> State:
    late = perdure.wait_for("late", timeout=timedelta(hours=1), default="nobody came")
    return {"log": [late, mail("ana"), perdure.wait_for("never")]}


listener = graph(listens)


def asks_far_side(folder: str) -> None:
    with open(Path(folder) / "asked", "a") as file:
        file.write("did it happen?\n")


@perdure.effect(verify=asks_far_side)
def store(folder: str) -> int:
    with open(Path(folder) / "stored", "a") as file:
        return file.write("a row\n")


def stores(state: State) -> State:
    return {"log": [store(state["folder"])]}


careful_writer = graph(stores)


# -- each with a fault


def appends(state: State) -> State:
    print("I am about to write")
    with open(Path(state["folder"]) / "sent", "a") as file:  # the line that appends
        file.write("a mail\n")
    return {"log": ["sent"]}


careless = graph(plan, appends)


def appends_later(state: State) -> State:
    """In its first run the step before is not on disk when it acts, in the others it is."""
    if (Path(state["folder"]) / "sent").exists():
        time.sleep(0.3)
    return appends(state)


slower = graph(plan, appends_later)


def posts(state: State) -> State:
    connection = http.client.HTTPConnection("127.0.0.1", state["port"])
    connection.request("POST", "/mail", b"hello")  # the line that posts
    connection.getresponse().read()
    connection.close()
    return {"log": ["posted"]}


poster = graph(posts, last)


async def connects(state: State) -> State:
    _, writer = await asyncio.create_task(asyncio.open_connection("127.0.0.1", state["port"]))
    writer.close()
    return {"log": ["connected"]}


connector = graph(connects)


def tells(state: State) -> State:
    perdure.testing.outside("a dove flies")  # the line that tells
    return {"log": ["told"]}


teller = graph(tells)

_heard: list[str] = []


def hears(state: State) -> State:
    _heard.append("a word")
    return {"log": ["heard"]}


def recalls(state: State) -> State:
    return {"log": [mail("ana"), len(_heard)]}


forgetful = graph(hears, recalls)


def draws(state: State) -> State:
    return {"log": [random.random()]}


gambler = graph(draws)


def chats(state: State) -> State:
    model = FakeListChatModel(responses=["hello"])
    return {"messages": [model.invoke("hi")]}  # the line that asks a model


chatter = graph(chats)


def breaks(state: State) -> State:
    raise ValueError("no such contact")


broken = graph(plan, breaks)


def starts_another(state: State) -> State:
    with perdure.Client(f"sqlite:///{state['folder']}/live.db") as client:
        client.blocking.start("another", {})
    return {}


starting = graph(plan, starts_another)


def hangs(state: State) -> State:
    time.sleep(600)  # the line that hangs
    return {}


hanging = graph(plan, hangs)


def notes_itself(state: State) -> State:
    if notes := os.environ.get("CRASHTEST_PIDS"):
        (Path(notes) / f"node-{os.getpid()}").touch()
        time.sleep(600)
    return {}


slow = graph(notes_itself)


def kills_its_parent(state: State) -> State:
    os.kill(os.getppid(), signal.SIGKILL)
    return {}


parricide = graph(kills_its_parent)

number = 7


# -- twice without any kill


def writes_then_asks(state: State) -> State:
    with open(Path(state["folder"]) / "sent", "a") as file:
        file.write("a mail\n")
    return {"log": [perdure.ask("Was it right?")]}


def tells_then_asks(state: State) -> State:
    perdure.testing.outside("a letter")
    return {"log": [perdure.ask("Was it right?")]}


writes_first = graph(writes_then_asks)
tells_first = graph(tells_then_asks)


def loop(state: State) -> State:
    for _ in range(2):
        with open(Path(state["folder"]) / "sent", "a") as file:
            file.write("a mail\n")
    return {"log": ["round"]}


loops = StateGraph(State).add_node(loop).add_edge(START, "loop")
loops.add_conditional_edges("loop", lambda state: "loop" if len(state["log"]) < 3 else "__end__")


# -- questions in known dialects


class Deleter(FakeListChatModel):
    """Asks for a tool that deletes everything, once."""

    responses: list[str] = Field(default_factory=lambda: ["done"])

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        found = super()._generate(messages, *args, **options)
        if not any(message.type == "tool" for message in messages):
            call: Any = {"name": "delete", "args": {}, "id": "call"}
            found.generations[0].message = AIMessage("", tool_calls=[call])
        return found


@tool
def delete() -> str:
    """Delete everything."""
    return "tool deleted everything"


def _approved(**options: Any) -> Any:
    approval = HumanInTheLoopMiddleware(interrupt_on={"delete": True}, **options)
    durable = Durable(tools={"delete": "retry"})
    return create_agent(Deleter(), [delete], middleware=[approval, durable])


def approved_agent() -> Any:
    return _approved()


def approved_per_call() -> Any:
    return _approved(interrupt_mode="per_call")


def asks_the_inbox(state: State) -> State:
    action = {"action": "delete", "args": {}}
    request = {"action_request": action, "config": {"allow_accept": True}, "description": None}
    [answer] = interrupt([request])
    return {"log": ["tool deleted everything" if answer["type"] == "accept" else "refused"]}


inbox = graph(asks_the_inbox)
