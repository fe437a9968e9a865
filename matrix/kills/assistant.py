"""The second agent: `create_agent` with tools of every kind, and a person who approves some.

Nothing in it is marked by hand except the policies passed to `Durable`.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool

import perdure
from matrix.kills import world
from matrix.scripted_model import Scripted, Turn
from perdure.langchain import Durable

SCRIPT: list[Turn] = [
    [("look", {"at": "stock"}), ("remind", {"who": "ann"}), ("remind", {"who": "ann"})],
    [("transfer", {"to": "bob"}), ("transfer", {"to": "cat"}), ("purchase", {"item": "lamp"})],
    [("transfer", {"to": "bob"}), ("purchase", {"item": "lamp"}), ("remind", {"who": "dan"})],
]


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
    return create_agent(Scripted(script=SCRIPT), tools, middleware=[approval, durable])
