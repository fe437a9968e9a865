"""An ordinary LangGraph application, without anything of perdure in its nodes, and the process that
drives it until a node kills it."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import perdure

model = FakeListChatModel(responses=["words"])


class State(TypedDict, total=False):
    text: str


def application(killed: Path) -> Any:
    """Its second node kills the process while `killed` does not exist; so does the second node of
    the subgraph, while `killed` has not been written twice."""

    def die(times: int) -> None:
        before = killed.read_text() if killed.exists() else ""
        if len(before) < times:
            killed.write_text(f"{before}x")
            os.kill(os.getpid(), signal.SIGKILL)

    def plan(state: State) -> State:
        return {"text": str(model.invoke("plan").content)}

    async def draft(state: State) -> State:
        answer = await model.ainvoke("draft")
        die(1)
        return {"text": str(answer.content)}

    def check(state: State) -> State:
        return {"text": str(model.invoke("check").content)}

    def correct(state: State) -> State:
        die(2)
        return {"text": str(model.invoke("correct").content)}

    def approve(state: State) -> State:
        return {"text": str(interrupt("fine?"))}

    inner = StateGraph(State).add_sequence([check, correct]).add_edge(START, "check").compile()
    outer = StateGraph(State).add_sequence([plan, draft]).add_node("edit", inner)
    outer.add_node("approve", approve).add_edge(START, "plan")
    return outer.add_edge("draft", "edit").add_edge("edit", "approve")


def main(url: str, killed: str) -> None:
    lease = timedelta(seconds=2)
    with perdure.Runtime(url, durability="sync", lease=lease) as rt:
        rt.register(application(Path(killed)), name="letter")
        rt.blocking.work(until_idle=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
