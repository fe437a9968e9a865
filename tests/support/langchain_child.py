"""Agents of LangChain with a scripted model, and a process that dies while it drives one:
`python -m tests.support.langchain_child <agent> <url> <ledger> <point>`.

The model answers by how many of its own messages it is shown. Who is told to `break_after` a call
raises once it came back through `Durable`, so that what was recorded is not in a checkpoint yet.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from pydantic import PrivateAttr

import perdure
from perdure.langchain import Durable
from perdure.testing import watch_points
from tests.support.fork_server import Tell

HELLO: Any = {"messages": [HumanMessage("hello", id="h")]}
TOKENS = 7


class Script(BaseChatModel):
    """Gives its answers in turn, and remembers what it was asked."""

    answers: list[Any]
    model_name: str = "script-1"
    _asked: list[list[str]] = PrivateAttr(default_factory=list)
    _fails: list[Exception] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "script"

    @property
    def asked(self) -> list[list[str]]:
        return self._asked

    def fail(self, *errors: Exception) -> None:
        """With these, one each, before it answers again."""
        self._fails.extend(errors)

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=[str(tool) for tool in tools], **options)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        self._asked.append([str(message.content) for message in messages])
        if self._fails:
            raise self._fails.pop(0)
        turn = sum(isinstance(message, AIMessage) for message in messages)
        answer = self.answers[turn].model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=answer)])


USAGE: Any = {"input_tokens": 5, "output_tokens": 2, "total_tokens": TOKENS}


def says(text: str) -> AIMessage:
    return AIMessage(text, usage_metadata=USAGE)


def calls(*wanted: tuple[str, dict[str, Any], str]) -> AIMessage:
    """An answer that asks for tools: name, arguments, id."""
    asked: Any = [{"name": name, "args": args, "id": id} for name, args, id in wanted]
    return AIMessage("", tool_calls=asked, usage_metadata=USAGE)


class Broken(Exception):
    """Raised between a call and its checkpoint."""


class Breaks(AgentMiddleware[Any, Any, Any]):
    """Does something once, right after a call of `after` came back: "model", or a tool's name."""

    def __init__(self, after: str, how: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.tools = []
        self._left, self._how = [after], how

    def _passed(self, what: str) -> None:
        if what in self._left:
            self._left.remove(what)
            if self._how is None:
                raise Broken(what)
            self._how()

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        answer = handler(request)
        self._passed("model")
        return answer

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        answer = await handler(request)
        self._passed("model")
        return answer

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        told = handler(request)
        self._passed(request.tool_call["name"])
        return told

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        told = await handler(request)
        self._passed(request.tool_call["name"])
        return told


# -- the process that dies


class Ledger:
    """What happened in the world, whatever becomes of the process that did it."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def add(self, line: str) -> None:
        file = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


class Told(Script):
    """A script that notes in a ledger which answer it gave."""

    ledger: str
    role: str = "model"

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        Ledger(self.ledger).add(f"{self.role} {turn}")
        return super()._generate(messages, *args, **options)


def plain_agent(ledger: str, *around: AgentMiddleware[Any, Any, Any]) -> Any:
    """Sends a mail and money at once, then is done."""

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        Ledger(ledger).add(f"send {to} {perdure.key()}")
        return f"sent to {to}"

    @tool
    def wire(to: str) -> str:
        """Send money."""
        Ledger(ledger).add(f"wire {to}")
        return f"wired to {to}"

    send.metadata = {"idempotentHint": True}
    answers = [
        calls(("send", {"to": "ann"}, "c1"), ("wire", {"to": "bob"}, "c2")),
        says("all sent"),
    ]
    model = Told(answers=answers, ledger=ledger)
    return create_agent(model, [send, wire], middleware=[*around, Durable()])


def deep_agent(ledger: str, *around: AgentMiddleware[Any, Any, Any]) -> Any:
    """Has a helper who sends one mail; who is around is around the helper's calls."""
    from deepagents import create_deep_agent

    @tool
    def send(to: str) -> str:
        """Send a mail."""
        Ledger(ledger).add(f"send {to}")
        return f"sent to {to}"

    order = {"description": "mail ann", "subagent_type": "mailer"}
    main = Told(answers=[calls(("task", order, "t1")), says("all sent")], ledger=ledger)
    helper = Told(
        answers=[calls(("send", {"to": "ann"}, "c1")), says("ann has it")],
        ledger=ledger,
        role="helper",
    )
    return create_deep_agent(
        model=main,
        middleware=[Durable({"task": "retry"})],  # what the helper does is recorded by itself
        subagents=[
            {
                "name": "mailer",
                "description": "sends mails",
                "system_prompt": "You send mails.",
                "model": helper,
                "tools": [send],
                "middleware": [*around, Durable()],
            }
        ],
    )


AGENTS: dict[str, Callable[..., Any]] = {"plain": plain_agent, "deep": deep_agent}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_inside(effect: str) -> None:
    """Once the function of an effect was called, and before its outcome is recorded."""

    def hook(point: str) -> None:
        if point == f"effect {effect}.after":
            die()

    watch_points(hook)


async def run(order: dict[str, Any], tell: Tell) -> None:
    """`after model`: once that is recorded. `inside tool send`: while it is called."""
    agent, ledger, point = order["agent"], order["ledger"], order["point"]
    where, _, what = point.partition(" ")
    around = [Breaks(what, die)] if where == "after" else []
    if where == "inside":
        die_inside(what)
    async with perdure.Runtime(order["url"], durability="sync") as rt:
        rt.register(AGENTS[agent](ledger, *around), name="agent")
        await rt.start("agent", HELLO, thread_id="t")
        await rt.tick()
    raise AssertionError(f"{point} was not reached")
