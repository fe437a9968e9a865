"""A run counts what it did not do again when it continued, also in an unchanged application."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.cli import main
from tests.support.fork_server import ForkServer, Tell

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


def live(order: dict[str, Any], tell: Tell) -> None:
    """Drive it until a node kills this process, or until nothing is due."""
    lease = timedelta(seconds=2)
    with perdure.Runtime(order["url"], durability="sync", lease=lease) as rt:
        rt.register(application(Path(order["killed"])), name="letter")
        rt.blocking.work(until_idle=True)


def drive(server: ForkServer, url: str, killed: Path) -> int:
    return server.run(live, url=url, killed=str(killed)).status


def test_steps_and_model_calls_of_an_unchanged_application_are_counted(
    url: str, fork_server: ForkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = tmp_path / "killed"
    with perdure.Runtime(url, durability="sync") as rt:
        rt.register(application(killed), name="letter")
        run = rt.blocking.start("letter", {"text": ""})

        def saved() -> dict[str, int]:
            return dict(rt.blocking.get(run.id).saved)

        assert drive(fork_server, url, killed) == -signal.SIGKILL
        assert saved() == {"steps": 0, "effects": 0, "model_calls": 0}
        assert drive(fork_server, url, killed) == -signal.SIGKILL
        assert saved() == {"steps": 1, "effects": 0, "model_calls": 1}, "plan did not run again"
        assert drive(fork_server, url, killed) == 0
        assert saved() == {"steps": 4, "effects": 0, "model_calls": 4}, "plan, draft and check"
        [wait] = rt.blocking.waits()
        rt.blocking.answer(wait.id, "yes")
        rt.blocking.tick()
        done = rt.blocking.get(run.id)
        assert (done.state, done.output) == ("done", {"text": "yes"})
        assert saved() == {"steps": 9, "effects": 0, "model_calls": 8}, "all but approve"
    assert main(["show", run.id, "--at", url]) == 0
    assert "9 steps  8 model calls" in capsys.readouterr().out
