"""`perdure check`: which unfinished runs the current graphs would hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import Exit

from perdure.cli.options import Json, Place, RuntimeAt
from perdure.cli.output import paint, paint_state, print_json, printable
from perdure.cli.target import one_place, runtime_at
from perdure.errors import BadArgument, did_you_mean
from perdure.service.views.formatting import count, graph_title

if TYPE_CHECKING:
    from perdure.engine.graph_check import GraphCheck, LostRun

SHOWN = 5
"""Runs that are listed for each reason; --json has all."""


def check(place: Place = None, at: RuntimeAt = None, json: Json = False) -> None:
    """List unfinished runs that the current graphs would hold. Exit with 1 if there are any."""
    from perdure.journal.migrate import migrations

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
    if json:
        for run in result.lost:
            print_json(run)
    else:
        _print(result, rt.graphs)
    if result.lost:
        raise Exit(1)


def _print(result: GraphCheck, graphs: list[str]) -> None:
    by_reason: dict[tuple[str, str, str], list[LostRun]] = {}
    for run in result.lost:
        by_reason.setdefault((run.graph, run.version, run.reason), []).append(run)
    for (graph, version, reason), runs in by_reason.items():
        title = printable(graph_title(graph, version))
        print(paint(f"{title}: {count(len(runs), 'run')} would be held", "bold"))
        print(f"  {printable(reason)}.")
        for one in runs[:SHOWN]:
            print(f"  {one.run_id}  {paint_state(one.state, 9)}  {printable(one.thread_id)}")
        if len(runs) > SHOWN:
            print(f"  … {len(runs) - SHOWN:,} more; see --json")
        print()
    for missing in result.missing:
        title, number = graph_title(missing.graph, missing.version), count(missing.runs, "run")
        other = missing.graph in graphs
        hint = " It is, in another version." if other else did_you_mean(missing.graph, graphs)
        print(f"note: {number} of {printable(title)}, which is not registered here.{hint}")
    held = f"{len(result.lost):,} would be held" if result.lost else "none would be held"
    print(f"{count(result.checked, 'unfinished run')} checked; {held}.")
