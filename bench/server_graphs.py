"""Graphs of the measurements over HTTP. `langgraph dev` loads this file too: no perdure here."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, TypedDict

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt


class Tokens(BaseChatModel):
    """A model that answers with as many tokens as the last message says, without a pause."""

    @property
    def _llm_type(self) -> str:
        return "tokens"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        text = "".join(f"word{n} " for n in range(int(str(messages[-1].text))))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for n in range(int(str(messages[-1].text))):
            await asyncio.sleep(0)  # as a real one waits for its socket: others get their turn
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"word{n} "))


class Numbers(TypedDict, total=False):
    n: int
    at: float


async def model(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Tokens().ainvoke(state["messages"])]}


async def add(state: Numbers) -> Numbers:
    return {"n": state.get("n", 0) + 1}


async def ask(state: Numbers) -> Numbers:
    """Waits for a person, then notes the time."""
    interrupt("May I?")
    return {"at": time.time()}


def _chat() -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    return graph.compile(name="chat")


def _numbers(name: str, node: Any) -> Any:
    graph = StateGraph(Numbers)
    graph.add_node(name, node)
    graph.add_edge(START, name)
    graph.add_edge(name, END)
    return graph.compile(name=name)


chat = _chat()
one = _numbers("add", add)
gate = _numbers("ask", ask)

GRAPHS = {"chat": chat, "one": one, "gate": gate}
