"""`perdure start`: start a run, and wait for its end with --wait."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Exit, Option

from perdure.cli.options import At
from perdure.cli.output import command_for, print_json
from perdure.cli.parsing import parse_delay, parse_json, parse_pairs
from perdure.cli.target import check_graph, client_at, project_of
from perdure.errors import BadArgument
from perdure.text import printable

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run

POLL_INTERVAL = 0.2
"""Seconds between two reads of a run that is waited for."""


def start(
    graph: Annotated[str, Argument(metavar="GRAPH", help="Name of the graph.")],
    value: Annotated[str | None, Argument(metavar="JSON|@FILE|-", help="Input of the run.")] = None,
    at: At = None,
    input: Annotated[
        str | None, Option(metavar="JSON|@FILE|-", help="The input, as an option.")
    ] = None,
    context: Annotated[
        str | None, Option(metavar="JSON|@FILE|-", help="LangGraph's context.")
    ] = None,
    config: Annotated[
        str | None,
        Option(metavar="JSON|@FILE|-", help='LangGraph\'s config: {"recursion_limit": 50}.'),
    ] = None,
    thread: Annotated[
        str | None, Option(metavar="ID", help="Its thread.", show_default="a new one")
    ] = None,
    key: Annotated[
        str | None,
        Option(
            metavar="KEY",
            help="Idempotency key: the same key on the same thread returns the run it started "
            "before. Without --thread, the same key for the same graph.",
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        Option(
            "--metadata",
            "--label",
            metavar="KEY=VALUE",
            help="Metadata to find the run by; repeatable. The value is JSON, or else plain text.",
        ),
    ] = None,
    tag: Annotated[list[str] | None, Option(metavar="TAG", help="A tag; repeatable.")] = None,
    after: Annotated[
        str | None,
        Option(metavar="3d|TIME", help="Start after a duration, or at a time.", show_default="now"),
    ] = None,
    version: Annotated[
        str | None,
        Option(
            metavar="VERSION", help="Version of the graph.", show_default="the Runtime's in --at"
        ),
    ] = None,
    strategy: Annotated[
        Literal["enqueue", "reject", "interrupt", "rollback"],
        Option(help="What to do if the thread has an unfinished run."),
    ] = "enqueue",
    wait: Annotated[
        bool,
        Option(
            "--wait",
            help="Print its events to stderr until it has ended or is held. Exits with 1 unless "
            "it is done.",
        ),
    ] = False,
    json: Annotated[
        bool,
        Option(
            "--json",
            help="Print the run as JSON; with --wait, in its final state and with its output.",
        ),
    ] = False,
) -> None:
    """Start a run and print its id.

    The run is durable when its id is printed; workers drive it. A missing journal is created.
    Without an input the run continues from the last checkpoint of its thread. A Runtime or a
    project in --at refuses a graph that it does not have. With a URL the name cannot be checked: a
    note warns you if no worker has driven this graph recently.
    """
    from perdure.types import State

    if value is not None and input is not None:
        raise BadArgument("Give the input once: as the second argument, or as --input.")
    given = parse_json("The input", value) if value is not None else _parse("--input", input)
    delay = None if after is None else parse_delay("--after", after)
    pairs = parse_pairs("--metadata (--label)", metadata or ())
    given_context, given_config = _parse("--context", context), _parse("--config", config)
    check_graph(at, graph)
    with client_at(at, create=True) as client:
        run = client.blocking.start(
            graph,
            given,
            thread_id=thread,
            context=given_context,
            config=given_config,
            key=key,
            metadata=pairs,
            tags=tag or (),
            after=delay,
            version=version,
            multitask_strategy=strategy,
        )
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


def _why_late(client: Client, run: Run) -> str:
    """Why no worker drives the run, if none has for a while."""
    from datetime import UTC, datetime

    from perdure.cli.run_lookup import unknown_graphs
    from perdure.views.attention import LATE, blockers

    now = datetime.now(UTC)
    if run.due_at is None or now - run.due_at < LATE:
        return ""
    found = blockers(run, (), (), now, unknown_graphs(client, [run]))
    return found[0].text if found else ""


def _parse(option: str, text: str | None) -> Any:
    return None if text is None else parse_json(option, text)


def _warn_of_unknown(client: Client, run: Run) -> None:
    """Warn if the run would wait for a graph that no worker has: its name may be misspelt."""
    from perdure.views.attention import no_worker

    unknown = client.journal.run(client.services.runs.unknown_graph(run.graph, run.version))
    if unknown is not None:
        print(f"perdure: note: {printable(no_worker(unknown))}.", file=sys.stderr)


def _follow(client: Client, run_id: str, at: str | None) -> Run:
    """Print the events of a run to stderr until it has ended or is held."""
    from perdure.journal import Poll
    from perdure.types import State
    from perdure.views.event_wording import view_event

    last, seen, is_told, poll = None, 0, False, Poll(POLL_INTERVAL)
    while True:
        run = client.blocking.get(run_id, output=False)
        is_changed, last = run != last, run
        for event in client.blocking.events(run_id, after=seen) if is_changed else ():
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
        if not is_told and (late := _why_late(client, run)):
            print(f"          {printable(late)}", file=sys.stderr)
            is_told = True
        client.journal.pause(poll)
