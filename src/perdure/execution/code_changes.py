"""Whether the current graphs can go on with unfinished runs.

`find_change` is asked at each claim. `check` asks it of every run that has begun and not ended, for
a deploy that has not happened yet. It only reads. Runs that were last driven with one graph share
its fingerprint; if a graph has all that the old one had, their checkpoints are not read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from perdure.commands import runs, waits
from perdure.commands.runs import GraphUse, RunRow
from perdure.commands.waits import FINISHED
from perdure.errors import UNREADABLE, Damaged
from perdure.execution.drive import Driver, latest_checkpoint
from perdure.execution.graphs import (
    Graph,
    explain,
    fingerprint_of,
    is_kept,
    lost_nodes,
    subgraph,
)
from perdure.journal import Plan
from perdure.saver import Saver
from perdure.types import State
from perdure.verbs import verb

PAGE = 200


@dataclass(frozen=True)
class LostRun:
    """A run that would be held, because its graph no longer has the place where the run is."""

    run_id: str
    """The run."""
    thread_id: str
    """Its thread."""
    graph: str
    """Its graph."""
    version: str
    """Version of the graph."""
    state: State
    """State of the run."""
    lost: tuple[str, ...]
    """Nodes where it would continue, but which are gone or cannot be reached."""
    reason: str
    """What changed, and what to do."""


@dataclass(frozen=True)
class MissingGraph:
    """A graph that has unfinished runs and is not registered here."""

    graph: str
    """Name of the graph."""
    version: str
    """Its version."""
    runs: int
    """Number of unfinished runs."""


@dataclass(frozen=True)
class GraphCheck:
    """The result of `Runtime.check`."""

    checked: int
    """Number of unfinished runs."""
    lost: tuple[LostRun, ...]
    """Runs that the current graphs would hold."""
    missing: tuple[MissingGraph, ...]
    """Graphs with unfinished runs that are not registered here."""


def find_change(
    saver: Saver, row: RunRow, graph: Graph, at: str | None = None
) -> Plan[tuple[Graph, Any]]:
    """The graph that goes on with a run, and if the run's place is gone, the data of its event.
    The place is that of its checkpoint `at`, by default the latest."""
    if row.fingerprint is None:
        return graph, None
    stored = None
    if row.fingerprint != graph.fingerprint:
        stored = yield from _topology(row.fingerprint)
    if stored is None:
        return graph, None
    old = json.loads(stored)
    graph = graph.with_old_names(row.fingerprint, old)
    if graph.fingerprint == row.fingerprint:
        return graph, None
    new = json.loads(graph.topology)
    places = {"": (old, new)}
    for wait in [] if at is not None else (yield waits.of_run(row.id)):
        if wait.state not in FINISHED and wait.ns:
            places[wait.ns] = (subgraph(old, wait.ns) or {}, subgraph(new, wait.ns) or {})
    for ns, (before, after) in places.items():
        found = yield from latest_checkpoint(saver, row.thread_id, ns, at)
        if found is not None and (lost := lost_nodes(before, after, found)):
            return graph, explain(graph.name, ns, lost, before, after)
    return graph, None


def _topology(fingerprint: str) -> Plan[str | None]:
    stored: str | None = yield runs.topology(fingerprint)
    if stored is not None and fingerprint_of(stored) != fingerprint:
        raise Damaged(f"graph {fingerprint}", "its topology does not match its fingerprint")
    return stored


@verb()
def check(on: Driver) -> Plan[GraphCheck]:
    """Find the unfinished runs that this runtime's graphs would hold because they changed.

    It only reads. Call it in a test before a deploy, on the journal that the deploy will work
    on.

        assert not (await runtime.check()).lost

    `perdure check` prints the same.

    Returns:
        Runs whose place in the graph is gone, graphs with unfinished runs that are not
            registered here, and the number of runs checked.
    """
    uses: list[GraphUse] = yield runs.graphs_in_use()
    missing, lost = [], []
    for use in uses:
        graph = on.graphs.find(use.graph, use.version)
        if graph is None:
            missing.append(MissingGraph(use.graph, use.version, use.runs))
        elif use.fingerprint not in (None, graph.fingerprint):
            lost += yield from _lost_runs(on.saver, use, graph)
    return GraphCheck(sum(one.runs for one in uses), tuple(lost), _merged(missing))


def _lost_runs(saver: Saver, use: GraphUse, graph: Graph) -> Plan[list[LostRun]]:
    found: list[LostRun] = []
    stored = yield from _topology(str(use.fingerprint))
    if stored is None:
        return found
    old = json.loads(stored)
    renamed = graph.with_old_names(str(use.fingerprint), old)
    if is_kept(old, json.loads(renamed.topology)):
        return found
    after = ""
    while page := (yield runs.last_driven_with(use, after, PAGE)):
        after = page[-1].id
        for row in page:
            try:
                _, change = yield from find_change(saver, row, graph)
            except UNREADABLE as error:
                change = {"reason": str(error), "lost": []}
            if change is not None:
                found.append(
                    LostRun(
                        run_id=row.id,
                        thread_id=row.thread_id,
                        graph=row.graph,
                        version=row.version,
                        state=State(row.state),
                        lost=tuple(change["lost"]),
                        reason=change["reason"],
                    )
                )
    return found


def _merged(missing: list[MissingGraph]) -> tuple[MissingGraph, ...]:
    """Once for each graph, however many fingerprints it had."""
    counts: dict[tuple[str, str], int] = {}
    for one in missing:
        place = (one.graph, one.version)
        counts[place] = counts.get(place, 0) + one.runs
    return tuple(MissingGraph(*place, count) for place, count in counts.items())
