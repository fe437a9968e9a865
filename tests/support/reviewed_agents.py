"""Agents that ask people in every dialect, with what each one does once it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph

from perdure import Runtime
from perdure.types import Run, Wait

Calls = list[tuple[str, dict[str, Any]]]


class Scripted(FakeMessagesListChatModel):
    """A model that says its lines, one after each answer."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.i = sum(message.type == "ai" for message in messages)
        return super()._generate(messages, *args, **options)


def reviewed_agent(
    *calls: dict[str, Any],
    mode: str = "batched",
    allowed: Sequence[str] = ("approve", "edit", "reject"),
    says: str = "",
) -> tuple[Any, Calls]:
    """LangChain's agent, whose mails a person reviews; and the mails it sent."""
    sent: Calls = []

    @tool
    def send_mail(to: str, body: str, copies: int = 1) -> str:
        """Send a mail."""
        sent.append(("send_mail", {"to": to, "body": body, "copies": copies}))
        return "sent"

    orders = [{"name": "send_mail", "args": args, "id": f"c{n}"} for n, args in enumerate(calls)]
    model = Scripted(responses=[AIMessage("", tool_calls=orders), AIMessage("Done.")])
    config: Any = {"allowed_decisions": list(allowed), **({"description": says} if says else {})}
    options: dict[str, Any] = {} if mode == "batched" else {"interrupt_mode": mode}
    review = HumanInTheLoopMiddleware(interrupt_on={"send_mail": config}, **options)
    return create_agent(model, [send_mail], middleware=[review]), sent


class Answered(TypedDict, total=False):
    """The state of `asking`: what was answered."""

    answer: Any


def asking(ask: Any) -> StateGraph[Any]:
    """A graph with one node, which keeps what `ask()` returned."""

    def node(state: Answered) -> Any:
        return {"answer": ask()}

    return StateGraph(Answered).add_node("ask", node).add_edge(START, "ask")


def begin(runtime: Runtime, name: str, graph: Any, **options: Any) -> tuple[Run, Wait]:
    """Start a run of a graph that asks one question, and drive it there."""
    if name not in runtime.graphs:
        runtime.register(graph, name=name)
    input = {"messages": [("human", "Go")]} if "messages" in getattr(graph, "channels", {}) else {}
    run = runtime.blocking.start(name, input, **{"thread_id": f"{name}-1", **options})
    runtime.blocking.tick()
    [wait] = runtime.blocking.waits(run_id=run.id, kind="human")
    return run, wait
