"""A process that drives a run whose nodes were renamed, and is killed: a child of
`tests.support.fork_server`. Two branches, a join behind them; both sides of it ask and send."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

import perdure
from perdure.testing import set_commit_interval
from perdure.types import EventKind
from tests.support.fork_server import Tell
from tests.support.runtime_child import NEVER, Ledger, killed_at

OLD = {"first": "nap", "last": "finish"}
NEW = {"first": "snooze", "last": "finish off"}
RENAMED = {OLD[role]: NEW[role] for role in OLD}


class Notes(TypedDict, total=False):
    ledger: str
    log: Annotated[list[str], operator.add]


@perdure.effect
def send(ledger: str, text: str) -> str:
    """A far side that knows a repeated call by its key."""
    Ledger(ledger).add(f"{text} {perdure.key()}")
    return text


def asking(*questions: str) -> Any:
    def node(state: Notes) -> Notes:
        said = []
        for question in questions:
            said += [send(state["ledger"], question), perdure.ask(question)]
        return {"log": said}

    return node


def work(state: Notes) -> Notes:
    return {"log": [send(state["ledger"], "work")]}


def graph(names: dict[str, str]) -> StateGraph[Any]:
    builder: StateGraph[Any] = StateGraph(Notes)
    builder.add_node(names["first"], asking("one", "two"))
    builder.add_node("work", work)
    builder.add_node(names["last"], asking("three"))
    builder.add_edge(START, names["first"])
    builder.add_edge(START, "work")
    builder.add_edge([names["first"], "work"], names["last"])
    return builder


async def drive(order: dict[str, Any], tell: Tell) -> None:
    """Start the run with the old names, or answer and drive it to its end with the new ones."""
    begins = order["old"]
    rt = perdure.Runtime(order["url"])
    renamed = None if begins else RENAMED
    rt.register(graph(OLD if begins else NEW), name="g", renamed=renamed)
    async with rt:
        set_commit_interval(rt, NEVER)  # a clock that stands still: the same point is the same
        given = {"ledger": order["ledger"], "log": []}
        run = await rt.start("g", given, thread_id=order["thread"], key="the one")
        if begins:
            await rt.tick()
            return
        with killed_at(order["kill"]) as counts:
            for _ in range(10):
                if run.ended:
                    break
                for wait in await rt.waits(run_id=run.id):
                    await rt.answer(wait.id, "yes")
                await rt.tick()
                run = await rt.get(run.id)
        kinds = Counter(event.kind for event in await rt.events(run.id))
        tell("ended", run.state, run.output and run.output["log"], kinds[EventKind.WAIT])
        tell("points", dict(counts))
        tell("findings", [str(finding) for finding in (await rt.doctor()).findings])
