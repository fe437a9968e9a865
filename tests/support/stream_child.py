"""A graph that streams words, and the worker that drives it until it is killed: a child of
`tests.support.fork_server`.

A word is streamed in one of two ways: written by the node, or as a token of a model. Two nodes run
in parallel, one longer than the other, and a subgraph has two steps of its own.

Another graph counts in steps so short that one transaction takes several.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph

import perdure
from perdure.types import Chunk
from tests.support.fork_server import Tell

MODES = ("values", "updates", "messages", "custom")
PAUSE = 0.002


async def pace(word: str) -> None:
    """Wait before a word: long enough to be killed in between."""
    await asyncio.sleep(PAUSE)


class Speaker(GenericFakeChatModel):
    """A model that says its one message word by word, slowly enough to be killed in between."""

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        said = next(self.messages)
        text = said.content if isinstance(said, BaseMessage) else said
        for word in str(text).split(" "):
            await pace(word)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


def words(name: str, count: int) -> list[str]:
    return [f"{name}{n}" for n in range(count)]


def speaks(name: str, count: int) -> Any:
    """A node that streams half of its words by writing them, half as tokens of a model."""

    async def node(state: MessagesState) -> dict[str, Any]:
        write = get_stream_writer()
        for word in words(name, count):
            await pace(word)
            write({"from": name, "word": word})
        model = Speaker(messages=iter([AIMessage(" ".join(words(name.upper(), count)))]))
        return {"messages": [await model.ainvoke(state["messages"])]}

    node.__name__ = name
    return node


NODES = {"one": 8, "left": 4, "right": 12, "first": 6, "second": 6, "last": 8}


def story() -> StateGraph[Any, Any, Any, Any]:
    inner = StateGraph(MessagesState)
    inner.add_node("first", speaks("first", NODES["first"]))
    inner.add_node("second", speaks("second", NODES["second"]))
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    graph = StateGraph(MessagesState)
    for name in ("one", "left", "right", "last"):
        graph.add_node(name, speaks(name, NODES[name]))
    graph.add_node("inner", inner.compile())
    graph.add_edge(START, "one")
    graph.add_edge("one", "left")
    graph.add_edge("one", "right")
    graph.add_edge(["left", "right"], "inner")
    graph.add_edge("inner", "last")
    return graph


COUNTED = 60
COUNT_MODES = ("values", "updates", "tasks", "custom")


class Count(TypedDict):
    n: int


def count() -> StateGraph[Any, Any, Any, Any]:
    async def add(state: Count) -> Count:
        await pace("")
        get_stream_writer()(state["n"] + 1)
        return {"n": state["n"] + 1}

    graph = StateGraph(Count)
    graph.add_node("add", add)
    graph.add_edge(START, "add")
    graph.add_conditional_edges("add", lambda state: "add" if state["n"] < COUNTED else END)
    return graph


def counted(chunks: Sequence[Chunk]) -> dict[str, list[int]]:
    """The numbers that a reader has, by mode."""
    found: dict[str, list[int]] = {mode: [] for mode in COUNT_MODES}
    for chunk in chunks:
        data = chunk.data
        if chunk.mode == "updates":
            found["updates"].append(data["add"]["n"])
        elif chunk.mode == "values":
            found["values"].append(data["n"])
        elif chunk.mode == "custom":
            found["custom"].append(data)
        elif "result" in data:
            found["tasks"].append(data["result"]["n"])
    return found


def expected() -> dict[str, list[str]]:
    """What a reader has, by speaker, once the run is done."""
    said = {name: words(name, count) for name, count in NODES.items()}
    return said | {name.upper(): words(name.upper(), count) for name, count in NODES.items()}


class Listener:
    """A reader that follows the rules: it drops what a segment says is void."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.seen = 0
        self.segments = 0

    def hear(self, chunk: Chunk) -> None:
        assert chunk.n > self.seen, "a number came twice, or out of order"
        self.seen = chunk.n
        if chunk.replaces_from is not None:
            self.segments += 1
            self.chunks = [one for one in self.chunks if one.n < chunk.replaces_from]
        else:
            self.chunks.append(chunk)

    def said(self) -> dict[str, list[str]]:
        return said(self.chunks)


def said(chunks: Sequence[Chunk]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for chunk in chunks:
        if chunk.mode == "custom":
            found.setdefault(chunk.data["from"], []).append(chunk.data["word"])
        elif chunk.mode == "messages":
            message, _ = chunk.data
            for word in str(message.content).split():
                found.setdefault(word.rstrip("0123456789"), []).append(word)
    return found


async def work(order: dict[str, Any], tell: Tell) -> None:
    """Drive the graphs until killed."""
    rt = perdure.Runtime(order["url"])
    rt.register(story(), name="story", deaths=1000)
    rt.register(count(), name="count", deaths=1000)
    async with rt:
        tell("working")
        await rt.work(handle_signals=False)
