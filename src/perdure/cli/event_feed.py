"""The feed of `perdure dev`: events as they happen, a line each, read from the journal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from datetime import datetime

from perdure.cli.output import command_for, display_width, one_line, paint, truncate
from perdure.client import Client
from perdure.commands import event_feed
from perdure.errors import Error
from perdure.journal import Poll
from perdure.text import printable
from perdure.types import Event, EventKind, Run
from perdure.views.attention import answer_action
from perdure.views.event_wording import EventView, Verb, view_event
from perdure.views.formatting import duration

INTERVAL = 0.25
"""Seconds between two looks, if the database is not to be asked less often."""
MARGIN = " " * 10
WIDEST_NAME = 28
"""Columns for the graph and its thread."""


class EventFeed:
    """The events of a journal from a moment on. `at` is the target for commands to paste."""

    def __init__(self, client: Client, since: datetime, at: str | None = None) -> None:
        self._client, self._at = client, at
        self._feed = event_feed.EventFeed(client.engine.serializer, since)
        self._named: set[str] = set()
        self._columns = 0

    async def follow(self) -> None:
        """Print events until cancelled. The worker logs it when the journal is in trouble."""
        poll = Poll(INTERVAL)
        while True:
            with contextlib.suppress(Error):
                await self.look()
            await self._client.journal.apause(poll)

    async def look(self) -> None:
        """Print what is new."""
        shown: dict[str, Run] = {}
        for row, event in await self._client.journal.arun(self._feed.look()):
            if row.id not in shown:
                plan = self._client.services.runs.show(row, output=False)
                shown[row.id] = await self._client.journal.arun(plan)
            await self._print_event(shown[row.id], event)

    async def _print_event(self, run: Run, event: Event) -> None:
        view = view_event(event, run.id, run.thread_id, format_time=local_time)
        if view.routine:
            return
        text = view.text
        if event.kind == EventKind.DONE:
            output = (await self._client.get(run.id)).output
            text += f" after {duration(event.at - run.created_at)}"
            text += "" if output is None else f"  {one_line(output)}"
        if run.id not in self._named:
            self._named.add(run.id)
            text += f"  run {run.id}"
        self._print(run, event, text, view.tone, await self._details(run, view))

    async def _details(self, run: Run, view: EventView) -> Iterable[str]:
        """The lines below an event: an exception, or a question, and the command that goes on."""
        action, lines = view.action, [paint(printable(line), "red") for line in view.lines]
        if action is not None and action.verb is Verb.ANSWER:
            waits = await self._client.waits(run_id=run.id)
            wait = next((one for one in waits if one.id == action.ids[0]), None)
            action = None if wait is None else answer_action(wait)
            lines += [] if wait is None else [one_line(wait.value, 300)]
        return lines if action is None else [*lines, command_for(action, self._at)]

    def _print(self, run: Run, event: Event, text: str, tone: str, lines: Iterable[str]) -> None:
        clock = paint(event.at.astimezone().strftime("%H:%M:%S"), "dim")
        name = truncate(f"{printable(run.graph)} {printable(run.thread_id)}", WIDEST_NAME)
        self._columns = max(self._columns, display_width(name))
        name += " " * (self._columns - display_width(name))
        print(f"{clock}  {name}  {paint(printable(text), tone)}")
        for line in lines:
            print(f"{MARGIN}{line}")
        sys.stdout.flush()


def local_time(at: datetime) -> str:
    """A time where this computer is; with its date unless it is today."""
    here = at.astimezone()
    today = here.date() == datetime.now().astimezone().date()
    return here.strftime("%H:%M:%S" if today else "%a %d %b %Y, %H:%M")
