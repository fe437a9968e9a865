"""Plans about workers: list them with their runs, ask one to drain, find graphs that none drives.

A worker sends a heartbeat every `beat` seconds. After three missed ones it is silent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perdure.commands import runs
from perdure.commands.connection import Connection
from perdure.commands.events import actor_data
from perdure.commands.runs import LateGraph
from perdure.errors import NotFound, did_you_mean
from perdure.journal import (
    NO_PROOF,
    Capabilities,
    Op,
    Plan,
    Rows,
    Statement,
    read_op,
    rows_as,
    with_params,
)
from perdure.journal.names import check_id, maybe_text
from perdure.times import maybe_moment, moment
from perdure.types import DrivenRun, WorkerInfo, WorkerState
from perdure.verbs import verb

KEPT = 3_600_000
"""Milliseconds for which the row of a silent worker stays."""

MOST = 1000
"""How many workers, and how many driven runs, are listed."""

LATE = 5000
"""How long, in milliseconds, a run is due before we ask whether any worker has its graph."""

LOOKED_BACK = 10_000
"""Among how many runs we look for one of a graph that was driven."""


class WorkerRow(NamedTuple):
    """A worker as it announces itself."""

    id: str
    host: str
    pid: int
    graphs: str
    concurrency: int
    started_at: int
    seen_at: int
    drain_at: int | None = None
    drain_by: str | None = None


class DrivenRow(NamedTuple):
    """A run that is driven now."""

    worker: str
    run_id: str
    thread_id: str
    graph: str
    version: str
    driven: str | None
    updated_at: int
    due_at: int | None


class Load(NamedTuple):
    """How many runs a worker drives, and when the last of its leases ends."""

    worker: str
    runs: int
    lease_until: int
    until: int | None


class Crew(NamedTuple):
    """The workers of a journal, and what they drive."""

    announced: list[WorkerRow]
    loads: list[Load]
    driven: list[DrivenRow]


class DrainRequest(NamedTuple):
    """When a worker was asked to drain, and by whom."""

    at: int
    by: dict[str, str]


def announce(row: WorkerRow, *, is_new: bool) -> Op[int | None]:
    """Store the heartbeat of a worker, and return the time of the one before. The first one also
    deletes stale rows of others."""
    params = row._asdict()
    statements = with_params(params, "announced", "announce_worker")
    if is_new:
        stale = {"id": None, "before": row.seen_at - KEPT}
        statements.append(Statement("delete_workers", stale))
    return Op(
        "announce_worker",
        statements,
        lambda rows: rows[0][0][0] if rows[0] else None,
        write=True,
        key=Statement("announced", params),
        proof=NO_PROOF,
    )


def leave(worker: str) -> Op[None]:
    """Delete the row of a worker that has stopped, or is dead."""
    statement = Statement("delete_workers", {"id": worker, "before": None})
    return Op("leave", [statement], lambda rows: None, write=True)


def request_drain(worker: str, by: str | None, now: int) -> Op[bool]:
    """Ask a worker to drain. False: none with this id has announced itself."""
    params = {"id": worker, "now": now, "by": json.dumps(actor_data(by))}
    return Op(
        f"drain {worker}",
        with_params(params, "drain_worker", "announced"),
        lambda rows: bool(rows[-1]),
        write=True,
        key=Statement("announced", params),
        proof=NO_PROOF,
    )


def drain_request(worker: str) -> Op[DrainRequest | None]:
    """The request to drain a worker, if there is one."""
    return read_op("announced", {"id": worker}, _request)


def _request(rows: Rows) -> DrainRequest | None:
    for _, at, by in rows[0]:
        if at is not None:
            return DrainRequest(at, load_actor(by))
    return None


def load_actor(stored: str | None) -> dict[str, str]:
    """Who asked, from the row."""
    try:
        found = json.loads(stored or "{}")
    except ValueError:
        return {}
    return {name: str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def load_graphs(stored: str) -> tuple[str, ...]:
    """The graphs of a worker, from its row."""
    try:
        found = json.loads(stored)
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def dump_graphs(graphs: Iterable[str]) -> str:
    return json.dumps(sorted({*graphs}))


def crew() -> Op[Crew]:
    """Every worker, and what it drives."""
    names = ("announced_workers", "leased_workers", "driven_runs")
    return Op(
        "workers_and_runs",
        with_params({"count": MOST}, *names),
        lambda rows: Crew(
            rows_as(WorkerRow)(rows[:1]),
            [Load(*row) for row in rows[1]],
            rows_as(DrivenRow)(rows[2:]),
        ),
    )


BEAT = 10.0
"""Seconds between two heartbeats of a worker."""

BILLED_BEAT = 30.0
"""The same on a database that bills each row."""

SILENT_AFTER = 3
"""Beats after which a worker is silent."""


def beat_of(capabilities: Capabilities) -> float:
    """Seconds between two heartbeats on this database."""
    return BILLED_BEAT if capabilities.bills_rows else BEAT


def _announced(
    on: Connection, row: WorkerRow, load: Load | None, runs: Sequence[DrivenRow]
) -> WorkerInfo:
    return WorkerInfo(
        id=row.id,
        host=row.host,
        pid=row.pid,
        state=_state(on, row),
        driven=0 if load is None else load.runs,
        runs=_runs(runs),
        graphs=tuple(one.removesuffix("@") for one in load_graphs(row.graphs)),
        concurrency=row.concurrency,
        started_at=moment(row.started_at),
        seen_at=moment(row.seen_at),
        drain_at=maybe_moment(row.drain_at),
        drain_by=load_actor(row.drain_by),
    )


def _state(on: Connection, row: WorkerRow) -> WorkerState:
    if on.is_dead(row.id):
        return WorkerState.DEAD
    beat = beat_of(on.journal.capabilities)
    if on.clock.now() - row.seen_at > SILENT_AFTER * beat * 1000:
        return WorkerState.SILENT
    return WorkerState.ALIVE if row.drain_at is None else WorkerState.DRAINING


def _unannounced(on: Connection, load: Load, runs: Sequence[DrivenRow]) -> WorkerInfo:
    host, _, rest = load.worker.partition(":")
    pid = rest.partition(":")[0]
    state = WorkerState.ALIVE
    if on.is_dead(load.worker):
        state = WorkerState.DEAD
    elif load.until is None or load.until <= on.clock.now():
        state = WorkerState.SILENT
    return WorkerInfo(
        id=load.worker,
        host=host,
        pid=int(pid) if pid.isdecimal() else 0,
        state=state,
        driven=load.runs,
        runs=_runs(runs),
    )


def _runs(rows: Sequence[DrivenRow]) -> tuple[DrivenRun, ...]:
    return tuple(
        DrivenRun(row.run_id, row.thread_id, row.graph, row.version, moment(row.updated_at))
        for row in rows
    )


@verb(name="workers")
def list_workers(on: Connection) -> Plan[list[WorkerInfo]]:
    """List the processes that drive runs, each with its runs, oldest first.

    A worker sends a heartbeat every ten seconds, on D1 every thirty. It is `silent` after three
    missed heartbeats. Its row is deleted when it stops. A short tick and the caller of a bound
    graph send no heartbeat: they are listed while they drive something.

        for worker in await client.workers():
            print(worker.host, worker.pid, worker.state, worker.driven)

    Only a `Runtime` on the same host can see that a worker is `dead`.
    """
    found: Crew = yield crew()
    loads = {load.worker: load for load in found.loads}
    driven: dict[str, list[DrivenRow]] = {}
    for row in found.driven:
        driven.setdefault(row.worker, []).append(row)
    known = [
        _announced(on, row, loads.pop(row.id, None), driven.get(row.id, ()))
        for row in found.announced
    ]
    return known + [_unannounced(on, load, driven.get(load.worker, ())) for load in loads.values()]


@verb(effect=True, name="drain")
def drain_worker(on: Connection, worker_id: str, *, by: str | None = None) -> Plan[None]:
    """Ask a worker to drain, as SIGTERM does.

    It claims nothing more, stops its runs at their next step, and exits. It sees the request
    within seconds. A worker inside a server stops, and the server keeps running.

    Args:
        worker_id: The id of the worker, from `workers`.
        by: Who asks.

    Raises:
        NotFound: No worker with this id sends heartbeats.
    """
    maybe_text("by", by)
    id = check_id("worker", worker_id)
    if not (yield request_drain(id, by, on.clock.now())):
        raise NotFound("worker", id)
    on.wake()


# -- graphs that no worker has


@dataclass(frozen=True)
class UnknownGraphName:
    """A graph with runs that no worker has driven lately."""

    graph: str
    version: str
    runs: int
    suggestion: str
    """A sentence that names the graph that may be meant, after a space; or empty."""


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
