"""Operations on workers: they announce themselves, and can be asked to drain. Pure, no I/O.

Leases alone decide which worker drives a run (`claims.py`). These rows are informational: a silent
worker keeps its leases until they end. Which of two callers wins:

    two requests to drain      drain_worker: the first stays
    a request and a restart    announce_worker: a process that starts to work again under its old
                               id, with another `started_at`, is not draining
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.journal import NO_PROOF, Op, Row, Statement, read_op, with_params
from perdure.operations.events import actor_data
from perdure.operations.stored_rows import every

KEPT = 3_600_000
"""Milliseconds for which the row of a silent worker stays."""
MOST = 1000
"""How many workers, and how many driven runs, are listed."""


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
    params = {**row._asdict(), "before": row.seen_at - KEPT}
    names = ["last_heartbeat", "announce_worker", *(["forget_workers"] if is_new else [])]
    return Op(
        "announce_worker",
        with_params(params, *names),
        lambda rows: rows[0][0][0] if rows[0] else None,
        write=True,
        key=Statement("last_heartbeat", params),
        proof=NO_PROOF,
    )


def leave(worker: str) -> Op[None]:
    """Delete the row of a worker that has stopped, or is dead."""
    statement = Statement("delete_worker", {"worker": worker})
    return Op("leave", [statement], lambda rows: None, write=True)


def drain(worker: str, by: str | None, now: int) -> Op[bool]:
    """Ask a worker to drain. False: none with this id has announced itself."""
    params = {"worker": worker, "now": now, "by": json.dumps(actor_data(by))}
    return Op(
        f"drain {worker}",
        with_params(params, "drain_worker", "drain_request"),
        lambda rows: bool(rows[-1]),
        write=True,
        key=Statement("drain_request", params),
        proof=NO_PROOF,
    )


def drain_request(worker: str) -> Op[DrainRequest | None]:
    """The request to drain a worker, if there is one."""
    return read_op("drain_request", {"worker": worker}, _request)


def _request(rows: Sequence[Sequence[Row]]) -> DrainRequest | None:
    return DrainRequest(rows[0][0][0], load_actor(rows[0][0][1])) if rows[0] else None


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
    names = ("announced_workers", "count_driven", "driven_runs")
    return Op(
        "workers_and_runs",
        with_params({"count": MOST}, *names),
        lambda rows: Crew(
            every(WorkerRow, rows[:1]), [Load(*row) for row in rows[1]], every(DrivenRow, rows[2:])
        ),
    )
