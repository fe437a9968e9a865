"""The results of a crash test as text: a table of places, then the findings."""

from __future__ import annotations

import io
import linecache
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perdure.testing.crashtest.model import SEVERITY, Outcome, Trial
from perdure.testing.crashtest.results import Group, Results

COLOURS = {
    Outcome.OK: "green",
    Outcome.UNREACHED: "dim",
    Outcome.AGAIN: "cyan",
    Outcome.HELD: "yellow",
    Outcome.MODEL: "magenta",
    Outcome.DUPLICATED: "red",
    Outcome.LOST: "red",
    Outcome.DIFFERENT: "red",
    Outcome.UNRECOVERABLE: "bold red",
}
_PRINTED = 12
"""JsonLines of what an agent printed that are shown with a finding."""


def show(report: Results, console: Console) -> None:
    """Print the results."""
    console.print(
        f"[bold]{escape(report.place)}[/] driven by {escape(report.driver)} on {report.database}, "
        f"{report.seconds:.0f} s",
        highlight=False,
    )
    if report.trials:
        console.print(_places(report))
    groups = report.groups()
    for number, group in enumerate(groups, 1):
        _finding(number, group, report, console)
    style = "bold green" if report.ok else "bold red"
    console.print(f"[{style}]{escape(report.verdict())}[/]", highlight=False)
    console.print(f"[dim]{escape(report.seen())}[/]", highlight=False)
    if any(group.finding.problem == "varies" for group in groups):
        console.print(
            "[dim]What varies by itself cannot be compared: make it the same in every run, or "
            "leave it out with --ignore.[/]"
        )


def text(report: Results) -> str:
    """The same without colours."""
    buffer = io.StringIO()
    show(report, Console(file=buffer, width=110, color_system=None))
    return buffer.getvalue()


def _places(report: Results) -> Table:
    """One row for each statement, saver call or effect, in the order they are first reached."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("killed before and after")
    for title in ("points", "kills"):
        table.add_column(title, justify="right")
    table.add_column("outcome")
    rows: dict[str, list[Trial]] = {}
    for trial in report.trials:
        rows.setdefault(trial.kills[0].place, []).append(trial)
    well: list[tuple[str, list[Trial]]] = []
    for place, trials in rows.items():
        if all(trial.outcome in (Outcome.OK, Outcome.UNREACHED) for trial in trials):
            well.append((place, trials))
        else:
            _row(table, place, trials)
    for place, trials in _summary(well):
        _row(table, place, trials)
    return table


def _summary(well: Sequence[tuple[str, list[Trial]]]) -> list[tuple[str, list[Trial]]]:
    if len(well) <= 8:
        return list(well)
    rest = well[5:]
    return [*well[:5], (f"{len(rest)} other places", [one for _, some in rest for one in some])]


def _row(table: Table, place: str, trials: Sequence[Trial]) -> None:
    tally = Counter(trial.outcome for trial in trials)
    summary = ", ".join(
        f"[{COLOURS[outcome]}]{n} {outcome}[/]"
        for outcome, n in sorted(tally.items(), key=lambda one: -SEVERITY[one[0]])
    )
    points = {trial.kills[0] for trial in trials}
    table.add_row(escape(place), str(len(points)), str(len(trials)), summary)


def _finding(number: int, group: Group, report: Results, console: Console) -> None:
    one = group.finding
    console.print()
    console.print(
        f"[red]{number}. {one.problem.value}[/]: {escape(one.what)}"
        + (f"  [bold]{escape(one.where)}[/]" if one.where else ""),
        highlight=False,
    )
    if line := source_line(one.where):
        console.print(f"     [dim]{escape(line)}[/]", highlight=False)
    if one.detail:
        console.print(f"   {escape(one.detail)}", highlight=False)
    if group.trials:
        console.print(f"   in {_in(group)}", highlight=False)
    printed = group.trials[0].printed if group.trials else report.printed
    lines = printed.partition("Timeout (")[0].splitlines()[-_PRINTED:]  # not where it hung
    if lines:
        console.print("   the agent printed:", highlight=False)
    for line in lines:
        console.print(f"   [dim]│ {escape(line)}[/]", highlight=False)


def _in(group: Group) -> str:
    shown = [str(point) for point in group.points]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    kills = len(group.trials)
    return f"{kills} trial{'s' * (kills != 1)}: killed at {', '.join(shown[:4])}{more}"


def source_line(where: str) -> str:
    """The line of code that `file:line` names."""
    file, _, number = where.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""
