"""Graphs with runs that no worker has driven lately."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.commands import runs
from perdure.commands.connection import Connection
from perdure.commands.runs import LateGraph
from perdure.errors import did_you_mean
from perdure.journal import Plan

LATE = 5000
"""How long, in milliseconds, a run is due before we ask whether any worker has its graph."""

LOOKED_BACK = 10_000
"""Among how many runs we look for one of a graph that was driven."""


@dataclass(frozen=True)
class UnknownGraphName:
    """A graph with runs that no worker has driven lately."""

    graph: str
    version: str
    runs: int
    suggestion: str
    """A sentence that names the graph that may be meant, after a space; or empty."""


# -- graphs that no worker has


def unknown_graphs(on: Connection) -> Plan[list[UnknownGraphName]]:
    """Graphs whose runs have been due for a while, and that no worker has driven lately."""
    now, found = on.clock.now(), []
    late: list[LateGraph] = yield runs.late_graphs(now - LATE)
    driven: set[tuple[str, str]] = set()
    if late:
        driven = yield runs.driven_graphs(now + 1, LOOKED_BACK)
    for name, version, number, first_at in late:
        place = (name, version)
        # Behind a long queue of its own runs, the driven ones are older.
        if place in driven or place in (yield runs.driven_graphs(first_at, LOOKED_BACK)):
            continue
        suggestion = _suggestion(name, version, driven)
        found.append(UnknownGraphName(name, version, number, suggestion))
    return found


def unknown_graph(on: Connection, name: str, version: str) -> Plan[UnknownGraphName | None]:
    """The graph of this name, if no worker has driven it lately but some have driven others."""
    driven: set[tuple[str, str]] = yield runs.driven_graphs(on.clock.now() + 1, LOOKED_BACK)
    if not driven or (name, version) in driven:
        return None
    return UnknownGraphName(name, version, 1, _suggestion(name, version, driven))


def _suggestion(name: str, version: str, driven: set[tuple[str, str]]) -> str:
    versions = sorted(other for known, other in driven if known == name)
    if versions:
        has = ", ".join(repr(one) if one else "none" for one in versions)
        return f" Runs of {name!r} were driven in another version: {has}."
    return did_you_mean(name, {known for known, _ in driven})
