"""`perdure schedules`: what starts runs on a cron line."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.complete import complete_graph
from perdure.cli.place import At, check_graph, opened
from perdure.errors import BadArgument


def schedules(
    at: At = None,
    add: Annotated[
        str | None, typer.Option(metavar="NAME", help="Add one, or change the one of this name.")
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --add: what it starts.", autocompletion=complete_graph
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="LINE", help='With --add: when, such as "0 9 * * 1-5".')
    ] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="With --add: of the cron line.")
    ] = "UTC",
    input: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="With --add: of its runs.")
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="NAME", help="Remove one; its runs stay.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List schedules; add or remove one."""
    from perdure.cli import tell
    from perdure.cli.given import read_json

    if add and remove:
        raise BadArgument("One of --add and --remove at a time.")
    if not add and (graph or cron or input):
        raise BadArgument("--graph, --cron and --input are for --add NAME.")
    with opened(at, new=bool(add)) as client:
        if remove:
            client.blocking.unschedule(remove)
            print(f"{remove} is removed.")
            return
        if add:
            if not graph or not cron:
                raise BadArgument(
                    '--add needs --graph NAME and --cron LINE, such as "0 9 * * 1-5".'
                )
            check_graph(at, graph)
            given = None if input is None else read_json("--input", input)
            made = client.blocking.schedule(add, graph, cron=cron, timezone=timezone, input=given)
            if json:
                tell.print_json(made)
            else:
                print(f"{add} starts {graph} next at {tell.stamp(made.next_at)}.")
            return
        found = client.blocking.schedules()
    if json:
        for one in found:
            tell.print_json(one)
    elif found:
        rows = [
            (one.name, one.graph, one.cron, one.timezone, tell.stamp(one.next_at)) for one in found
        ]
        tell.print_table(("NAME", "GRAPH", "CRON", "ZONE", "NEXT"), rows, shrinks=(0, 1))
    else:
        print("There is no schedule.")
