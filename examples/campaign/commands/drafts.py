"""Drafts: list them, edit many in one file, approve many at once."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from perdure.times import moment

from .. import drafts as work
from ..app import App
from ..drafts import Decision, Draft, Line, NotAnswered
from . import commands
from .asking import confirm, paint, printable

_NONE = (
    "No drafts are waiting. A worker or a cron writes them in each contact's hours: `status` shows "
    "the hours, and `perdure runs` when each thread is due."
)
SHOWN = 10
"""Most addresses that one line names."""


@commands.command()
def drafts(
    name: Annotated[str | None, typer.Argument(metavar="CAMPAIGN", help="Default: all.")] = None,
    to: Annotated[
        Path | None, typer.Option(help="Write them to this new file, for editing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, a draft per line.")] = False,
) -> None:
    """List the drafts that are waiting for a person."""
    if to is not None and name is None:
        raise ValueError("Name the campaign whose drafts to write to the file.")
    with App() as app:
        found = work.waiting(app, None if name is None else app.campaign(name)["id"])
        now = moment(app.clock.now())
    if to is not None:
        work.write(to, name or "", found)
        print(f"{_drafts(len(found))} in {to}. Edit it, then:")
        print(f"  python -m examples.campaign approve {name} --edits {to} --by YOU")
        return
    width = max((len(one.to) for one in found), default=0)
    for one in found:
        if as_json:
            names = ("wait_id", "to", "touch", "subject", "body", "problem")
            print(json.dumps({each: getattr(one, each) for each in names}))
        else:
            what = f"touch {one.touch}  {_age(now - one.since):>4}  {one.subject}"
            print(printable(f"{one.wait_id}  {one.to:<{width}}  {what}"))
    if not found and not as_json:
        print(_NONE)


@commands.command()
def approve(
    name: Annotated[str, typer.Argument(metavar="CAMPAIGN")],
    waits: Annotated[
        list[str] | None, typer.Argument(metavar="WAIT", help="Default: every waiting draft.")
    ] = None,
    edits: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The file of `drafts --to`, edited."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Who approves; stored with the answer. Default: $USER.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Approve many drafts: the first of each touch is shown whole, the others as differences.

    With --edits, shows what the file changes, and sends the edited texts.
    """
    if edits is not None and waits:
        raise ValueError("Name drafts or a file of edits, not both.")
    with App() as app:
        campaign = app.campaign(name)
        if campaign["state"] == "stopped":
            raise ValueError(f"Campaign {name!r} is stopped for good: its drafts are withdrawn.")
        found = work.waiting(app, campaign["id"])
        missed: list[NotAnswered] = []
        if edits is not None:
            decisions, missed = work.read(edits, found)
            _show_edits(decisions)
            _show_others(found, decisions)
        else:
            decisions = [work.approved(one) for one in _named(found, waits or [], name)]
            _show([one.draft for one in decisions])
        changed = sum(one.is_edited for one in decisions)
        if decisions:
            edited = f", {changed} of them as edited" if changed else ""
            confirm(f"Approve {_drafts(len(decisions))}{edited}?", yes=yes)
        missed += work.answer(app, decisions, by or os.environ.get("USER"))
        state = app.campaign(name)["state"]
    for one in missed:
        print(f"Not approved: {one.wait_id} to {printable(one.to)}: {one.why}")
    done = len(decisions) - sum(
        one.wait_id in {each.draft.wait_id for each in decisions} for one in missed
    )
    when = "" if state == "running" else f" The campaign is {state}: they wait until it is resumed."
    print(f"{_drafts(done)} approved.{when}" if decisions or missed else _NONE)
    if missed:
        raise typer.Exit(1)


def _named(found: list[Draft], waits: list[str], name: str) -> list[Draft]:
    """The drafts with these ids, or all."""
    there = {one.wait_id for one in found}
    for one in waits:
        if one not in there:
            raise ValueError(f"{one!r} is not an open draft of {name!r}; see `drafts {name}`.")
    return [one for one in found if not waits or one.wait_id in waits]


def _show(found: list[Draft]) -> None:
    first: dict[int, Draft] = {}
    for one in found:
        print(_title(one))
        if one.problem:
            print(printable(f"  ! {one.problem}"))
        if one.touch not in first:
            first[one.touch] = one
            whole = f"{one.text}\n\n{one.footer}" if one.footer else one.text
            print("\n".join(f"  {line}" for line in printable(whole).split("\n")))
        else:
            _show_difference(work.difference(first[one.touch].text, one.text), "the same text")
        print()


def _show_edits(decisions: list[Decision]) -> None:
    for one in decisions:
        print(_title(one.draft))
        after = f"Subject: {one.subject}\n\n{one.body}"
        _show_difference(work.difference(one.draft.text, after), "as it was drafted")


def _show_others(found: list[Draft], decisions: list[Decision]) -> None:
    """Name the drafts that the file does not have."""
    named = {one.draft.wait_id for one in decisions}
    others = [one.to for one in found if one.wait_id not in named]
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        who = printable(", ".join(others[:SHOWN]))
        print(f"Not in the file, and left alone: {_drafts(len(others))}, to {who}{more}")


def _show_difference(lines: list[Line], same: str) -> None:
    for line in lines:
        if any(text for _, text in line):
            print("  " + "".join(paint(text, mark) for mark, text in line))
    if not lines:
        print(f"  ({same})")


def _title(one: Draft) -> str:
    return printable(f"--- touch {one.touch} to {one.to} ({one.wait_id})")


def _drafts(count: int) -> str:
    return f"{count} draft{'s' * (count != 1)}"


def _age(age: timedelta) -> str:
    minutes = max(0, round(age.total_seconds() / 60))
    return (
        f"{minutes}m" if minutes < 60 else f"{minutes // 60}h" if minutes < 2880 else f"{age.days}d"
    )
