"""`perdure workers`: the processes that drive runs; `perdure drain`: ask one to end."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from perdure.cli.options import At, By, Json, Place, actor
from perdure.cli.output import format_table, one_line, print_json
from perdure.cli.target import client_at, one_place
from perdure.errors import BadArgument, NotFound
from perdure.text import printable
from perdure.views.formatting import age, count

if TYPE_CHECKING:
    from perdure.types import WorkerInfo

HEADERS = ("WORKER", "STATE", "DRIVES", "STARTED", "GRAPHS")


def workers(place: Place = None, at: At = None, json: Json = False) -> None:
    """List the processes that drive runs.

    Shows how many runs each drives, its concurrency, its start and its graphs. A worker sends a
    heartbeat every ten seconds (every thirty on D1), and is silent after three missed ones. A tick,
    or the caller of a bound graph, is listed while it drives something.
    """
    with client_at(one_place(place, at)) as client:
        found, now = client.blocking.workers(), client.blocking.now()
    if json:
        for one in found:
            print_json(one)
    elif found:
        print(format_table(HEADERS, [_line(one, now) for one in found], shrinks=(4,)))
    else:
        print("No worker has announced itself, and no run is driven.")


def _line(one: WorkerInfo, now: datetime) -> tuple[str, ...]:
    state = one.state.value
    if state == "silent" and one.seen_at is not None:
        state = f"silent for {age(one.seen_at, now)}"
    drives = str(one.driven) + (f" of {one.concurrency}" if one.concurrency else "")
    started = "" if one.started_at is None else age(one.started_at, now)
    graphs = one_line(", ".join(one.graphs), 60) if one.graphs else "(not announced)"
    return printable(f"{one.host}:{one.pid}"), state, drives, started, graphs


def drain(
    worker: Annotated[
        str,
        Argument(
            metavar="WORKER",
            help="From `perdure workers`: host:pid, the pid, or the beginning of the id.",
        ),
    ],
    at: At = None,
    by: By = None,
) -> None:
    """Ask a worker to stop, as SIGTERM does.

    It claims nothing more, stops each run at its next step, gives its runs back and exits. A worker
    inside `perdure serve` stops, and the server keeps running. The worker sees the request within
    seconds.
    """
    with client_at(at) as client:
        one = _chosen(client.blocking.workers(), worker)
        client.blocking.drain(one.id, by=actor(by))
    print(f"{printable(one.id)} was asked to drain; it drives {count(one.driven, 'run')}.")


def _chosen(found: list[WorkerInfo], given: str) -> WorkerInfo:
    """The announced worker that `given` identifies."""
    known = [one for one in found if one.started_at is not None]
    meant = [
        one
        for one in known
        if one.id.startswith(given) or given in (f"{one.host}:{one.pid}", str(one.pid))
    ]
    if not meant:
        raise NotFound("worker", given)
    if len(meant) > 1:
        names = ", ".join(one.id for one in meant)
        raise BadArgument(f"{given} matches several workers: {names}. Pass the whole id.")
    return meant[0]
