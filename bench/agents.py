"""The graphs that are driven: a loop that grows, a loop that stays small, a chat.

All payloads are incompressible text (base64 of random bytes) and are made before the clock starts.
"""

import base64
import operator
import random
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.graph.state import CompiledStateGraph

Saver: TypeAlias = BaseCheckpointSaver[Any]
Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]


def text(size: int = 1024, *, seed: int | str = 0) -> str:
    """`size` characters that no compressor shortens by more than base64's own quarter."""
    raw = random.Random(seed).randbytes(size * 3 // 4 + 3)
    return base64.b64encode(raw).decode()[:size]


def texts(count: int, size: int = 1024) -> list[str]:
    return [text(size, seed=n) for n in range(count)]


class Growing(TypedDict):
    n: int
    until: int
    log: Annotated[list[str], operator.add]


class Fixed(TypedDict):
    n: int
    until: int
    note: str


def growing_loop(saver: Saver | None, payloads: list[str]) -> Graph:
    """One node, `until` super-steps, each appending one payload to an `operator.add` list."""

    def step(state: Growing) -> dict[str, Any]:
        return {"n": state["n"] + 1, "log": [payloads[state["n"] % len(payloads)]]}

    return _loop(Growing, step, saver)


def fixed_loop(saver: Saver | None, payloads: list[str]) -> Graph:
    """One node, `until` super-steps, each replacing one payload: the state keeps its size."""

    def step(state: Fixed) -> dict[str, Any]:
        return {"n": state["n"] + 1, "note": payloads[state["n"] % len(payloads)]}

    return _loop(Fixed, step, saver)


def _loop(schema: type, step: Any, saver: Saver | None) -> Graph:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(schema)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda s: "step" if s["n"] < s["until"] else END)
    return builder.compile(checkpointer=saver)


class DeltaMessages(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def chat(saver: Saver | None, *, delta: bool = False) -> Graph:
    """One bot node that answers the n-th user message with 1 KB of its own.

    `delta` swaps MessagesState's reducer for LangGraph's beta DeltaChannel.
    """
    answers = texts(64)

    def bot(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(answers[len(state["messages"]) // 2 % len(answers)])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(DeltaMessages if delta else MessagesState)
    builder.add_node("bot", bot)
    builder.add_edge(START, "bot")
    builder.add_edge("bot", END)
    return builder.compile(checkpointer=saver)


def user_turns(first: int, last: int) -> Iterator[dict[str, Any]]:
    """The inputs of turns `first` to `last`, both included."""
    for n in range(first, last + 1):
        yield {"messages": [HumanMessage(text(seed=f"user {n}"))]}


def old_messages(turns: int) -> list[AnyMessage]:
    """What a state holds after `turns` turns."""
    made: list[AnyMessage] = []
    for n in range(turns):
        made += [HumanMessage(text(seed=f"user {n}")), AIMessage(text(seed=f"bot {n}"))]
    return made


def on(thread_id: str, *, steps: int = 25) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}, "recursion_limit": steps + 10}
