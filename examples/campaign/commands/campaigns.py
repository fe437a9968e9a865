"""Campaigns: make them, launch them, look at them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from ..app import App, Plan
from ..cadence import Cadence, Window, parse_days, parse_gaps, parse_window
from . import commands

GAPS = typer.Option(help="Days before each touch.")
HOURS = typer.Option("--window", help="Hours of the contact in which mail may go out.")
DAYS = typer.Option(help="Weekdays on which it may.")


def _cadence(base: Cadence, gaps: str | None, window: str | None, days: str | None) -> Cadence:
    """A cadence with what was said; what was not said is as before."""
    opens, closes = parse_window(window) if window else (base.window.opens, base.window.closes)
    on = parse_days(days) if days else base.window.days
    return Cadence(parse_gaps(gaps) if gaps else base.gaps, Window(opens, closes, on))


@commands.command()
def create(
    name: str,
    brief: Annotated[str, typer.Option(help="What it is about, for the model.")],
    sender: Annotated[str, typer.Option(help="'Ana Ruiz <ana@example.com>'")],
    sequence: Annotated[
        str,
        typer.Option(
            help="Campaigns of one sequence send a contact each step once. By default each "
            "campaign has its own."
        ),
    ] = "",
    gaps: Annotated[str, GAPS] = "0,4,7,7,7,7",
    window: Annotated[str, HOURS] = "09:00-17:00",
    days: Annotated[str, DAYS] = "mon-fri",
    auto_approve: Annotated[
        bool, typer.Option(help="Send drafts without asking a person.")
    ] = False,
) -> None:
    """Add a campaign."""
    plan = Plan(
        name, brief, sender, sequence, _cadence(Cadence(), gaps, window, days), auto_approve
    )
    with App() as app:
        print(f"Campaign {app.create(plan)}: {name}")


@commands.command("import")
def bring(
    name: str,
    sheet: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    skip_bad: Annotated[bool, typer.Option(help="Import the good lines.")] = False,
) -> None:
    """Import contacts from a CSV file: email, name, company, zone. All of it, or nothing."""
    with App() as app:
        report = app.bring(app.campaign(name)["id"], sheet, skip_bad=skip_bad)
    for bad in report.bad:
        print(f"  line {bad.number}: {bad.reason}", file=sys.stderr)
    if report.ignored_columns:
        print(f"Columns not used: {', '.join(report.ignored_columns)}", file=sys.stderr)
    print(f"{report.added} added, {report.known} known, {len(report.bad)} left out")


@commands.command()
def launch(name: str) -> None:
    """Start the threads of a campaign. May be said again, after another import."""
    with App() as app:
        launched = app.launch(app.campaign(name)["id"])
    if launched.due is None:
        print("0 threads; no active member is without one")
        return
    when = "now"
    if not launched.is_due:
        when = f"{launched.due.astimezone(ZoneInfo(launched.zone)):%Y-%m-%d %H:%M}"
        when += f" in {launched.zone}"
    threads = f"{launched.threads} thread{'s' * (launched.threads != 1)}"
    print(f"{threads}; the first touch is due {when}. A worker or a cron drives them.")


@commands.command()
def cadence(
    name: str,
    gaps: Annotated[str | None, GAPS] = None,
    window: Annotated[str | None, HOURS] = None,
    days: Annotated[str | None, DAYS] = None,
) -> None:
    """Change when touches go out, for threads that sleep, too. What is not said stays as it is."""
    if gaps is None and window is None and days is None:
        raise ValueError("Say what is to change: --gaps, --window or --days.")
    with App() as app:
        campaign = app.campaign(name)
        changed = _cadence(Cadence.of(campaign), gaps, window, days)
        version = app.set_cadence(campaign["id"], changed)
    print(f"Version {version} of the cadence")


@commands.command()
def status() -> None:
    """Each campaign, with how many members and touches are how."""
    with App() as app:
        for one in app.status():
            print(json.dumps(one))
