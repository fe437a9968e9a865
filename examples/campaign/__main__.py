"""`python -m examples.campaign`: the application's own commands.

`perdure inbox` and `perdure answer` decide on single drafts, `perdure runs` and `perdure show` show
threads. Exit code 2: wrong usage, or nothing was done.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

import perdure

from .app import App, Plan, Unknown
from .cadence import Cadence

commands = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
EVERY = 30.0
"""Seconds between two looks at a mailbox."""


@commands.command()
def create(
    name: str,
    brief: Annotated[str, typer.Option(help="What it is about, for the model.")],
    sender: Annotated[str, typer.Option(help="'Ana Ruiz <ana@example.com>'")],
    gaps: Annotated[str, typer.Option(help="Days before each touch.")] = "0,4,7,7,7,7",
    window: Annotated[str, typer.Option(help="Local hours of the contact.")] = "09:00-17:00",
    days: Annotated[str, typer.Option(help="Weekdays.")] = "mon-fri",
    auto_approve: Annotated[bool, typer.Option(help="Send without asking a person.")] = False,
) -> None:
    """Add a campaign."""
    with App() as app:
        cadence = Cadence.parse(gaps, window, days)
        print(f"Campaign {app.create(Plan(name, brief, sender, cadence, auto_approve))}: {name}")


@commands.command("import")
def import_contacts(
    name: str, sheet: Annotated[Path, typer.Argument(exists=True, dir_okay=False)]
) -> None:
    """Import contacts from a CSV file: email, name, company, zone. All of it, or nothing."""
    with App() as app:
        print(f"{app.import_contacts(app.campaign(name)['id'], sheet)} added")


@commands.command()
def launch(name: str) -> None:
    """Start the threads of a campaign. Repeat it after another import."""
    with App() as app:
        started = app.launch(app.campaign(name)["id"])
        print(f"{started} threads started. A worker or a cron drives them.")


@commands.command()
def pause(name: str) -> None:
    """Send nothing until it is resumed. Waiting drafts stay open."""
    with App() as app:
        app.pause(app.campaign(name)["id"])
    print(f"{name} is paused")


@commands.command()
def resume(name: str) -> None:
    """Send again, after a pause or a trouble."""
    with App() as app:
        app.resume(app.campaign(name)["id"])
    print(f"{name} is running")


@commands.command()
def stop(name: str) -> None:
    """End a campaign for good: nothing more is sent, and its threads end."""
    with App() as app:
        app.stop(app.campaign(name)["id"])
    print(f"{name} is stopped")


@commands.command()
def remove(address: str) -> None:
    """Stop writing to a person, in all campaigns, later ones included."""
    with App() as app:
        app.remove(address)
    print(f"{address} gets no more mail")


@commands.command()
def status() -> None:
    """Show each campaign: its state, and members and touches by status."""
    with App() as app:
        for one in app.status():
            print(f"{one['name']}: {one['state']}")
            if one["trouble"]:
                print(f"  {_printable(one['trouble'])}\n  `resume {one['name']}` tries again")
            for name in ("members", "touches"):
                print(f"  {name}  {', '.join(f'{n} {status}' for status, n in one[name].items())}")
            for version, of in one["prompts"].items():
                print(f"  prompt   {version}: {of['sent']} sent, {of['replies']} replies")


@commands.command()
def strays() -> None:
    """List mail that matches nothing. `remove` whoever wants no more mail."""
    with App() as app:
        for row in app.database.rows(
            "SELECT * FROM messages WHERE kind = 'stray' ORDER BY received_at DESC"
        ):
            print(
                _printable(
                    f"{row['address'] or 'unknown'}  {row['subject']!r}  {row['text'][:80]!r}"
                )
            )


@commands.command()
def inbound(
    imap: Annotated[
        bool, typer.Option("--imap", help="Read a mailbox over IMAP instead of listening.")
    ] = False,
) -> None:
    """Receive replies, bounces and unsubscriptions until stopped."""
    from .inbound import Inbound, Listener, read_mailbox

    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("mail.log").setLevel(logging.WARNING)  # of aiosmtpd: each line of SMTP
    with App() as app:
        receiver, settings = Inbound(app), app.settings
        listener = Listener(receiver, settings.inbound_host, settings.inbound_port)
        if not imap:
            listener.start()
            print(f"Listening on {settings.inbound_host}:{settings.inbound_port}", flush=True)
        while True:
            receiver.sweep()
            if imap:
                try:
                    read_mailbox(app)
                except Exception:  # the server may be back at the next look
                    logging.getLogger("campaign").exception("the mailbox cannot be read")
            if over.wait(EVERY if imap else 5.0):
                break
        if not imap:
            listener.stop()


def _printable(text: str) -> str:
    """A text that is safe on a terminal: what would move its cursor or colour it is escaped."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()
        for one in text
    )


def main() -> int:
    try:
        commands()
    except (Unknown, ValueError, perdure.Error) as error:
        print(f"campaign: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
