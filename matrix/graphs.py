"""Agents of every shape. Each effect gives an answer of its own, so that a swapped one shows.

How long anything takes is left to chance, as it is with a network: which of two branches comes
first may differ from one process to the next.
"""

from __future__ import annotations

import asyncio
import operator
import random
import time
from typing import Annotated, Any, TypedDict

from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

import perdure
from matrix.scripted_model import Scripted

LONGEST = 0.004
"""Seconds an effect takes at most."""


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    turn: int


def far_side(order: str, key: str) -> str:
    """Takes an order under a key, by which it would know a second attempt."""
    return f"{order}: done"


@perdure.effect
def send(what: str) -> str:
    """Leaves the process."""
    time.sleep(random.uniform(0, LONGEST))
    return far_side(what, perdure.key())


@perdure.effect
async def fetch(what: str) -> str:
    """Leaves the process, as a coroutine."""
    await asyncio.sleep(random.uniform(0, LONGEST))
    return far_side(what, perdure.key())


def _node(name: str) -> Any:
    def node(state: State) -> State:
        return {"log": [send(f"{name} 1"), send(f"{name} 2")]}

    node.__name__ = name
    return node


def _coroutine(name: str) -> Any:
    async def node(state: State) -> State:
        await asyncio.sleep(random.uniform(0, LONGEST))
        first = await fetch(f"{name} 1")
        return {"log": [first, await fetch(f"{name} 2 after {first}")]}

    node.__name__ = name
    return node


def chain() -> Any:
    """Three nodes in a row, two effects each."""
    graph = StateGraph(State)
    for before, name in ((START, "one"), ("one", "two"), ("two", "three")):
        graph.add_node(name, _node(name))
        graph.add_edge(before, name)
    return graph


def branches() -> Any:
    """Two branches side by side, two effects each, the second made from the first's answer."""
    graph = StateGraph(State)
    for name in ("left", "right"):
        graph.add_node(name, _coroutine(name))
        graph.add_edge(START, name)
    graph.add_node("end", _coroutine("end"))
    graph.add_edge(["left", "right"], "end")
    return graph


def gathered() -> Any:
    """One node that runs three coroutines side by side, two effects each."""

    async def one(name: str) -> list[str]:
        await asyncio.sleep(random.uniform(0, LONGEST))
        first = await fetch(f"{name} 1")
        return [first, await fetch(f"{name} 2 after {first}")]

    async def node(state: State) -> State:
        found = await asyncio.gather(*(one(name) for name in ("a", "b", "c")))
        return {"log": [line for lines in found for line in lines]}

    graph = StateGraph(State)
    graph.add_node("gather", node)
    graph.add_edge(START, "gather")
    return graph


def fan_out() -> Any:
    """Four tasks made by Send, one effect each, and a node that joins them."""

    async def work(state: dict[str, Any]) -> State:
        return {"log": [await fetch(f"item {state['item']}")]}

    graph = StateGraph(State)
    node: Any = work
    graph.add_node("work", node)
    graph.add_node("join", _coroutine("join"))
    items = [Send("work", {"item": item}) for item in range(4)]
    graph.add_conditional_edges(START, lambda state: items, ["work"])
    graph.add_edge("work", "join")
    return graph


def subgraph() -> Any:
    """A graph inside a graph, effects in both."""
    inner = StateGraph(State)
    for before, name in ((START, "in 1"), ("in 1", "in 2")):
        inner.add_node(name, _node(name))
        inner.add_edge(before, name)
    compiled = inner.compile()

    def nested(state: State) -> State:
        done = compiled.invoke({"log": []})
        return {"log": done["log"]}

    graph = StateGraph(State)
    graph.add_node("before", _node("before"))
    graph.add_node("nested", nested)
    graph.add_node("after", _node("after"))
    graph.add_edge(START, "before")
    graph.add_edge("before", "nested")
    graph.add_edge("nested", "after")
    return graph


def loop() -> Any:
    """Twice round: an effect, a question to a person, an effect, all in one node."""

    def node(state: State) -> State:
        turn = state.get("turn", 0)
        first = send(f"draft {turn}")
        answer = interrupt({"draft": turn})
        return {"log": [first, send(f"mail {turn} {answer['ok']}")], "turn": turn + 1}

    graph = StateGraph(State)
    graph.add_node("touch", node)
    graph.add_edge(START, "touch")
    graph.add_conditional_edges(
        "touch", lambda s: END if s["turn"] == 2 else "touch", ["touch", END]
    )
    return graph


@task
def step(what: str) -> str:
    return send(what)


@entrypoint()
def functional(what: str) -> list[str]:
    """The functional API: tasks in a row and side by side, an effect each, and one in the body."""
    first = step(f"{what} 1").result()
    both = [step(f"{what} 2 {side}") for side in ("a", "b")]
    return [first, *(one.result() for one in both), send(f"{what} 3")]


def agent() -> Any:
    """`create_agent` with the `Durable` middleware: the far side of its tool knows keys."""
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    from perdure.langchain import Durable

    @tool
    def mail(to: str) -> str:
        """Send a mail."""
        return far_side(f"mail to {to}", perdure.key())

    mails = [("mail", {"to": to}) for to in ("ann", "bob", "cat")]
    model = Scripted(script=[mails[:2], mails[2:]], longest=LONGEST)
    return create_agent(model, [mail], middleware=[Durable({"mail": "retry"})])


INPUTS: dict[str, Any] = {
    "chain": {"log": []},
    "branches": {"log": []},
    "gathered": {"log": []},
    "fan_out": {"log": []},
    "subgraph": {"log": []},
    "loop": {"log": [], "turn": 0},
    "functional": "job",
    "agent": {"messages": [{"role": "user", "content": "Mail everybody.", "id": "m1"}]},
}
