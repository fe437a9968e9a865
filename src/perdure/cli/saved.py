"""`perdure saved`: what recovery did not repeat, and what each crash cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from perdure.cli.options import ID_HELP, At, Graph, Json, Since, Until
from perdure.cli.output import format_table, print_json
from perdure.cli.parsing import parse_past
from perdure.cli.target import client_at
from perdure.service.views.formatting import count, duration, utc_time
from perdure.service.views.terminal_text import printable

if TYPE_CHECKING:
    from perdure.service.views.saved_work import Recovery, SavedWork, Work

HEADERS = ("SEGMENT", "LOST WORKER", "LAST SIGN", "LOST", "STEP", "OPEN EFFECTS", "SAVED", "KEPT")


def saved(
    run: Annotated[
        str | None, Argument(metavar="RUN", help=ID_HELP, show_default="all runs")
    ] = None,
    at: At = None,
    graph: Graph = None,
    since: Since = None,
    until: Until = None,
    json: Json = False,
) -> None:
    """Show what recovery did not repeat, and what crashes cost.

    For one run it prints a line for each crash, otherwise the total of the selected runs.
    """
    with client_at(at) as client:
        ask = client.blocking
        found = ask.saved(
            None if run is None else ask.find(run).id,
            graph=graph,
            since=None if since is None else parse_past("--since", since),
            until=None if until is None else parse_past("--until", until),
        )
    if json:
        print_json(_as_json(found))
        return
    print(_summary(found))
    if found.recoveries:
        print()
        print(format_table(HEADERS, [_row(one) for one in found.recoveries], shrinks=(5, 6, 7, 4)))


def _as_json(found: SavedWork) -> dict[str, Any]:
    """With times in seconds."""
    crashes = [{**vars(one), "lost": one.lost.total_seconds()} for one in found.recoveries or ()]
    whole = {**vars(found), "lost": found.lost.total_seconds(), "recoveries": crashes}
    return {name: one for name, one in whole.items() if name != "recoveries" or found.recoveries}


def _summary(found: SavedWork) -> str:
    of = f" in {count(found.runs, 'run')}" if found.recoveries is None and found.runs else ""
    lost = f", {duration(found.lost)} lost" if found.crashes else ""
    return f"{_work(found.work) or 'nothing'} saved{of}; {count_crashes(found.crashes)}{lost}"


def count_crashes(number: int) -> str:
    return "1 crash" if number == 1 else f"{number:,} crashes"


def _row(one: Recovery) -> tuple[str, ...]:
    """A crash as a line of the table."""
    step = "the first" if one.step is None else str(one.step)
    nodes = f" {', '.join(map(printable, one.nodes))}" if one.nodes else ""
    return (
        f"#{one.segment - 1}",
        printable(one.lost_worker),
        utc_time(one.last_sign),
        duration(one.lost),
        f"{step}{nodes}",
        open_effects(one) or "none",
        _work(one.saved) or "nothing",
        ", ".join(filter(None, (count(one.kept_steps, "step"), _work(one.kept)))),
    )


def open_effects(one: Recovery) -> str:
    """How the effects that a crash left open were settled."""
    ends = {"called again": one.called_again, "verified": one.verified, "held": one.held}
    return ", ".join(f"{len(keys)} {end}" for end, keys in ends.items() if keys)


def _work(work: Work) -> str:
    return ", ".join(
        count(number, name.replace("_", " ").removesuffix("s"))
        for name, number in vars(work).items()
        if number
    )
