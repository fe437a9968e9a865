"""Contacts: show, change, remove, unbounce and erase them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from perdure.times import milliseconds, moment

from .. import people
from ..app import App
from ..erasure import OUTSIDE
from . import commands
from .asking import confirm


@commands.command()
def contact(
    address: str,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    company: Annotated[str | None, typer.Option(help="The new company.")] = None,
    zone: Annotated[str | None, typer.Option(help="The new time zone.")] = None,
    new_address: Annotated[str | None, typer.Option("--address", help="The new address.")] = None,
) -> None:
    """Show a contact, or change it. After a change, unsent texts are written and approved again."""
    with App() as app:
        if (name, company, zone, new_address) != (None, None, None, None):
            changed = people.update(
                app, address, name=name, company=company, zone=zone, new_address=new_address
            )
            address = changed["address"]
        found = people.show(app, address)
    who = found.contact
    known = ", ".join(filter(None, (who["name"], who["company"], who["zone"])))
    print(f"{who['address']}  {known}: {who['status']}")
    for one in found.campaigns:
        print(f"  campaign {one['name']} ({one['state']}): {one['status']}")
        for touch in found.touches:
            if touch["name"] == one["name"]:
                when = f" on {_day(touch['sent_at'])}" if touch["sent_at"] else ""
                why = f" ({touch['problem']}: {touch['said']})" if touch["problem"] else ""
                print(f"    touch {touch['step']} {touch['status']}{when}{why}: {touch['subject']}")
    for message in found.messages:
        day = _day(message["received_at"])
        print(f"  {message['kind']} from {message['address']} on {day}: {message['subject']}")
    if who["status"] == "bounced":
        print(f"`unbounce {who['address']}` writes to them again")


@commands.command()
def remove(address: str) -> None:
    """Stop writing to a contact."""
    with App() as app:
        ended = people.remove(app, address)
    print(f"{len(ended)} campaign{'s' * (len(ended) != 1)} ended for {address}")


@commands.command()
def unbounce(
    addresses: Annotated[list[str] | None, typer.Argument(help="Addresses that bounced.")] = None,
    campaign: Annotated[str, typer.Option(help="All contacts that bounced in this campaign.")] = "",
    since: Annotated[
        datetime | None, typer.Option(help="Only those that bounced since then, in UTC.")
    ] = None,
) -> None:
    """Write again to contacts that bounced by mistake."""
    if bool(addresses) == bool(campaign):
        raise ValueError("Name the addresses, or a campaign with --campaign.")
    if since is not None and not campaign:
        raise ValueError("--since needs --campaign.")
    with App() as app:
        if campaign:
            after = 0 if since is None else milliseconds(since.replace(tzinfo=UTC))
            addresses = people.bounced(app, app.campaign(campaign)["id"], after)
        started = people.unbounce(app, *(addresses or []))
    if started:
        print("1 thread goes on" if started == 1 else f"{started} threads go on")
    else:
        print("No thread goes on: none of these contacts bounced in a campaign that can go on.")


@commands.command()
def erase(
    address: str,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete everything about a person, under all their addresses, and keep a hash."""
    confirm(f"Erase {address} for good?", yes=yes)
    with App() as app:
        erased = people.erase(app, address)
    for table, rows in sorted(erased.rows.items()):
        print(f"{rows:>8}  {table}")
    print(f"{sum(erased.rows.values())} rows deleted.")
    for message_id in erased.message_ids:
        print(f"sent: {message_id}")
    print("Not reached:")
    for one in OUTSIDE:
        print(f"  {one}")


def _day(at: int) -> str:
    return f"{moment(at):%Y-%m-%d}"
