"""The report of a crash test: its results as text, JSON and HTML."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perdure.testing.crashtest import html
from perdure.testing.crashtest.model import SEVERITY, Outcome, Trial
from perdure.testing.crashtest.results import FindingGroup, Results, counts, source_line
from perdure.views.terminal_text import printable, printable_lines

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
WIDTH = 110
PRINTED_LINES = 12
"""Lines of an agent's output that are shown with a finding."""


class Report(Results):
    """The results of a crash test. `str(report)` shows them as text."""

    def check(self) -> None:
        """Fail a test if something was found.

        Raises:
            AssertionError: There are findings; they are the message.
        """
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        buffer = io.StringIO()
        self.print(Console(file=buffer, width=WIDTH, color_system=None, highlight=False))
        return buffer.getvalue()

    def print(self, console: Console, *, verbose: bool = False) -> None:
        """Print a table of phases, the findings and the verdict.

        Args:
            console: Where to print, of rich.
            verbose: Name the statements of the journal instead of phases.
        """
        where = f"driven by {escape(self.driver)} on {self.database}, {self.seconds:.0f} s"
        console.print(f"[bold]{escape(self.place)}[/] {where}")
        if self.trials:
            console.print(_places(self.trials, verbose))
        groups = self.groups()
        for number, group in enumerate(groups, 1):
            printed = group.trials[0].printed if group.trials else self.printed
            _print_finding(number, group, printed, console, verbose)
        style = "bold green" if self.ok else "bold red"
        console.print(f"[{style}]{escape(self.verdict())}[/]")
        console.print(f"[dim]{escape(self.seen())}[/]")
        if any(group.finding.problem == "varies" for group in groups):
            console.print(
                "[dim]What varies by itself cannot be compared: make it the same in every run, or "
                "leave it out with --ignore.[/]"
            )

    def to_html(self) -> str:
        """Return a self-contained page with every finding and every trial."""
        return html.page(self)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return {
            "place": self.place,
            "driver": self.driver,
            "database": self.database,
            "ok": self.ok,
            "verdict": self.verdict(),
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 1),
            "clean": {
                "state": self.state,
                "result": self.result,
                "effects": {name: calls.total() for name, calls in self.tally.effects.items()},
                "actions": self.tally.actions.total(),
                "model_calls": self.tally.models.total(),
                "findings": [asdict(one) for one in self.findings],
            },
            "reached": self.reached,
            "points": [asdict(point) for point in self.points],
            "counts": self.counts,
            "counts_in_recovery": counts(self.second),
            "findings": [
                {
                    **asdict(group.finding),
                    "trials": len(group.trials),
                    "points": [str(point) for point in group.points],
                    "phases": list(dict.fromkeys(point.words for point in group.points)),
                }
                for group in self.groups()
            ],
            "trials": [trial.to_json() for trial in self.trials],
        }


def _places(trials: Sequence[Trial], verbose: bool) -> Table:
    """One row for each phase, or for each statement, saver call or effect, in the order they are
    first reached; those that went well are last, and cut short."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("killed before and after" if verbose else "killed")
    table.add_column("points", justify="right")
    table.add_column("kills", justify="right")
    table.add_column("outcome")
    rows: dict[str, list[Trial]] = {}
    for trial in trials:
        point = trial.kills[0]
        rows.setdefault(point.place if verbose else point.words, []).append(trial)
    fine = {Outcome.OK, Outcome.UNREACHED}
    well = [place for place, some in rows.items() if {one.outcome for one in some} <= fine]
    rest = well[5:] if len(well) > 8 else []
    shown = [place for place in rows if place not in well] + well[: len(well) - len(rest)]
    for place in shown:
        _add_row(table, place, rows[place])
    if rest:
        _add_row(table, f"{len(rest)} other places", [one for place in rest for one in rows[place]])
    return table


def _add_row(table: Table, place: str, trials: Sequence[Trial]) -> None:
    tally = Counter(trial.outcome for trial in trials)
    worst_first = sorted(tally, key=SEVERITY.__getitem__, reverse=True)
    summary = ", ".join(f"[{COLOURS[one]}]{tally[one]} {one}[/]" for one in worst_first)
    points = {trial.kills[0] for trial in trials}
    table.add_row(escape(place), str(len(points)), str(len(trials)), summary)


def _print_finding(
    number: int, group: FindingGroup, printed: str, console: Console, verbose: bool
) -> None:
    one = group.finding
    where = f"  [bold]{escape(one.where)}[/]" if one.where else ""
    console.print(f"\n[red]{number}. {one.problem}[/]: {escape(printable(one.what))}{where}")
    if code := source_line(one.where):
        console.print(f"     [dim]{escape(code)}[/]")
    if one.detail:
        console.print(f"   {escape(printable_lines(one.detail))}")
    if kills := len(group.trials):
        points = [str(point) if verbose else point.words for point in group.points]
        points = list(dict.fromkeys(points))
        shown, between = (4, ", ") if verbose else (3, "; ")
        more = f"{between}and {len(points) - shown} more" if len(points) > shown else ""
        trials = f"{kills} trial{'s' * (kills != 1)}"
        at = "at " if verbose else ""
        console.print(f"   in {trials}: killed {at}{escape(between.join(points[:shown]))}{more}")
    lines = printed.partition("Timeout (")[0].splitlines()[-PRINTED_LINES:]  # not where it hung
    if lines:
        console.print("   the agent printed:")
    for text in lines:
        console.print(f"   [dim]│ {escape(printable(text))}[/]")
