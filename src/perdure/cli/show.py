"""`perdure show`: one run, or its events as they are stored."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from perdure.cli.options import At
from perdure.cli.output import print_json
from perdure.cli.target import client_at


def show(
    run: Annotated[
        str | None,
        Argument(metavar="[RUN]", help="Its id, or at least 6 characters of it."),
    ] = None,
    at: At = None,
    thread: Annotated[str | None, Option(metavar="ID", help="Newest run of this thread.")] = None,
    events: Annotated[bool, Option("--events", help="List every event as stored.")] = False,
    json: Annotated[bool, Option("--json", help="Everything as one JSON object.")] = False,
) -> None:
    """Show where a run spent its time, what it did, and what it is waiting for."""
    from perdure.cli.run_lookup import find_run, report_run
    from perdure.cli.run_page import print_event, print_report

    with client_at(at) as client:
        found = find_run(client, run, thread)
        if events:
            for event in client.blocking.events(found.id):
                print_event(event, json=json)
            return
        if json:
            print_json(report_run(client, client.blocking.get(found.id)).as_json())
            return
        report = report_run(client, found)
    print_report(report, at)
