"""Plans about workers: list them with their runs, ask one to drain, find graphs that none drives.

A worker sends a heartbeat every `beat` seconds. After three missed ones it is silent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from perdure.commands.connection import Connection
from perdure.commands.events import actor_data
from perdure.errors import NotFound, did_you_mean
from perdure.journal import (
    NO_PROOF,
    Capabilities,
    Op,
    Plan,
    Row,
    Rows,
    Statement,
    all_rows,
    read_op,
    read_together,
    row_as,
    rows_as,
    with_params,
    write_op,
)
from perdure.journal.clock import UNLIMITED
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


class WorkerLeases(NamedTuple):
    """A worker that holds leases, and when they end."""

    worker: str
    runs: int
    """How many it holds."""
    lease_until: int
    """The first end of one, by the clock of its host; 0 if that is not known."""
    due_at: int
    """The last end of one, by the journal's clock."""


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
    return write_op({"id": worker, "before": None}, "delete_workers")


def leased_workers(count: int = UNLIMITED) -> Op[list[WorkerLeases]]:
    """Every worker that has a lease. A damaged row is left to its lease."""
    return read_op(
        "leased_workers",
        {"count": count},
        lambda rows: [row_as(WorkerLeases, row) for row in rows[0] if isinstance(row[0], str)],
    )


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

    def result(rows: Rows) -> DrainRequest | None:
        requests = [(at, by) for _, at, by in rows[0] if at is not None]
        return DrainRequest(requests[0][0], load_actor(requests[0][1])) if requests else None

    return read_op("announced", {"id": worker}, result)


def load_actor(stored: str | None) -> dict[str, str]:
    """Who asked, from the row."""
    actor = _loads(stored or "{}")
    return {name: str(text) for name, text in actor.items()} if isinstance(actor, dict) else {}


def load_graphs(stored: str) -> tuple[str, ...]:
    """The graphs of a worker, from its row."""
    graphs = _loads(stored)
    return tuple(map(str, graphs)) if isinstance(graphs, list) else ()


def _loads(stored: str) -> Any:
    """What a column holds. None: it is damaged."""
    try:
        return json.loads(stored)
    except ValueError:
        return None


def dump_graphs(graphs: Iterable[str]) -> str:
    return json.dumps(sorted({*graphs}))


BEAT = 10.0
"""Seconds between two heartbeats of a worker."""

BILLED_BEAT = 30.0
"""The same on a database that bills each row."""

SILENT_AFTER = 3
"""Beats after which a worker is silent."""


def beat_of(capabilities: Capabilities) -> float:
    """Seconds between two heartbeats on this database."""
    return BILLED_BEAT if capabilities.bills_rows else BEAT


def _info(
    on: Connection,
    id: str,
    row: WorkerRow | None,
    leases: WorkerLeases | None,
    driven: Sequence[DrivenRow],
) -> WorkerInfo:
    """A worker by its row, or without one by its leases."""
    now = on.clock.now()
    if row is None:
        host, _, rest = id.partition(":")
        pid = rest.partition(":")[0]
        seen = WorkerInfo(id, host, int(pid) if pid.isdecimal() else 0, WorkerState.ALIVE, 0)
        is_silent = leases is None or leases.due_at <= now
    else:
        seen = WorkerInfo(
            id=id,
            host=row.host,
            pid=row.pid,
            state=WorkerState.ALIVE if row.drain_at is None else WorkerState.DRAINING,
            driven=0,
            graphs=tuple(one.removesuffix("@") for one in load_graphs(row.graphs)),
            concurrency=row.concurrency,
            started_at=moment(row.started_at),
            seen_at=moment(row.seen_at),
            drain_at=maybe_moment(row.drain_at),
            drain_by=load_actor(row.drain_by),
        )
        is_silent = now - row.seen_at > SILENT_AFTER * beat_of(on.journal.capabilities) * 1000
    state = WorkerState.SILENT if is_silent else seen.state
    return replace(
        seen,
        state=WorkerState.DEAD if on.is_dead(id) else state,
        driven=0 if leases is None else leases.runs,
        runs=tuple(
            DrivenRun(one.run_id, one.thread_id, one.graph, one.version, moment(one.updated_at))
            for one in driven
        ),
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
    announced, leased, driven = yield read_together(
        "workers_and_runs",
        read_op("announced_workers", {"count": MOST}, rows_as(WorkerRow)),
        leased_workers(MOST),
        read_op("driven_runs", {"count": MOST}, rows_as(DrivenRow)),
    )
    rows = {row.id: row for row in announced}
    leases = {one.worker: one for one in leased}
    driven_by: dict[str, list[DrivenRow]] = {}
    for run in driven:
        driven_by.setdefault(run.worker, []).append(run)
    return [
        _info(on, id, rows.get(id), leases.get(id), driven_by.get(id, ()))
        for id in dict.fromkeys([*rows, *leases])
    ]


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
    now, unknown = on.clock.now(), []
    late: list[Row] = yield read_op("late_graphs", {"late": now - LATE}, all_rows)
    driven: set[Row] = (yield _driven_graphs(now + 1)) if late else set()
    for name, version, number, first_at in late:
        place = (name, version)
        # Behind a long queue of its own runs, the driven ones are older.
        if place not in driven and place not in (yield _driven_graphs(first_at)):
            suggestion = _suggestion(name, version, driven)
            unknown.append(UnknownGraphName(name, version, number, suggestion))
    return unknown


def unknown_graph(on: Connection, name: str, version: str) -> Plan[UnknownGraphName | None]:
    """The graph of this name, if no worker has driven it lately but some have driven others."""
    driven: set[Row] = yield _driven_graphs(on.clock.now() + 1)
    if not driven or (name, version) in driven:
        return None
    return UnknownGraphName(name, version, 1, _suggestion(name, version, driven))


def _driven_graphs(before: int) -> Op[set[Row]]:
    """(name, version) of the graphs with a run that a worker has claimed, among the last ones
    accepted before a time."""
    params = {"before": before, "count": LOOKED_BACK}
    return read_op("driven_graphs", params, lambda rows: {(a, b) for a, b in rows[0]})


def _suggestion(name: str, version: str, driven: set[Row]) -> str:
    versions = sorted(other for known, other in driven if known == name)
    if versions:
        has = ", ".join(repr(one) if one else "none" for one in versions)
        return f" Runs of {name!r} were driven in another version: {has}."
    return did_you_mean(name, {known for known, _ in driven})
