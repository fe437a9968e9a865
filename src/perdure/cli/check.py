"""`perdure check`: which unfinished runs the current graphs would hold, or no longer drive."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from perdure.cli.options import Json, Place, RuntimeAt
from perdure.cli.output import paint, paint_state, print_json
from perdure.cli.target import one_place, runtime_at
from perdure.errors import BadArgument
from perdure.text import printable
from perdure.views.formatting import graph_title

if TYPE_CHECKING:
    from perdure.execution.code_changes import MissingGraph
    from perdure.views.code_changes import HeldGroup, Unregistered

SHOWN = 5
"""Runs that are listed for each reason; --json has all."""


def check(
    place: Place = None,
    at: RuntimeAt = None,
    elsewhere: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Graph that another process registers: NAME or NAME@VERSION, may have a *; "
            "repeatable. Its runs do not count as a failure.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List unfinished runs that the current code would hold.

    Run it before a deploy, with the new code, against the journal that the deploy will use. It
    checks each run as its next claim would, and changes nothing. It also counts runs whose graph is
    not registered here. Exits with 1 if it finds either kind. A journal with an older schema is
    refused, because opening it would migrate it.
    """
    from perdure.journal.migrate import migrations
    from perdure.views.code_changes import code_changes

    rt = runtime_at(one_place(place, at))
    found, newest = rt.schema_version(), max(migrations())
    if found is None:
        raise BadArgument(f"There is no journal at {rt.url}, so there is no run to check.")
    if found < newest:
        raise BadArgument(
            f"The journal has schema {found}, and this perdure needs {newest}. `perdure check` "
            "changes nothing: run `perdure migrate` first."
        )
    with rt:
        result = rt.blocking.check()
    served = [one for one in result.missing if _is_named(one, elsewhere or ())]
    missing = [one for one in result.missing if one not in served]
    if json:
        for one in (*result.lost, *missing):
            print_json(one)
    else:
        others = sum(one.runs for one in served)
        changes = code_changes(result.checked, result.lost, missing, rt.graphs, others)
        _print_held(changes.held)
        _print_unregistered(changes.unregistered)
        print(printable(changes.summary))
    if result.lost or missing:
        raise Exit(1)


def _is_named(graph: MissingGraph, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches the name of a graph, or its name@version."""
    names = (graph.graph, graph_title(graph.graph, graph.version))
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _print_held(groups: Iterable[HeldGroup]) -> None:
    for group in groups:
        print(paint(printable(group.headline), "bold"))
        print(f"  {printable(group.reason)}.")
        for one in group.runs[:SHOWN]:
            print(f"  {one.run_id}  {paint_state(one.state, 9)}  {printable(one.thread_id)}")
        if len(group.runs) > SHOWN:
            print(f"  … {len(group.runs) - SHOWN:,} more; see --json")
        print()


def _print_unregistered(graphs: Iterable[Unregistered]) -> None:
    for one in graphs:
        print(paint(printable(one.headline), "bold"))
        # That command would cancel the runs of each version.
        cancel = "RUN" if one.has_other_version else f"--graph {one.name}"
        hint = f" {one.hint}" if one.hint else ""
        print(
            f"  The graph is not registered here.{hint} Keep it registered until its runs have "
            f"ended. If another process registers it, pass --elsewhere "
            f"{printable(shlex.quote(one.graph))}. To give up on its runs: "
            f"{printable(f'perdure cancel {cancel}')}\n"
        )
