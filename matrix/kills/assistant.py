"""The second agent: `create_agent` with tools of every kind, and a person who approves some.

Nothing in it is marked by hand except the policies passed to `Durable`.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

import perdure
from matrix.kills import world
from perdure.langchain import Durable

Call = tuple[str, dict[str, Any]]
SCRIPT: list[list[Call]] = [
    [("look", {"at": "stock"}), ("remind", {"who": "ann"}), ("remind", {"who": "ann"})],
    [("transfer", {"to": "bob"}), ("transfer", {"to": "cat"}), ("purchase", {"item": "lamp"})],
    [("transfer", {"to": "bob"}), ("purchase", {"item": "lamp"}), ("remind", {"who": "dan"})],
]


class Scripted(BaseChatModel):
    """Asks for the tools of its script, turn by turn."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        if turn < len(SCRIPT):
            calls = [
                {"name": name, "args": args, "id": f"call {turn} {n}"}
                for n, (name, args) in enumerate(SCRIPT[turn])
            ]
            answer = AIMessage("", tool_calls=calls)
        else:
            said = [str(one.content) for one in messages if isinstance(one, ToolMessage)]
            answer = AIMessage(" ".join(sorted(said)))
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def look(at: str) -> str:
    """Look at something: nothing happens."""
    return f"{at} seen."


@tool
def remind(who: str) -> str:
    """Remind somebody, under a key that the far side knows."""
    world.here().happen("keyed", f"remind {who}", perdure.key())
    return f"{who} reminded."


@tool
def transfer(to: str) -> str:
    """Transfer money: the far side knows no key."""
    world.here().happen("held", f"transfer {to}", perdure.key())
    return f"{to} paid."


def _bought(item: str) -> str | None:
    return f"{item} bought." if world.here().knows(perdure.key()) else None


@tool
@perdure.effect(verify=_bought)
def purchase(item: str) -> str:
    """Buy something: the far side can be asked."""
    world.here().happen("asked", f"purchase {item}", perdure.key())
    return f"{item} bought."


def assistant(rt: perdure.Runtime) -> Any:
    durable = Durable(tools={"look": "read", "remind": "retry", "transfer": "hold"})
    approval = HumanInTheLoopMiddleware(interrupt_on={"transfer": True, "purchase": True})
    tools = [look, remind, transfer, purchase]
    return create_agent(Scripted(), tools, middleware=[approval, durable])
