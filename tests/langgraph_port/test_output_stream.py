"""Where LangGraph keeps what it streams, and in which context it is put there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

from perdure.langgraph_port.output_stream import is_whole_message, tapped, with_tap

MODES = ["values", "updates", "messages", "custom", "tasks"]


class Saver(InMemorySaver):
    """Notes what had been tapped when each checkpoint was stored."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen
        self.before: list[int] = []

    async def aput(self, *args: Any) -> Any:
        self.before.append(len(self.seen))
        return await super().aput(*args)


def plain(state: MessagesState) -> dict[str, Any]:
    get_stream_writer()("written")
    return {"messages": [AIMessage("whole", id="whole")]}


async def speaks(state: MessagesState) -> dict[str, Any]:
    model = GenericFakeChatModel(messages=iter([AIMessage("two words")]))
    return {"messages": [await model.ainvoke("hi")]}


def compiled(saver: Saver) -> Any:
    inner = StateGraph(MessagesState).add_node(plain).add_edge(START, "plain").compile()
    graph = StateGraph(MessagesState).add_node(plain).add_node(speaks).add_node("inner", inner)
    graph.add_edge(START, "plain").add_edge("plain", "speaks").add_edge("speaks", "inner")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("subgraphs", [False, True])
async def test_every_chunk_is_tapped_in_order_before_the_checkpoint_that_follows_it(
    subgraphs: bool,
) -> None:
    seen: list[Any] = []
    saver = Saver(seen)
    config: Any = {"configurable": {"thread_id": "1"}}
    how: Any = {"stream_mode": MODES, "subgraphs": subgraphs}
    graph = compiled(saver)
    chunks = graph.astream({"messages": []}, config, durability="sync", **how)

    def tap(namespace: tuple[str, ...], mode: str, data: Any, tasks: str) -> None:
        seen.append((namespace, mode, data, tasks))

    given = [chunk async for chunk in tapped(chunks, tap, **how)]
    assert [one if subgraphs else ((), *one) for one in given] == [one[:3] for one in seen]
    values = [n for n, one in enumerate(seen) if one[1] == "values" and not one[0]]
    for at in values[1:-1]:
        assert at + 1 in saver.before, "a state came after its checkpoint"


async def test_a_config_taps_what_a_graph_and_its_subgraphs_emit_as_a_stream_does() -> None:
    modes = ["values", "updates", "tasks", "checkpoints", "debug", "custom"]
    seen: list[Any] = []
    saver = Saver(seen)
    config: Any = {"configurable": {"thread_id": "1"}}
    tap: Any = lambda *one: seen.append(one)  # noqa: E731
    how: Any = {"durability": "sync"}
    await compiled(saver).ainvoke({"messages": []}, with_tap(config, tap, frozenset(modes)), **how)
    other = compiled(Saver([])).astream(
        {"messages": []}, config, stream_mode=modes, subgraphs=True, **how
    )
    assert [_shape(one) for one in seen] == [_shape(one) async for one in other]
    values = [n for n, one in enumerate(seen) if one[1] == "values" and not one[0]]
    for at in values[1:-1]:
        assert at + 1 in saver.before, "a state came after its checkpoint"


def _shape(chunk: Any) -> Any:
    """What is the same in two calls of a graph."""
    namespace, mode, data, *_ = chunk
    return len(namespace), mode, data if mode == "custom" else sorted(data)


async def test_a_chunk_says_which_task_it_comes_from() -> None:
    seen: list[Any] = []
    config: Any = {"configurable": {"thread_id": "1"}}
    how: Any = {"stream_mode": MODES, "subgraphs": True}
    chunks = compiled(Saver(seen)).astream({"messages": []}, config, **how)
    tap: Any = lambda *one: seen.append(one)  # noqa: E731
    async for _ in tapped(chunks, tap, **how):
        await asyncio.sleep(0)
    ids = {one[2]["name"]: one[2]["id"] for one in seen if one[1] == "tasks" and not one[0]}
    written = [tasks for _, mode, _, tasks in seen if mode == "custom"]
    assert written[0] == f"plain:{ids['plain']}"
    assert written[1].startswith(f"inner:{ids['inner']}|plain:")
    tokens = [tasks for _, mode, data, tasks in seen if mode == "messages" and data[0].content]
    assert f"speaks:{ids['speaks']}" in tokens
    results = [tasks for _, mode, data, tasks in seen if mode == "tasks" and "result" in data]
    assert results[0] == f"plain:{ids['plain']}"


async def test_a_message_that_a_node_returns_is_told_from_the_pieces_of_one() -> None:
    seen: list[Any] = []
    config: Any = {"configurable": {"thread_id": "1"}}
    graph = compiled(Saver(seen))
    chunks = graph.astream({"messages": []}, config, stream_mode="messages")
    seen = [(is_whole_message(data), data[0].content) async for data in chunks]
    assert (True, "whole") in seen
    assert (False, "two") in seen


async def test_a_stream_that_is_left_or_fails_leaves_nothing_behind() -> None:
    seen: list[Any] = []
    config: Any = {"configurable": {"thread_id": "1"}}

    def fails(state: MessagesState) -> None:
        raise ValueError("no")

    graph = StateGraph(MessagesState).add_node(fails).add_edge(START, "fails").compile()
    chunks = graph.astream({"messages": []}, config, stream_mode=["custom"])
    with pytest.raises(ValueError, match="no"):
        async for _ in tapped(
            cast(AsyncGenerator[Any], chunks), lambda *_: None, ["custom"], False
        ):
            pass
    chunks = compiled(Saver(seen)).astream({"messages": []}, config, stream_mode=["values"])
    async for _ in tapped(chunks, lambda *_: None, ["values"], False):
        break
    await chunks.aclose()
