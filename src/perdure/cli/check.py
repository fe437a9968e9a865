"""`perdure check`: which unfinished runs the current graphs would hold, or no longer drive."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from perdure.cli.options import Json, Place, RuntimeAt
from perdure.cli.output import paint, paint_state, print_json, printable
from perdure.cli.target import one_place, runtime_at
from perdure.errors import BadArgument, did_you_mean
from perdure.service.views.formatting import count, graph_title

if TYPE_CHECKING:
    from perdure.engine.graph_check import LostRun, MissingGraph

SHOWN = 5
"""Runs that are listed for each reason; --json has all."""


def check(
    place: Place = None,
    at: RuntimeAt = None,
    elsewhere: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="A graph that other processes register; may have a *; repeatable.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List unfinished runs that the current graphs would hold, or that have no graph here. Exit
    with 1 if there are any."""
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
    served = [one for one in result.missing if _is_named(one, elsewhere or ())]
    missing = [one for one in result.missing if one not in served]
    if json:
        for one in (*result.lost, *missing):
            print_json(one)
    else:
        _print_lost(result.lost)
        _print_missing(missing, rt.graphs)
        _print_sums(result.checked, len(result.lost), missing, served)
    if result.lost or missing:
        raise Exit(1)


def _is_named(graph: MissingGraph, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches the name of a graph, or its name@version."""
    names = (graph.graph, graph_title(graph.graph, graph.version))
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _print_lost(lost: Iterable[LostRun]) -> None:
    by_reason: dict[tuple[str, str, str], list[LostRun]] = {}
    for run in lost:
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


def _print_missing(missing: Iterable[MissingGraph], graphs: list[str]) -> None:
    for one in missing:
        title = graph_title(one.graph, one.version)
        print(paint(f"{printable(title)}: {count(one.runs, 'run')} would not be driven", "bold"))
        hint, cancel = did_you_mean(one.graph, graphs), f"perdure cancel --graph {one.graph}"
        if one.graph in graphs:  # that command would cancel the runs of each version
            hint = " Another version is, but a run keeps the version it was started with."
            cancel = "perdure cancel RUN"
        print(
            f"  The graph is not registered here.{hint} Keep it registered until its runs have "
            f"ended. If another process registers it, pass --elsewhere "
            f"{printable(shlex.quote(title))}. To give up on its runs: {printable(cancel)}\n"
        )


def _print_sums(
    checked: int, lost: int, missing: Iterable[MissingGraph], served: Iterable[MissingGraph]
) -> None:
    undriven = sum(one.runs for one in missing)
    sums = [f"{lost:,} would be held" if lost else "none would be held"]
    sums += [f"{undriven:,} would not be driven"] if undriven else []
    others = sum(one.runs for one in served)
    if others:
        sums.append(f"{others:,} of other processes not checked")
    print(f"{count(checked, 'unfinished run')}: {', '.join(sums)}.")
