"""Commits per effect: what is written to disk for a call that settles.

Counted in a process of its own (`python -m bench.commits URL EFFECTS`), so that nothing that counts
is there when time is measured: the journal's commits by its probe, SQLite's fsyncs by a VFS shim.
PostgreSQL counts its own.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Literal, NamedTuple, TypedDict

import perdure
from bench.engines import LABEL
from bench.fsyncs import wal_syncs
from bench.report import Bar, Section, Table
from bench.rounds import Bench, say
from bench.texts import TEXTS


class Cost(NamedTuple):
    """Of one effect."""

    median: float
    mean: float
    fsyncs: float


class Count(TypedDict):
    n: int
    until: int


def _keyed(n: int) -> int:
    perdure.key()
    return n + 1


def _unkeyed(n: int) -> int:
    return n + 1


@dataclass(frozen=True, slots=True)
class Case:
    """An effect, and the commits it may cost: alone, and with the checkpoint of its step."""

    name: str
    call: Callable[[int], int]
    alone: int
    stepped: int
    durability: Literal["auto", "sync"] = "auto"


CASES = (
    Case("asks for its key", perdure.effect(name="keyed")(_keyed), 1, 1),
    Case("does not ask for its key", perdure.effect(name="unkeyed")(_unkeyed), 2, 2),
    Case('`unknown="hold"`', perdure.effect(name="hold", unknown="hold")(_keyed), 2, 2),
    Case(
        "`transactional=True`",
        perdure.effect(name="transactional", transactional=True)(_unkeyed),
        1,
        2,
    ),
    Case('`durability="sync"`', perdure.effect(name="sync")(_keyed), 2, 3, "sync"),
)
CHAIN, NODE = "one per step", "all in one step"


def commits(bench: Bench) -> Section:
    count = bench.pick(200, 50)
    rows: list[list[str]] = []
    bars: list[Bar] = []
    for kind, label in LABEL.items():
        if any(word in label.lower() for word in bench.without):
            continue
        with bench.databases.fresh(kind) as url:
            command = [sys.executable, "-m", "bench.commits", url, str(count)]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        for case, found in zip(CASES, json.loads(told), strict=True):
            chain, node = (Cost(*found[shape]) for shape in (CHAIN, NODE))
            name = f"{label}, {case.name}"
            say(f"commits  {name:<34} {chain.mean:.2f} one per step, {node.mean:.2f} in one step")
            rows.append(
                [name, *map(_figures, (chain, node)), *(f"{c.fsyncs:.2f}" for c in (chain, node))]
            )
            bars += [
                Bar(f"commits per effect, {name}", case.alone, node.median, unit=""),
                Bar(
                    f"commits per step with an effect, {name}", case.stepped, chain.median, unit=""
                ),
            ]
    head = ["", f"commits, {CHAIN}", f"commits, {NODE}", f"fsyncs, {CHAIN}", f"fsyncs, {NODE}"]
    return TEXTS["commits"].section([Table(head, rows)], bars, count=count)


def _figures(cost: Cost) -> str:
    return f"{cost.median:g} ({cost.mean:.2f})"


# -- in a process of its own


def count(url: str, effects: int) -> list[dict[str, Cost]]:
    """What an effect costs, in each case."""
    syncs = _syncs(url)
    return [
        {shape: _cost(url, case, shape, effects, syncs) for shape in (CHAIN, NODE)}
        for case in CASES
    ]


def _cost(url: str, case: Case, shape: str, effects: int, syncs: Callable[[], int]) -> Cost:
    before = syncs()
    asyncio.run(_run(url, case, shape, 1))
    between = syncs()
    made = asyncio.run(_run(url, case, shape, effects))
    fsyncs = (syncs() - between) - (between - before)
    return Cost(median(made), mean(made), fsyncs / (effects - 1))


def _syncs(url: str) -> Callable[[], int]:
    if not url.startswith("sqlite:"):
        return lambda: wal_syncs(url)
    from tests.support.disk import Disk

    disk = Disk.install()
    return lambda: disk.syncs


async def _run(url: str, case: Case, shape: str, effects: int) -> list[int]:
    """The commits from the begin of each call to that of the next."""
    from perdure.journal import failpoints

    made: list[int] = []

    def hook(point: str) -> None:
        if point.startswith("effect ") and point.endswith(".before"):
            made.append(0)
        elif point == "commit.after" and made:
            made[-1] += 1

    async with perdure.Runtime(url) as runtime:
        runtime.register(_graph(case.call, shape), name="bench")
        failpoints.hook = hook
        run = await runtime.start(
            "bench",
            {"n": 0, "until": effects},
            durability=case.durability,
            config={"recursion_limit": effects + 10},
        )
        await runtime.tick()
        failpoints.hook = None
        output = (await runtime.get(run.id)).output
        assert output == {"n": effects, "until": effects}, f"a run ended with {output}"
    return made[:-1]  # what comes after the last one is the end of the run


def _graph(call: Callable[[int], int], shape: str) -> Any:
    from langgraph.graph import END, START, StateGraph

    def step(state: Count) -> dict[str, int]:
        return {"n": call(state["n"])}

    def loop(state: Count) -> dict[str, int]:
        n = state["n"]
        while n < state["until"]:
            n = call(n)
        return {"n": n}

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(Count)
    graph.add_node("node", step if shape == CHAIN else loop).add_edge(START, "node")
    return graph.add_conditional_edges("node", lambda s: "node" if s["n"] < s["until"] else END)


if __name__ == "__main__":
    print(json.dumps(count(sys.argv[1], int(sys.argv[2]))))
