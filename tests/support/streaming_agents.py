"""Small agents that stream: tokens of a fake model, custom data, subgraphs, questions, errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from fastapi import FastAPI
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.types import Retry
from tests.support.agent_server import AgentServer, serving

SAID = "the quick brown fox jumps"
"""What the model says."""


async def speak(state: MessagesState, said: str = SAID) -> MessagesState:
    """Streamed word by word."""
    model = GenericFakeChatModel(messages=iter([AIMessage(said)]))
    return {"messages": [await model.ainvoke(state["messages"])]}


class SlowModel(GenericFakeChatModel):
    """A model that takes its time for each word."""

    async def _astream(self, *arguments: Any, **named: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(*arguments, **named):
            await asyncio.sleep(0.01)
            yield chunk


async def ponder(state: MessagesState) -> MessagesState:
    """Streamed slowly; each time it says something else."""
    number = len(state["messages"])
    model = SlowModel(messages=iter([AIMessage(" ".join(f"{number}.{n}" for n in range(40)))]))
    return {"messages": [await model.ainvoke(state["messages"])]}


def count(state: MessagesState) -> MessagesState:
    write = get_stream_writer()
    for n in range(3):
        write({"n": n})
    return {"messages": []}


def flood(state: MessagesState) -> MessagesState:
    """More than any buffer between a server and its client holds."""
    write = get_stream_writer()
    for n in range(200):
        write({"n": n, "filling": "x" * 100_000})
    return {"messages": []}


def ask(state: MessagesState) -> MessagesState:
    get_stream_writer()("asking")
    return {"messages": [AIMessage(f"you said {interrupt('go on?')}", id="heard")]}


def nap(state: MessagesState) -> MessagesState:
    perdure.sleep(timedelta(milliseconds=50))
    return {"messages": []}


def fail(state: MessagesState) -> MessagesState:
    raise ValueError("this node always fails")


def call_tool(state: MessagesState) -> MessagesState:
    call = {"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
    return {
        "messages": [
            AIMessage("", id="asks", tool_calls=[call]),
            ToolMessage("3", tool_call_id="c1", name="add", id="result"),
        ]
    }


@dataclass
class Gate:
    """A node that says it has begun, and ends when the test opens the gate."""

    begun: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    async def gate(self, state: MessagesState) -> MessagesState:
        get_stream_writer()("at the gate")
        self.begun.set()
        await asyncio.to_thread(self.opened.wait, 60)
        return {"messages": [AIMessage("through", id="through")]}


def row(*nodes: Any) -> StateGraph[Any]:
    """A graph of these nodes, one after the other."""
    builder: StateGraph[Any] = StateGraph(MessagesState)
    builder.add_sequence(list(nodes))
    name = nodes[0][0] if isinstance(nodes[0], tuple) else nodes[0].__name__
    builder.add_edge(START, name)
    return builder


def streaming_runtime(url: str, gate: Gate, **options: Any) -> perdure.Runtime:
    """A runtime with every graph of this module."""
    runtime = perdure.Runtime(url, **options)
    graphs = {
        "chat": row(speak),
        "count": row(count),
        "flood": row(flood),
        "ask": row(ask, speak),
        "nap": row(nap, speak),
        "faulty": row(speak, fail),
        "outer": row(("sub", row(speak).compile()), count),
        "asks_inside": row(("sub", row(ask).compile())),
        "tools": row(call_tool),
        "gate": row(gate.gate, speak),
        "ponder": row(("one", ponder), ("two", ponder), ("three", ponder)),
    }
    for name, graph in graphs.items():
        runtime.register(graph, name=name, retry=Retry(attempts=1), deaths=1000)
    return runtime


@dataclass(frozen=True)
class StreamingServer:
    """These graphs behind a real server, with a worker."""

    http: AgentServer
    runtime: perdure.Runtime
    gate: Gate
    streams: Any
    """The streams that are open in it."""


@contextmanager
def streaming_server(url: str, **options: Any) -> Iterator[StreamingServer]:
    gate = Gate()
    with closing(streaming_runtime(url, gate)) as runtime:
        app, router = FastAPI(), runtime.router(**options)
        app.include_router(router)
        streams = cast(Any, router.route_class).access.streams
        with serving(app) as server:
            try:
                yield StreamingServer(server, runtime, gate, streams)
            finally:
                gate.opened.set()
                streams.stop()  # the server runs in a thread, where it gets no signals
