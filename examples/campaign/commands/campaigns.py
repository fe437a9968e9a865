"""Campaigns: create, import into, launch, edit, pause, resume, stop, show."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from .. import control, people
from ..app import App, Plan
from ..cadence import Cadence, Window, parse_days, parse_gaps, parse_window
from . import commands
from .asking import confirm, printable

GAPS = typer.Option(help="Days before each touch.")
HOURS = typer.Option("--window", help="Local hours of the contact in which mail may go out.")
DAYS = typer.Option(help="Weekdays on which mail may go out.")
PER_DAY = typer.Option(min=0, help="Maximum mails a day from its sender's address; 0 is no limit.")


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
    per_day: Annotated[int, PER_DAY] = 0,
) -> None:
    """Add a campaign."""
    cadence = Cadence(parse_gaps(gaps), Window(*parse_window(window), parse_days(days)))
    plan = Plan(name, brief, sender, sequence, cadence, auto_approve, per_day)
    with App() as app:
        print(f"Campaign {app.create(plan)}: {name}")


@commands.command("import")
def bring(
    name: str,
    sheet: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    skip_bad: Annotated[bool, typer.Option(help="Import the good lines.")] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Change known contacts to what the file says.")
    ] = False,
) -> None:
    """Import contacts from a CSV file: email, name, company, zone. All of it, or nothing."""
    with App() as app:
        campaign_id = app.campaign(name)["id"]
        report = app.bring(campaign_id, sheet, skip_bad=skip_bad)
        overlap = app.overlap(campaign_id)
        if update:
            for address, changes in report.differing.items():
                people.update(app, address, **changes)
    for bad in report.bad:
        print(f"  line {bad.number}: {bad.reason}", file=sys.stderr)
    if report.ignored_columns:
        print(f"Columns not used: {', '.join(report.ignored_columns)}", file=sys.stderr)
    print(f"{report.added} added, {report.known} known, {len(report.bad)} left out")
    if report.without_zone:
        print(
            f"{_contacts(report.without_zone)} without a time zone in the file: they are written "
            f"to by the clock of {app.settings.zone} (CAMPAIGN_ZONE)"
        )
    if report.differing and update:
        print(f"{_contacts(len(report.differing))} changed to what the file says")
    elif report.differing:
        print(
            f"{_contacts(len(report.differing))} already known with another name, company or "
            "zone than in the file: --update changes them"
        )
    for line in overlap.lines():
        print(line)


def _contacts(count: int) -> str:
    return f"{count} contact{'s' * (count != 1)}"


@commands.command()
def launch(name: str) -> None:
    """Start the threads of a campaign. Repeat it after another import."""
    with App() as app:
        campaign_id = app.campaign(name)["id"]
        launched = app.launch(campaign_id)
        overlap = app.overlap(campaign_id)
    if not launched.threads:
        print("0 threads; every active member has one")
        return
    when = "the first touch is due now"
    if launched.due is not None:
        at = f"{launched.due.astimezone(ZoneInfo(launched.zone)):%Y-%m-%d %H:%M}"
        when = f"the first touch is due {at} in {launched.zone}"
        if launched.now:
            when = f"{launched.now} due now, the next {at} in {launched.zone}"
    threads = f"{launched.threads} thread{'s' * (launched.threads != 1)}"
    print(f"{threads}; {when}. A worker or a cron drives them.")
    if launched.state != "running":
        print(f"The campaign is {launched.state}: they wait until `resume {name}`.")
    for line in overlap.lines():
        print(line)


class Approval(StrEnum):
    """Who approves a draft."""

    PERSON = "person"
    AUTO = "auto"


@commands.command()
def edit(
    name: str,
    sender: Annotated[str | None, typer.Option(help="'Ana Ruiz <ana@example.com>'")] = None,
    brief: Annotated[str | None, typer.Option(help="What it is about, for the model.")] = None,
    gaps: Annotated[str | None, GAPS] = None,
    window: Annotated[str | None, HOURS] = None,
    days: Annotated[str | None, DAYS] = None,
    approve: Annotated[Approval | None, typer.Option(help="Who approves a draft.")] = None,
    per_day: Annotated[int | None, PER_DAY] = None,
    redraft: Annotated[bool, typer.Option(help="Have waiting drafts rewritten.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Only show what changes, as JSON.")
    ] = False,
) -> None:
    """Change a campaign, also for sleeping threads. Shows what changes for whom, then asks.

    Options that are not given change nothing.
    """
    changes = control.Changes(
        sender,
        brief,
        parse_gaps(gaps) if gaps else None,
        parse_window(window) if window else None,
        parse_days(days) if days else None,
        None if approve is None else approve is Approval.AUTO,
        per_day,
    )
    with App() as app:
        campaign_id = app.campaign(name)["id"]
        found = control.preview(app, campaign_id, changes)
        if as_json:
            print(json.dumps(found.to_json(), default=str))
            return
        _show(found, redraft)
        if found.changes or redraft:
            confirm("Change it?", yes=yes)
        try:
            version = control.edit(app, campaign_id, changes, seen=found.version, redraft=redraft)
        except control.ChangedMeanwhile:
            _show(control.preview(app, campaign_id, changes), redraft)
            raise
    print(f"Version {version} of {name}")


def _show(preview: control.Preview, redraft: bool) -> None:
    for line in preview.lines(redraft=redraft):
        print(printable(line))


@commands.command()
def pause(name: str) -> None:
    """Send nothing until it is resumed. Waiting drafts stay open."""
    with App() as app:
        found = control.pause(app, app.campaign(name)["id"])
    print(f"{name} is paused: {_concerned(found)}")


@commands.command()
def resume(
    name: str,
    keep_bounced: Annotated[
        bool, typer.Option("--keep-bounced", help="Go on without contacts bounced by a trouble.")
    ] = False,
) -> None:
    """Send again, after a pause or a trouble."""
    with App() as app:
        found = control.resume(app, app.campaign(name)["id"], keep_bounced=keep_bounced)
    print(f"{name} is running: {_concerned(found)}")


@commands.command()
def stop(
    name: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """End a campaign for good: nothing more is sent, and its threads end."""
    with App() as app:
        campaign_id = app.campaign(name)["id"]
        confirm(f"Stop {name} for good? It cannot be resumed.", yes=yes)
        found = control.stop(app, campaign_id)
    print(f"{name} is stopped: {_concerned(found)}")


def _concerned(found: control.Switched) -> str:
    threads = f"{found.threads} thread{'s' * (found.threads != 1)}"
    drafts = f"{found.drafts} draft{'s' * (found.drafts != 1)}"
    fate = "are withdrawn as their threads end" if found.state == "stopped" else "wait"
    way = 0 if found.state == "running" else found.on_their_way
    mails = f"; {way} mail{'s' * (way != 1)} may be on the way right now" if way else ""
    return f"{threads}, {drafts} {fate}{mails}"


@commands.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, a campaign per line.")] = False,
) -> None:
    """Show each campaign: members and touches by status, stuck threads, and the count of strays."""
    from ..strays import count

    with App() as app:
        found, strays = app.status(), count(app)
    if as_json:
        for one in [*found, *([{"strays": strays}] if strays else [])]:
            print(json.dumps(one))
        return
    for one in found:
        gaps = ",".join(map(str, one["gaps"]))
        limit = f", at most {one['per_day']} mails a day" if one["per_day"] else ""
        hours = f"{one['window']} {one['days']}"
        print(printable(f"{one['name']}: {one['state']} (gaps {gaps}, {hours}{limit})"))
        if one["trouble"]:
            print(printable(f"  trouble  {one['trouble']}"))
            print(f"           `perdure inbox` asks about it; `resume {one['name']}` goes on")
        for name in ("members", "touches", "threads"):
            if one[name]:
                counts = ", ".join(f"{n} {status}" for status, n in one[name].items())
                print(f"  {name}  {counts.replace('draft_pending', 'waiting for approval')}")
        for version, of in one["prompts"].items():
            print(f"  prompt   {version}: {of['sent']} sent, {of['replies']} replies")
    if not found:
        print("There are no campaigns; `create` adds one.")
    if strays:
        print(f"{strays} stray{'s' * (strays != 1)}: mail that matches nothing; `strays` lists it")
