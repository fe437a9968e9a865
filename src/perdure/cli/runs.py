"""`perdure runs`: a list of runs, newest first; `perdure show`: one run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from perdure.cli import output
from perdure.cli.options import (
    ID_HELP,
    At,
    Graph,
    Json,
    Limit,
    Metadata,
    Place,
    Since,
    States,
    Thread,
    Until,
)
from perdure.cli.parsing import parse_pairs, parse_past
from perdure.cli.target import client_at, one_place
from perdure.errors import BadArgument
from perdure.text import printable
from perdure.views.formatting import age, graph_title

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.types import Run

HEADERS = ("RUN", "STATE", "GRAPH", "THREAD", "AGE", "NOTE")
NARROW = 110
"""On a terminal of fewer columns a run takes two lines."""


def runs(
    place: Place = None,
    at: At = None,
    state: States = None,
    graph: Graph = None,
    thread: Thread = None,
    metadata: Metadata = None,
    since: Since = None,
    until: Until = None,
    children_of: Annotated[
        str | None, Option(metavar="RUN", help="Only runs that nodes of this run started.")
    ] = None,
    limit: Limit = 50,
    json: Json = False,
    watch: Annotated[
        bool, Option("--watch", help="Refresh every second, until Ctrl-C. Needs a terminal.")
    ] = False,
) -> None:
    """List runs, newest first.

    Outputs are not read; `perdure show` and `perdure export` have them.
    """
    from perdure.cli.run_lookup import PAGE, all_pages
    from perdure.commands.validation import check_limit

    check_limit(limit)
    at = one_place(place, at)
    filters = parse_filters(state, graph, thread, metadata, since, until)
    if watch and (json or not output.is_terminal()):
        raise BadArgument("--watch needs a terminal, and no --json.")
    with client_at(at) as client:
        if children_of is not None:
            filters["parent_id"] = client.blocking.find(children_of).id
        if watch:
            _watch(client, filters, limit)
            return
        ask = client.blocking.runs
        if json:
            size = min(limit, PAGE)
            pages = all_pages(lambda last: ask(**filters, after=last, limit=size, output=False))
            for _, run in zip(range(limit), pages, strict=False):
                output.print_json(
                    {name: one for name, one in vars(run).items() if name != "output"}
                )
            return
        found = ask(**filters, limit=limit + 1, output=False)
        if not found:
            print("No run matches." if any(filters.values()) else "There is no run yet.")
            return
        print(_table(client, found[:limit]))
        if len(found) > limit:
            print(output.paint(f"There are more than {limit}; see --limit.", "dim"))


def show(
    run: Annotated[str | None, Argument(metavar="RUN", help=ID_HELP)] = None,
    at: At = None,
    thread: Annotated[
        str | None, Option(metavar="ID", help="Show the newest run of this thread.")
    ] = None,
    events: Annotated[
        bool,
        Option("--events", help="List every event as stored. With --json, whole, one per line."),
    ] = False,
    json: Annotated[
        bool,
        Option(
            "--json",
            help="Print one JSON object: run, events, waits, effects, scores, children.",
        ),
    ] = False,
) -> None:
    """Show the timeline of one run.

    Shows where its time went, each segment with its steps, effects and waits, the worker that drove
    it, its parent and children, its scores, and what it waits for, with the command that lets it
    continue. A worker that dies leaves no event: the time until the next claim is shown as `with a
    worker that was lost`.
    """
    from perdure.cli.run_lookup import find_run, report_run
    from perdure.cli.run_page import print_event, print_report

    with client_at(at) as client:
        found = find_run(client, run, thread)
        if events:
            for event in client.blocking.events(found.id):
                print_event(event, json=json)
            return
        if json:
            output.print_json(report_run(client, client.blocking.get(found.id)).as_json())
            return
        report = report_run(client, found)
    print_report(report, at)


def parse_filters(
    state: list[str] | None,
    graph: str | None,
    thread: str | None,
    metadata: list[str] | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    """The options that select runs, as arguments of `Client.runs`."""
    return {
        "state": state or None,
        "graph": graph,
        "thread_id": thread,
        "metadata": parse_pairs("--metadata (--label)", metadata or ()),
        "since": None if since is None else parse_past("--since", since),
        "until": None if until is None else parse_past("--until", until),
    }


def _table(client: Client, found: list[Run]) -> str:
    from perdure.cli.run_lookup import unknown_graphs
    from perdure.views.waiting_for import line_note

    now, unknown = datetime.now(UTC), unknown_graphs(client, found)
    lines = client.journal.run(client.services.run_lines.of(found))
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
    if output.is_terminal() and output.terminal_width() < NARROW:
        return "\n".join(line for row in rows for line in _two_lines(*map(printable, row)))
    return output.format_table(HEADERS, rows, shrinks=(3, 2, 5), styles={1: output.STATE_STYLES})


def _two_lines(id: str, state: str, graph: str, thread: str, age: str, note: str) -> list[str]:
    width = output.terminal_width()
    rest = "  ".join(filter(None, (f"{age:>4}", thread, note)))
    return [
        f"{id}  {output.paint_state(state, 9)}  {output.truncate(graph, width - 49)}",
        output.paint(output.truncate(f"  {rest}", width), "dim"),
    ]


def _watch(client: Client, filters: dict[str, Any], limit: int) -> None:
    import contextlib
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def render() -> Text:
        lines = 2 if console.width < NARROW else 1
        rows = max(1, min(limit, (console.height - 2) // lines))
        found = client.blocking.runs(**filters, limit=rows, output=False)
        table = _table(client, found) if found else "No run matches."
        return Text.from_ansi(table, no_wrap=True)

    console = Console()
    with (
        contextlib.suppress(KeyboardInterrupt),
        # Rendering asks stdout whether it is a terminal, so stdout must not be redirected.
        Live(
            render(),
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live,
    ):
        while True:
            time.sleep(max(1.0, client.journal.capabilities.poll))
            live.update(render(), refresh=True)
