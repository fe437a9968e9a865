"""`perdure schedules`: list, add, disable and remove schedules."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from perdure.cli.options import At, Json, Place, complete_graph
from perdure.cli.output import format_table, one_line, paint, print_json
from perdure.cli.parsing import parse_json
from perdure.cli.target import check_graph, client_at, one_place
from perdure.errors import BadArgument
from perdure.text import printable
from perdure.times import utc_time

HEADERS = ("NAME", "GRAPH", "CRON", "ZONE", "NEXT", "MISSED")


def schedules(
    place: Place = None,
    at: At = None,
    add: Annotated[
        str | None, Option(metavar="NAME", help="Add or change the schedule of this name.")
    ] = None,
    graph: Annotated[
        str | None,
        Option(
            metavar="NAME", help="With --add: graph that it starts.", autocompletion=complete_graph
        ),
    ] = None,
    cron: Annotated[
        str | None,
        Option(metavar="LINE", help='With --add: cron expression, such as "0 9 * * 1-5".'),
    ] = None,
    timezone: Annotated[
        str, Option(metavar="ZONE", help="With --add: time zone of the cron expression.")
    ] = "UTC",
    input: Annotated[
        str | None, Option(metavar="JSON|@FILE|-", help="With --add: input of its runs.")
    ] = None,
    remove: Annotated[
        str | None, Option(metavar="NAME", help="Remove this schedule. Its runs are kept.")
    ] = None,
    disable: Annotated[
        str | None,
        Option(metavar="NAME", help="Disable this schedule: it starts no runs until enabled."),
    ] = None,
    enable: Annotated[
        str | None,
        Option(metavar="NAME", help="Enable this schedule. Missed runs are not started."),
    ] = None,
    json: Json = False,
) -> None:
    """List schedules; add, disable, enable or remove one.

    --add needs --graph and --cron. Adding a schedule creates a missing journal.
    """
    if sum(map(bool, (add, remove, disable, enable))) > 1:
        raise BadArgument("Pass one of --add, --remove, --disable and --enable.")
    if not add and (graph or cron or input):
        raise BadArgument("--graph, --cron and --input need --add NAME.")
    at = one_place(place, at)
    with client_at(at, create=bool(add)) as client:
        if remove:
            client.blocking.unschedule(remove)
            print(f"{remove} is removed.")
            return
        if disable:
            client.blocking.enable_schedule(disable, enabled=False)
            print(f"{disable} is disabled.")
            return
        if enable:
            made = client.blocking.enable_schedule(enable)
            print(f"{enable} starts {printable(made.graph)} next at {utc_time(made.next_at)}.")
            return
        if add:
            if not graph or not cron:
                raise BadArgument(
                    '--add needs --graph NAME and --cron LINE, such as "0 9 * * 1-5".'
                )
            check_graph(at, graph)
            value = None if input is None else parse_json("--input", input)
            made = client.blocking.schedule(add, graph, cron=cron, timezone=timezone, input=value)
            if json:
                print_json(made)
            else:
                print(f"{add} starts {graph} next at {utc_time(made.next_at)}.")
            return
        found = client.blocking.schedules()
    if json:
        for one in found:
            print_json(one)
    elif found:
        rows = [
            (
                one.name,
                one.graph,
                one.cron,
                one.timezone,
                utc_time(one.next_at) if one.enabled else "disabled",
                str(one.missed),
            )
            for one in found
        ]
        print(format_table(HEADERS, rows, shrinks=(0, 1)))
        for one in found:
            if one.problem:
                print(paint(one_line(f"{one.name}: {one.problem}", 1000), "red"))
    else:
        print("There is no schedule.")
