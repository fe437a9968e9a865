"""What LangGraph keeps for itself is refused where it enters, and no failure is repeated for ever.

A command's `update` may name any channel of LangGraph's: with that of the sends a run failed again
and again, and with that of the answers a caller answered who may only start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import httpx
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import perdure
from perdure.testing import Clock
from perdure.types import Retry, Run, State
from tests.support.agent_server import AgentServer, served


class Talk(TypedDict, total=False):
    said: str


def ask(state: Talk) -> Talk:
    return {"said": interrupt("Pay?")}


def end(state: Talk) -> Talk:
    return state


def gate() -> Any:
    builder = StateGraph(Talk)
    builder.add_sequence([ask, end])
    builder.add_edge(START, "ask")
    return builder


UPDATES = [
    *("__pregel_tasks", "__pregel_push", "__pregel_anything", "__input__", "__interrupt__"),
    *("__resume__", "__error__", "__no_writes__", "__return__", "__previous__", "__start__"),
    *("__end__", "branch:to:end", "join:a+b:end"),
]
NODES = ["__pregel_push", "__pregel_tasks", "__resume__", "branch:to:end"]

COMMANDS: list[tuple[str, Command[Any]]] = [
    *((name, Command(update={"said": "x", name: [1]})) for name in UPDATES),
    ("__pregel_tasks", Command(update=[("__pregel_tasks", 1)])),
    ("__resume__", Command(resume="yes", update={"__resume__": "no"})),
    *((name, Command(goto=name)) for name in NODES),
    *((name, Command(goto=["end", Send(name, {})])) for name in NODES),
]


# -- the doors


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    runtime = perdure.Runtime(f"sqlite:///{tmp_path_factory.mktemp('reserved') / 'agents.db'}")
    runtime.register(gate(), name="gate")
    with closing(runtime), served(runtime) as running:
        yield running


def asking(http: httpx.Client) -> str:
    thread = str(uuid4())
    body = {"assistant_id": "gate", "input": {}, "if_not_exists": "create"}
    assert "__interrupt__" in http.post(f"/threads/{thread}/runs/wait", json=body).json()
    return thread


def on_the_wire(command: Command[Any]) -> dict[str, Any]:
    goto = command.goto if isinstance(command.goto, list) else [command.goto]
    nodes = [
        {"node": one.node, "input": one.arg} if isinstance(one, Send) else one
        for one in goto
        if one
    ]
    return {"resume": command.resume, "update": command.update, "goto": nodes}


def test_http_refuses_commands_with_reserved_names(server: AgentServer) -> None:
    http = server.http()
    thread = asking(http)
    for name, command in COMMANDS:
        body = {"assistant_id": "gate", "command": on_the_wire(command)}
        for path in (f"/threads/{thread}/runs", f"/threads/{thread}/runs/wait", "/runs"):
            if command.resume is not None and path == "/runs":
                continue
            refused = http.post(path, json=body)
            assert refused.status_code == 422, (path, command, refused.text)
            assert repr(name) in refused.json()["detail"]
    assert len(http.get(f"/threads/{thread}/runs").json()) == 1
    assert http.get(f"/threads/{thread}").json()["status"] == "interrupted"


async def test_python_refuses_commands_with_reserved_names(sqlite_url: str) -> None:
    async with perdure.Runtime(sqlite_url) as rt:
        bound = rt.register(gate(), name="gate")
        config: Any = {"configurable": {"thread_id": "called"}}
        await bound.ainvoke({}, config)
        for name, command in COMMANDS:
            with pytest.raises(perdure.BadArgument, match=re.escape(name)):
                await rt.start("gate", command, thread_id="started")
            with pytest.raises(perdure.BadArgument, match=re.escape(name)):
                await bound.ainvoke(command, config)
        assert await rt.runs(thread_id="started") == []
        assert (await bound.ainvoke(Command(resume="yes"), config))["said"] == "yes"


def test_where_langgraph_ignores_a_reserved_name_nothing_is_written(server: AgentServer) -> None:
    """Keys of an input, of a state's update and of what a node returns are only names of the
    state, and others are dropped, as LangGraph does."""
    http = server.http()
    odd = {name: [1] for name in UPDATES}
    thread = str(uuid4())
    body = {"assistant_id": "gate", "input": odd | {"said": "a"}, "if_not_exists": "create"}
    asked = http.post(f"/threads/{thread}/runs/wait", json=body).json()
    assert asked["__interrupt__"][0]["value"] == "Pay?"
    updated = http.post(f"/threads/{thread}/state", json={"values": odd, "as_node": "end"})
    assert updated.status_code == 200
    state = http.get(f"/threads/{thread}/state").json()
    assert (state["values"], state["next"]) == ({"said": "a"}, [])


# -- attempts


def failing_node() -> Any:
    return _row(Talk, _raise)


def failing_condition() -> Any:
    builder = gate_without_question()
    builder.add_conditional_edges("end", _raise, ["ask"])
    return builder


def failing_reducer() -> Any:
    return _row(Kept, lambda state: {"kept": 1})


def gate_without_question() -> Any:
    builder: Any = StateGraph(Talk)
    builder.add_node("end", end)
    builder.add_node("ask", ask)
    builder.add_edge(START, "end")
    return builder


def _refuse(before: Any, after: Any) -> Any:
    raise RuntimeError("always")


class Kept(TypedDict, total=False):
    kept: Annotated[int, _refuse]


def _raise(state: Any) -> Any:
    raise RuntimeError("always")


def _row(schema: Any, node: Any) -> Any:
    builder = StateGraph(schema)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder


@pytest.mark.parametrize("graph", [failing_node, failing_condition, failing_reducer])
async def test_a_run_that_makes_no_progress_ends_at_its_limit_wherever_it_fails(
    url: str, graph: Callable[[], Any]
) -> None:
    clock = Clock()
    async with perdure.Runtime(url, clock=clock) as rt:
        rt.register(graph(), name="failing", retry=Retry(attempts=3))
        run = await rt.start("failing", {}, thread_id="t")
        for _ in range(6):
            await rt.work(until_idle=True)
            clock.advance(timedelta(hours=1))
        ended: Run = await rt.get(run.id)
        assert ended.state in (State.FAILED, State.HELD)
        failures = [one for one in await rt.events(run.id) if one.kind == "failed"]
        assert len(failures) <= 3
