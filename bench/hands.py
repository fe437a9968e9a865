"""A process that works: `python -m bench.hands ROLE URL NUMBER`, told what to do line by line.

It says `ready` once everything is imported, connected and was used once. Then it answers each line
of its input with one line of JSON, and ends with its input. Started by `bench.fleet`.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, TypeAlias, TypedDict

Answer: TypeAlias = dict[str, float]
Work: TypeAlias = Callable[[list[str]], Answer]

CONCURRENCY = 50
"""Runs, or workflows, that one process has in hand at a time."""
QUEUE = "bench"
POLL = 0.02
"""Seconds between two looks of DBOS into its queue; its default of 1 would leave it idle."""


class Count(TypedDict):
    n: int
    until: int


def single(node: Any) -> Any:
    """A graph of one node."""
    from langgraph.graph import START, StateGraph

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(Count)
    return graph.add_node("node", node).add_edge(START, "node")


def graphs() -> dict[str, Any]:
    """What is driven: a graph of one node that does nothing, and a loop of super-steps."""
    from langgraph.graph import END, START, StateGraph

    def node(state: Count) -> dict[str, int]:
        return {"n": state["n"] + 1}

    steps: StateGraph[Any, Any, Any, Any] = StateGraph(Count)
    steps.add_node("node", node).add_edge(START, "node")
    steps.add_conditional_edges("node", lambda s: "node" if s["n"] < s["until"] else END)
    return {"noop": single(node), "steps": steps}


def effects() -> dict[str, Any]:
    """Graphs of one node that calls effects one after another.

    Those that ask for their key leave their outcome to the next commit; the others wait for it.
    """
    import perdure

    @perdure.effect
    def plain(n: int) -> int:
        perdure.key()
        return n + 1

    @perdure.effect
    def unkeyed(n: int) -> int:
        return n + 1

    def node_of(call: Callable[[int], int]) -> Any:
        def node(state: Count) -> dict[str, int]:
            n = state["n"]
            while n < state["until"]:
                n = call(n)
            return {"n": n}

        return node

    return {"effects": single(node_of(plain)), "effects-unkeyed": single(node_of(unkeyed))}


@contextmanager
def _perdure(url: str, number: str) -> Iterator[Work]:
    """`work`: until nothing is due. `work-on`: until SIGTERM."""
    import perdure

    with perdure.Runtime(url) as runtime:
        for name, graph in {**graphs(), **effects()}.items():
            runtime.register(graph, name=name)
        runtime.register(sleeper(), name="sleeper")
        runtime.register(graphs()["noop"], name=f"warm-{number}")
        for _ in range(5):
            asyncio.run(runtime.start(f"warm-{number}", {"n": 0, "until": 1}))
        asyncio.run(runtime.tick())

        def work(words: list[str]) -> Answer:
            spent = time.process_time()
            idle = words[0] == "work"
            counts = asyncio.run(runtime.work(concurrency=CONCURRENCY, until_idle=idle))
            return {"cpu": time.process_time() - spent, "claimed": counts.claimed}

        yield work


def sleeper() -> Any:
    """A graph that sleeps for longer than any benchmark takes."""
    import perdure

    def node(state: Count) -> dict[str, int]:
        perdure.sleep(timedelta(days=30))
        return {"n": state["n"] + 1}

    return single(node)


@contextmanager
def _stuck(url: str, number: str) -> Iterator[Work]:
    """`work N`: drive until N runs are in the middle of a node, say so, and stay there.

    Its graph has the name of the one that other workers finish.
    """
    import perdure

    entered = count(1)
    wanted = 0

    async def node(state: Count) -> dict[str, int]:
        if next(entered) == wanted:
            print("{}", flush=True)
        await asyncio.sleep(3600)
        return {}

    with perdure.Runtime(url) as runtime:
        runtime.register(single(node), name="noop")

        def work(words: list[str]) -> Answer:
            nonlocal wanted
            wanted = int(words[1])
            asyncio.run(runtime.work(concurrency=wanted))
            return {}

        yield work


@contextmanager
def _dbos(url: str, number: str) -> Iterator[Work]:
    """A DBOS process that takes workflows from its queue, all the time. `cpu`: what it has used."""
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "executor_id": f"bench-{number}",
            "application_version": "bench",
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )

    @DBOS.step()
    def step(n: int) -> int:
        return n + 1

    @DBOS.workflow(name="noop")
    def noop(until: int) -> int:
        return until

    @DBOS.workflow(name="steps")
    def steps(until: int) -> int:
        n = 0
        while n < until:
            n = step(n)
        return n

    DBOS.launch()
    for _ in range(5):
        DBOS.start_workflow(steps, 1).get_result()
    # Its queues are found once a second: this one was there before the process was.
    time.sleep(1.5)
    yield lambda words: {"cpu": time.process_time()}
    sys.stdout.flush()
    os._exit(0)  # not asked to wait for its background threads


@contextmanager
def _langgraph(url: str, number: str) -> Iterator[Work]:
    """`GRAPH COUNT STEPS`, `CONCURRENCY` runs at a time."""
    bare = {name: graph.compile() for name, graph in graphs().items()}

    def work(words: list[str]) -> Answer:
        name, times, until = words[0], int(words[1]), int(words[2])
        spent = time.process_time()
        asyncio.run(_at_once(bare[name], times, until))
        return {"cpu": time.process_time() - spent}

    work(["steps", "5", "2"])
    yield work


async def _at_once(graph: Any, times: int, until: int) -> None:
    left = iter(range(times))

    async def one_after_another() -> None:
        for _ in left:
            assert (await graph.ainvoke({"n": 0, "until": until}))["n"] == until

    await asyncio.gather(*(one_after_another() for _ in range(CONCURRENCY)))


ROLES = {"perdure": _perdure, "stuck": _stuck, "dbos": _dbos, "langgraph": _langgraph}


def main(role: str, url: str, number: str) -> None:
    logging.disable(logging.WARNING)
    with ROLES[role](url, number) as work:
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(work(line.split())), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
