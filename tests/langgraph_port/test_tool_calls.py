"""A callback that is called inline finds the tool whose call it precedes, in either colour."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import BaseTool, tool

from perdure.langgraph_port.tool_calls import tool_being_called


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
