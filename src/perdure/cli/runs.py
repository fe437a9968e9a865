"""`perdure start`, `fork`, `runs` and `show`: start a run, list them, look at one."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from click.exceptions import Exit

from perdure.cli.journal import selected
from perdure.cli.options import ID_HELP, At, Limit, Lines, Parameter, RunId, RuntimeAt
from perdure.cli.output import (
    STATE_STYLES,
    command_for,
    format_table,
    is_terminal,
    paint,
    paint_state,
    print_json,
    terminal_width,
    truncate,
)
from perdure.cli.run_page import print_event, print_report
from perdure.cli.target import check_graph, client_at, project_of, runtime_at
from perdure.cli.verb_commands import Done
from perdure.cli.verb_commands import command as verb_command
from perdure.commands import run_search, workers
from perdure.commands.starting import start
from perdure.errors import BadArgument, NotFound
from perdure.text import printable
from perdure.types import Run, State
from perdure.views.event_wording import view_event
from perdure.views.formatting import age, graph_title
from perdure.views.waiting_for import LATE, blockers, line_note, no_worker

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.commands.run_reads import RunReporter

HEADERS = ("RUN", "STATE", "GRAPH", "THREAD", "AGE", "NOTE")
NARROW = 110
"""On a terminal of fewer columns a run takes two lines."""
POLL_INTERVAL = 0.2
"""Seconds between two reads of a run that is waited for."""


def _started(done: Done) -> None:
    """Print the id of the new run; with --wait, its events until it has ended or is held."""
    client, at, run = done.client, done.at, done.result
    wait, json = done.flags["wait"], done.flags["json"]
    if not json:
        print(run.id, flush=True)
    if not hasattr(client, "graphs") and project_of(at) is None:
        _warn_of_unknown(client, run)
    if wait:
        run = _follow(client, run.id, at)
    if json:
        print_json(client.blocking.get(run.id) if wait else run)
    if wait and run.state is not State.DONE:
        raise Exit(1)


START = verb_command(
    start,
    _started,
    flags={
        "wait": "Print its events to stderr until it has ended or is held. Exits with 1 unless it "
        "is done.",
        "json": "Print the run as JSON; with --wait, in its final state and with its output.",
    },
    without=(
        *("durability", "on_parent_cancel", "detached", "webhook", "stream"),
        "stream_subgraphs",
    ),
    creates=True,
    check=lambda at, values: check_graph(at, values["graph"]),
)


def _warn_of_unknown(client: Client, run: Run) -> None:
    """Warn if the run would wait for a graph that no worker has: its name may be misspelt."""
    unknown = client.journal.run(workers.unknown_graph(client.engine, run.graph, run.version))
    if unknown is not None:
        print(f"perdure: note: {printable(no_worker(unknown))}.", file=sys.stderr)


def _follow(client: Client, run_id: str, at: str | None) -> Run:
    """Print the events of a run to stderr until it has ended or is held."""
    last, seen, has_warned = None, 0, False
    while True:
        run = client.blocking.get(run_id, output=False)
        has_changed, last = run != last, run
        for event in client.blocking.events(run_id, after=seen) if has_changed else ():
            seen = event.n
            view = view_event(event, run.id, run.thread_id)
            if view.routine:
                continue
            print(f"{event.at:%H:%M:%SZ} {printable(view.text)}", file=sys.stderr)
            for line in view.lines:
                print(f"          {printable(line)}", file=sys.stderr)
            if view.action is not None:
                print(f"          {command_for(view.action, at)}", file=sys.stderr)
        if run.ended or run.state is State.HELD:
            return run
        if not has_warned and (reason := _why_late(client, run)):
            print(f"          {printable(reason)}", file=sys.stderr)
            has_warned = True
        time.sleep(max(POLL_INTERVAL, client.journal.capabilities.poll))


def _why_late(client: Client, run: Run) -> str:
    """Why no worker drives the run, if none has for a while."""
    now = datetime.now(UTC)
    if run.due_at is None or now - run.due_at < LATE:
        return ""
    unknown = client.blocking.run(_reporter(client).unknown_graphs(run))
    found = blockers(run, (), (), now, unknown)
    return found[0].text if found else ""


def _reporter(client: Client) -> RunReporter:
    from perdure.commands.run_reads import RunReporter

    return RunReporter(client.engine)


def runs(
    at: At = None,
    *,
    children_of: Annotated[str | None, Parameter(metavar="RUN")] = None,
    limit: Limit = 50,
    json: Lines = False,
    **filters: Any,
) -> None:
    """List runs, newest first.

    Outputs are not read; `perdure show` and `perdure export` have them.

    Args:
        children_of: Only runs that nodes of this run started.
    """
    with client_at(at) as client:
        if children_of is not None:
            filters["parent_id"] = client.blocking.find(children_of).id
        if json:
            for run in islice(selected(client, filters, limit), limit):
                print_json({name: one for name, one in vars(run).items() if name != "output"})
            return
        found = client.blocking.runs(**filters, limit=limit + 1, output=False)
        if not found:
            print("No run matches." if any(filters.values()) else "There is no run yet.")
            return
        print(_table(client, found[:limit]))
        if len(found) > limit:
            print(paint(f"There are more than {limit}; see --limit.", "dim"))


def _table(client: Client, found: Sequence[Run]) -> str:
    now, unknown = datetime.now(UTC), client.blocking.run(_reporter(client).unknown_graphs(*found))
    lines = client.journal.run(run_search.lines_of(client.engine, found))
    rows = [
        (
            run.id,
            run.state,
            graph_title(run.graph, run.version),
            run.thread_id,
            age(run.created_at, now),
            line_note(line, now, unknown),
        )
        for run, line in zip(found, lines, strict=True)
    ]
    if not is_terminal() or terminal_width() >= NARROW:
        return format_table(HEADERS, rows, shrinks=(3, 2, 5), styles={1: STATE_STYLES})
    text = []
    for id, state, graph, thread, old, note in (map(printable, row) for row in rows):
        rest = "  ".join(filter(None, (f"{old:>4}", thread, note)))
        text.append(f"{id}  {paint_state(state, 9)}  {truncate(graph, terminal_width() - 49)}")
        text.append(paint(truncate(f"  {rest}", terminal_width()), "dim"))
    return "\n".join(text)


def fork(
    run: RunId,
    *,
    at: RuntimeAt = None,
    checkpoint: str | None = None,
    update: Any = None,
    as_node: Annotated[str | None, Parameter(metavar="NODE")] = None,
    thread: str | None = None,
    json: bool = False,
) -> None:
    """Start a run from a checkpoint of another.

    The new run is on a new thread, and the old one stays as it is. It needs the graphs: a Runtime
    or a project in --at. If the graph has changed and no longer has the run's place, pass
    --as-node.

    Args:
        checkpoint: Checkpoint to start from; by default the latest. `perdure show --events` lists
            them.
        update: Change the state first.
        as_node: Node that the update counts as; the run continues after it.
        thread: The new thread; by default a new id.
        json: Print the new run as JSON, not only its id.
    """
    with runtime_at(at) as runtime:
        source = runtime.blocking.find(run).id
        forked = runtime.blocking.fork(
            source, at=checkpoint, update=update, as_node=as_node, thread_id=thread
        )
    if json:
        print_json(forked)
    else:
        print(forked.id)


def show(
    run: Annotated[str | None, Parameter(ID_HELP)] = None,
    *,
    at: At = None,
    thread: str | None = None,
    events: bool = False,
    json: bool = False,
) -> None:
    """Show the timeline of one run.

    Shows where its time went, each segment with its steps, effects and waits, the worker that drove
    it, its parent and children, its scores, and what it waits for, with the command that lets it
    continue. A worker that dies leaves no event: the time until the next claim is shown as `with a
    worker that was lost`.

    Args:
        thread: Show the newest run of this thread.
        events: List every event as stored. With --json, whole, one per line.
        json: Print one JSON object: run, events, waits, effects, scores, children.
    """
    if (run is None) == (thread is None):
        raise BadArgument("Which run? Give its id, or --thread for the newest run of a thread.")
    with client_at(at) as client:
        ask = client.blocking
        newest = ask.runs(thread_id=thread, limit=1, output=False) if run is None else []
        if run is None and not newest:
            raise NotFound("run of the thread", str(thread))
        found = ask.find(run) if run is not None else newest[0]
        if events:
            for event in ask.events(found.id):
                print_event(event, json=json)
            return
        report = ask.run(_reporter(client).report(ask.get(found.id) if json else found))
    if json:
        print_json(report.as_json())
    else:
        print_report(report, at)
