"""How LangGraph and LangChain call nodes and tools."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from perdure.langgraph_port import call_stack
from perdure.langgraph_port.call_stack import tool_being_called


class Empty(TypedDict, total=False):
    value: Any


def is_parallel_call() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call_stack.is_parallel_call(True)
    return call_stack.is_parallel_call(False)


async def is_of_node() -> bool:
    caller = asyncio.current_task()
    assert caller is not None
    return call_stack.is_of_node(caller)


def one(function: Any, **options: Any) -> Any:
    builder: StateGraph[Any] = StateGraph(Empty)
    return builder.add_node("node", function, **options).add_edge(START, "node").compile()


@tool
def plain_tool(text: str) -> str:
    """Say whether it is beside."""
    return str(is_parallel_call())


@tool
async def async_tool(text: str) -> str:
    """Say whether it is beside, or in a task that is not the node's."""
    return str(is_parallel_call() or not await is_of_node())


@tool
def tool_with_graph(text: str) -> str:
    """Say whether a node of a graph inside of this tool is beside."""
    return str(one(plain).invoke({})["value"])


def plain(state: Empty) -> Empty:
    return {"value": is_parallel_call()}


async def coroutine(state: Empty) -> Empty:
    return {"value": is_parallel_call()}


def in_pool(state: Empty) -> Empty:
    with ThreadPoolExecutor() as pool:
        return {"value": pool.submit(is_parallel_call).result()}


async def in_thread(state: Empty) -> Empty:
    return {"value": await asyncio.to_thread(is_parallel_call)}


async def calls_tool(state: Empty) -> Empty:
    return {"value": (await plain_tool.ainvoke({"text": ""})) == "True"}


async def in_parallel(state: Empty) -> Empty:
    parts: Any = RunnableParallel(one=RunnableLambda(lambda _: is_parallel_call()))
    return {"value": (await parts.ainvoke({}))["one"]}


@pytest.mark.parametrize(("node", "expected"), [(plain, False), (in_pool, True)])
def test_the_stack_tells_a_plain_node_from_a_thread_that_it_started(
    node: Any, expected: bool
) -> None:
    assert one(node).invoke({})["value"] is expected


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (plain, False),
        (coroutine, False),
        (in_pool, True),
        (in_thread, True),
        (calls_tool, True),
        (in_parallel, True),
    ],
)
async def test_the_stack_tells_a_node_beside_a_loop_from_a_thread_that_it_started(
    node: Any, expected: bool
) -> None:
    assert (await one(node).ainvoke({}))["value"] is expected


@pytest.mark.parametrize(
    ("used", "expected"), [(plain_tool, True), (async_tool, True), (tool_with_graph, False)]
)
async def test_a_tool_of_a_tool_node_is_told_from_the_node(used: BaseTool, expected: bool) -> None:
    builder: StateGraph[Any] = StateGraph(MessagesState)
    graph = builder.add_node("tools", ToolNode([used])).add_edge(START, "tools").compile()
    call = {"name": used.name, "args": {"text": ""}, "id": "1", "type": "tool_call"}
    asked = {"messages": [AIMessage("", tool_calls=[call])]}
    found = [await graph.ainvoke(asked)]
    if used is not async_tool:
        found.append(graph.invoke(asked))
    assert {one["messages"][-1].content for one in found} == {str(expected)}


async def itself(state: Empty) -> Empty:
    return {"value": await is_of_node()}


async def gathers(state: Empty) -> Empty:
    return {"value": any(await asyncio.gather(is_of_node(), is_of_node()))}


@pytest.mark.parametrize("options", [{}, {"timeout": 60}], ids=["at once", "with a timeout"])
async def test_a_node_is_told_from_the_tasks_it_starts(options: dict[str, Any]) -> None:
    assert (await one(itself, **options).ainvoke({}))["value"] is True
    assert (await one(gathers, **options).ainvoke({}))["value"] is False
    parts = [chunk async for chunk in one(itself, **options).astream({}, stream_mode="values")]
    assert parts[-1]["value"] is True


class Finder(BaseCallbackHandler):
    run_inline = True

    def __init__(self) -> None:
        self.found: list[BaseTool | None] = []

    def on_tool_start(self, serialized: Any, input_str: str, **more: Any) -> None:
        self.found.append(tool_being_called())


async def test_a_callback_finds_the_tool_that_is_about_to_be_called() -> None:
    @tool
    def inner(text: str) -> str:
        """Say it."""
        return text

    @tool
    async def outer(text: str, callbacks: Any = None) -> str:
        """Have it said."""
        return str(await inner.ainvoke(text, {"callbacks": [finder]}))

    finder = Finder()
    inner.invoke("x", {"callbacks": [finder]})
    await outer.ainvoke("x", {"callbacks": [finder]})
    assert [one and one.name for one in finder.found] == ["inner", "outer", "inner"]
    assert tool_being_called() is None
