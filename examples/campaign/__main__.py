"""`python -m examples.campaign`: the application's own commands.

Drafts are approved with `perdure inbox` and `perdure answer`, threads are looked at with `perdure
runs` and `perdure show`, all with `--at` the same database.

Exit codes: 0 fine, 1 a sheet was refused, 2 wrong use.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

import perdure

from .app import App, Plan, Unknown
from .cadence import Cadence, Window, parse_days, parse_gaps, parse_window
from .contacts import BadSheet, Refused, UnknownCampaign

commands = typer.Typer(
    help="An e-mail campaign in which each (campaign, contact) is one durable thread.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

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
        str, typer.Option(help="Campaigns of one sequence send a contact each step once.")
    ] = "default",
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
def remove(address: str) -> None:
    """Write to a contact no more."""
    with App() as app:
        ended = app.remove(address)
    print(f"{len(ended)} campaign{'s' * (len(ended) != 1)} ended for {address}")


@commands.command()
def status() -> None:
    """Each campaign, with how many members and touches are how."""
    with App() as app:
        for one in app.status():
            print(json.dumps(one))


@commands.command()
def inbound(
    lmtp: Annotated[bool, typer.Option(help="Speak LMTP instead of SMTP.")] = False,
) -> None:
    """Receive replies, bounces and unsubscribes, until told to stop."""
    from .inbound import Inbound, Listener

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("mail.log").setLevel(logging.WARNING)  # of aiosmtpd: each line of SMTP
    with App() as app:
        receiver = Inbound(app)
        listener = Listener(
            receiver, app.settings.inbound_host, app.settings.inbound_port, lmtp=lmtp
        )
        listener.start()
        print(f"Listening on {listener.hostname}:{listener.port}", flush=True)
        try:
            while True:
                receiver.sweep()
                if stop.wait(5):
                    break
        finally:
            listener.stop()


def main() -> int:
    try:
        commands()
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    except (Unknown, UnknownCampaign, BadSheet, ValueError, perdure.Error) as error:
        print(f"campaign: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
