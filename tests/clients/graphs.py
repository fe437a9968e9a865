"""Graphs that the clients of other projects talk to. They know nothing of the server they run on.

`chat` answers in tokens; a message that begins with "ask" makes it ask a person first, one that
begins with "count N" makes it count slowly. `gate` asks with Agent Inbox's `HumanInterrupt`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, TypedDict

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt


class Words(BaseChatModel):
    """A model that answers word by word: the numbers up to N, or what it was told."""

    @property
    def _llm_type(self) -> str:
        return "words"

    def _words(self, messages: list[BaseMessage]) -> tuple[list[str], float]:
        said = str(messages[-1].text).split()
        if said[:1] == ["count"]:
            return [f"{n} " for n in range(1, int(said[1]) + 1)], 0.05
        if said[:1] == ["burst"]:
            return [f"{n} " for n in range(1, int(said[1]) + 1)], 0
        return [f"{word} " for word in ["You", "said:", *said]], 0.01

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        text = "".join(self._words(messages)[0])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for word in self._words(messages)[0]:
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        words, pause = self._words(messages)
        for word in words:
            await asyncio.sleep(pause)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))


async def ask(state: MessagesState) -> dict[str, Any]:
    """Asks a person when the last message wants it; the answer becomes a human message."""
    if not str(state["messages"][-1].content).startswith("ask"):
        return {}
    answer = interrupt({"question": "May I?"})
    return {"messages": [("human", f"the answer is {answer}")]}


async def model(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Words().ainvoke(state["messages"])]}


class Gate(TypedDict, total=False):
    messages: Annotated[list[Any], lambda old, new: [*old, *new]]
    got: Any


async def request(state: Gate) -> Gate:
    """Asks as the Agent Inbox wants to be asked, and keeps what it was answered."""
    got = interrupt(
        [
            {
                "action_request": {"action": "send_mail", "args": {"to": "Ada", "text": "Hello"}},
                "config": {
                    "allow_ignore": True,
                    "allow_respond": True,
                    "allow_edit": True,
                    "allow_accept": True,
                },
                "description": "A letter to Ada is ready.",
            }
        ]
    )
    return {"got": got}


class Numbers(TypedDict, total=False):
    n: int
    log: Annotated[list[str], lambda old, new: [*old, *new]]


async def add(state: Numbers) -> Numbers:
    return {"n": state.get("n", 0) + 1, "log": ["add"]}


async def double(state: Numbers) -> Numbers:
    return {"n": state["n"] * 2, "log": ["double"]}


async def sleep(state: Numbers) -> Numbers:
    await asyncio.sleep(60)
    return {"n": -1}


async def fail(state: Numbers) -> Numbers:
    raise ValueError("this node always fails")


def _numbers(*nodes: Any) -> StateGraph[Numbers]:
    graph = StateGraph(Numbers)
    names = [node.__name__ if hasattr(node, "__name__") else "sub" for node in nodes]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph


def _chat() -> StateGraph[MessagesState]:
    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("model", model)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "model")
    graph.add_edge("model", END)
    return graph


def _gate() -> StateGraph[Gate]:
    graph = StateGraph(Gate)
    graph.add_node("request", request)
    graph.add_edge(START, "request")
    graph.add_edge("request", END)
    return graph


chat = _chat().compile(name="chat")
gate = _gate().compile(name="gate")
numbers = _numbers(add, double).compile(name="numbers")
one = _numbers(add).compile(name="one")
slow = _numbers(sleep).compile(name="slow")
faulty = _numbers(add, fail).compile(name="faulty")
family = _numbers(add, _numbers(double).compile(name="sub")).compile(name="family")

GRAPHS = {
    "chat": chat,
    "gate": gate,
    "numbers": numbers,
    "one": one,
    "slow": slow,
    "faulty": faulty,
    "family": family,
}
