"""The feed of `perdure dev`: events as they happen, a line each, read from the journal.

Each poll reads running runs, those that were running at the last poll, and the newest ones, then
the new events of those that changed. A segment of an older run that starts and ends between two
polls is not shown. Events from before the feed began are left out.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from datetime import datetime

from perdure.cli.output import command_for, display_width, one_line, paint, printable, truncate
from perdure.client import Client
from perdure.errors import Error, NotFound
from perdure.journal import Poll
from perdure.service.views.attention import answer_action
from perdure.service.views.event_wording import EventView, Verb, view_event
from perdure.service.views.formatting import duration
from perdure.types import Event, EventKind, Run, State

INTERVAL = 0.25
"""Seconds between two looks, if the database is not to be asked less often."""
NEWEST = 100
"""How many of the newest runs are followed."""
MARGIN = " " * 10
WIDEST_NAME = 28
"""Columns for the graph and its thread."""


class EventFeed:
    """The events of a journal from a moment on. `at` is the target for commands to paste."""

    def __init__(self, client: Client, since: datetime, at: str | None = None) -> None:
        self._client, self._since, self._at = client, since, at
        self._seen: dict[str, tuple[datetime, int, bool]] = {}
        """Per run: its last change, the last event read, and whether two polls agreed; a second
        event may share the millisecond."""
        self._driven: set[str] = set()
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
        driven = await self._client.runs(state=State.RUNNING, output=False)
        newest = await self._client.runs(limit=NEWEST, output=False)
        found = {run.id: run for run in reversed([*driven, *newest])}
        for run_id in self._driven - found.keys():
            try:
                found[run_id] = await self._client.get(run_id, output=False)
            except NotFound:  # pruned
                continue
        self._driven = {run.id for run in driven}
        for run in found.values():
            await self._print_new(run)

    async def _print_new(self, run: Run) -> None:
        changed, seen, settled = self._seen.get(run.id, (self._since, 0, False))
        unchanged = run.updated_at == changed
        if run.updated_at < changed or (unchanged and settled):
            return
        for event in await self._client.events(run.id, after=seen):
            seen = event.n
            if event.at >= self._since:
                await self._print_event(run, event)
        self._seen[run.id] = run.updated_at, seen, unchanged

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
