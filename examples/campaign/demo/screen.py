"""What the demo shows: a live table in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self
from zoneinfo import ZoneInfo

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from perdure.times import moment

from .months import Seen
from .plan import Plan

SHOWN = 8
"""Number of recent events shown, if the terminal is tall enough."""
SIGNS = {
    "": "·",
    "draft_pending": "◐",
    "approved": "◌",
    "sent": "●",
    "skipped": "–",
    "rejected": "◐",
    "stopped": "×",
}
MARKS = {
    "kill": ("✗", "red"),
    "sent": ("●", "green"),
    "bad": ("‼", "bold red"),
    "in": ("←", "magenta"),
    "person": ("◐", "yellow"),
    "mail": (" ", "dim"),
}
LEGEND = "● sent  ●2 twice  ●! after a reply  ◌ sending  ◐ held  × stopped  – skipped"


def console(*, plain: bool) -> Console:
    """Where everything is written. No colours, and no live display, if it is not a terminal."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    if plain or not sys.stdout.isatty():
        width = None if sys.stdout.isatty() else 100
        return Console(color_system=None, force_terminal=False, highlight=False, width=width)
    return Console(highlight=False)


class Screen:
    """One month, as it goes by."""

    def __init__(self, console: Console, plan: Plan, title: str, began: int) -> None:
        self._console, self._plan, self._title, self._now = console, plan, title, began
        shown = max(2, min(SHOWN, console.height - len(plan.contacts) - 6))
        self._events: deque[Text] = deque([Text()] * shown, maxlen=shown)
        self._writing = threading.Lock()
        self._killed, self._seen = 0, dict[int, Seen]()
        self._bad: dict[tuple[int, int], str] = {}
        self._start = time.monotonic()
        self._live: Live | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                refresh_per_second=8,
                get_renderable=self._frame,
                redirect_stderr=False,
            )
            self._live.__enter__()
        else:
            self._console.print(f"{self._title}\n")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
        self._console.print()

    def show(self, now: int, killed: int, seen: dict[int, Seen]) -> None:
        with self._writing:
            self._now, self._killed, self._seen = now, killed, seen

    def event(self, now: int, kind: str, text: str) -> None:
        """Something happened."""
        with self._writing:
            mark, style = MARKS[kind]
            line = Text(f"  {moment(now):%a %d %b %H:%M}  ", "dim")
            line.append(f"{mark} {text}", style)
            self._events.append(line)
            if self._live is None:
                self._console.print(line, soft_wrap=True)

    def mark(self, contact_id: int, touch: int, sign: str) -> None:
        """The mark of a wrong touch: `2` or more if it was sent that often, `!` if too late."""
        with self._writing:
            self._bad[contact_id, touch] = sign

    def _frame(self) -> Group:
        """The live table."""
        with self._writing:
            table = Table.grid(padding=(0, 2))
            for contact in self._plan.contacts:
                seen = self._seen.get(contact.id)
                city = contact.zone.rpartition("/")[2].replace("_", " ")
                if seen is not None:
                    touches, state = (
                        self._touches(contact.id, seen),
                        self._state(seen, contact.zone),
                    )
                    table.add_row(f"  {contact.name}", Text(city, "dim"), touches, state)
            head = f"  {moment(self._now):%a %d %B %Y %H:%M} UTC · {self._killed} processes killed"
            for line in self._events:
                line.truncate(self._console.width - 1, overflow="ellipsis")
            title = Text(f"  {self._title}\n", "bold")
            return Group(title, head, table, Text(f"  {LEGEND}\n", "dim"), *self._events)

    def _touches(self, contact_id: int, seen: Seen) -> Text:
        text = Text()
        for step in range(1, 7):
            bad = self._bad.get((contact_id, step))
            sign = SIGNS.get(seen.touches.get(step, ""), "?")
            text.append(f"●{bad} " if bad else f"{sign}  ", "bold red" if bad else "green")
        return text

    def _state(self, seen: Seen, zone: str) -> Text:
        if seen.trouble:
            return Text(f"held: {seen.trouble}", "red")
        if seen.over:
            return Text(seen.status, "magenta")
        if seen.held is not None:
            return Text(f"draft {seen.held} waits for a person", "yellow")
        if seen.busy or seen.due is None:
            return Text("at work", "cyan")
        return Text(f"asleep until {moment(seen.due).astimezone(ZoneInfo(zone)):%a %d %b, %H:%M}")
