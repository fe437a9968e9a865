"""Workers for the chaos run, which are children of `tests.support.fork_server`."""

import asyncio
import contextlib
import operator
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import perdure
from perdure import Runtime
from perdure.errors import Unavailable
from tests.support.fork_server import Tell

LEASE = timedelta(seconds=1)
PATIENCE = perdure.Retry(attempts=25, first=timedelta(seconds=0.1), longest=timedelta(seconds=1))
BRANCHES = 3


class Work(TypedDict, total=False):
    run: str
    script: list[str]
    at: Annotated[int, lambda old, new: new]
    log: Annotated[list[str], operator.add]


class Part(Work):
    n: int


def follow(state: Work, folder: Path) -> Work:
    """One part of the script; it takes long enough to be hit in the middle."""
    run, at = state["run"], state["at"]
    what, _, more = state["script"][at].partition(" ")
    line = f"{run} {at} {what}"
    time.sleep(0.005)
    if what == "sleep":
        perdure.sleep(timedelta(seconds=float(more)))
    elif what == "ask":
        line += f" {perdure.ask(f'{run} {at}')}"
    elif what == "wait":
        line += f" {perdure.wait_for(f'{run} {at}')}"
    elif what == "fail":
        with contextlib.suppress(FileExistsError):
            (folder / f"{run}.{at}").touch(exist_ok=False)
            raise RuntimeError(line)
    time.sleep(0.005)
    return {"log": [line], "at": at + 1}


def branch(state: Part) -> Work:
    time.sleep(0.01)
    return {"log": [f"{state['run']} {state['at']} branch {state['n']}"]}


def route(state: Work) -> Any:
    if state["at"] == len(state["script"]):
        return END
    if state["script"][state["at"]] == "fan":
        return [Send("branch", {**state, "n": n}) for n in range(BRANCHES)]
    return "follow"


def build(folder: Path, *, in_loop: bool) -> Any:
    def blocking(state: Work) -> Work:
        return follow(state, folder)

    async def waiting(state: Work) -> Work:
        await asyncio.sleep(0.001)
        return follow(state, folder)

    builder = StateGraph(Work)
    builder.add_node("follow", waiting if in_loop else blocking)
    builder.add_node("branch", branch)
    builder.add_node("join", lambda state: {"at": state["at"] + 1})
    builder.add_edge("branch", "join")
    for node in (START, "follow", "join"):
        builder.add_conditional_edges(node, route, ["follow", "branch", END])
    return builder


def expected_log(run: str, script: list[str], answers: dict[str, str]) -> list[str]:
    """What a run adds to its thread's log when nothing disturbs it."""
    log = []
    for at, part in enumerate(script):
        what = part.partition(" ")[0]
        if what == "fan":
            log += [f"{run} {at} branch {n}" for n in range(BRANCHES)]
        elif what in ("ask", "wait"):
            log.append(f"{run} {at} {what} {answers[f'{run} {at}']}")
        else:
            log.append(f"{run} {at} {what}")
    return log


def expected_steps(script: list[str]) -> int:
    """How many checkpoints such a run leaves: two for its input, and one for each step."""
    return 2 + sum(2 if part == "fan" else 1 for part in script)


def work(order: dict[str, Any], tell: Tell) -> None:
    """What each worker does, until it is killed."""
    url, folder = order["url"], Path(order["folder"])
    while True:
        with contextlib.suppress(Unavailable), Runtime(url, lease=LEASE) as rt:
            for name, in_loop in (("blocking", False), ("waiting", True)):
                graph = build(folder, in_loop=in_loop)
                rt.register(graph, name=name, retry=PATIENCE, deaths=100)
            asyncio.run(rt.work(concurrency=8))
            return
        time.sleep(0.1)  # the database is away, and any supervisor would start us again
