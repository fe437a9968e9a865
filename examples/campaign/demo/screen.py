"""What the demo shows: a live table in a terminal, lines elsewhere, and the figures at the end."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self
from zoneinfo import ZoneInfo

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .engine import Seen
from .plan import Plan

SHOWN = 8
"""Number of recent events shown, if the terminal is tall enough."""
CELLS = {
    "": ("·", "dim"),
    "draft_pending": ("◐", "yellow"),
    "approved": ("◌", "cyan"),
    "sent": ("●", "green"),
    "skipped": ("–", "dim"),
    "rejected": ("◐", "yellow"),
    "stopped": ("×", "dim"),
}
ENDS = {"replied": "↩", "unsubscribed": "⊘", "bounced": "↯", "finished": "✓", "active": " "}
CELLS_WIDTH = 19
"""Of six touches, and how it ended."""
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


def city(zone: str) -> str:
    """What a time zone is named after."""
    return zone.rpartition("/")[2].replace("_", " ")


def day(at: int) -> str:
    return f"{_moment(at):%a %d %b %H:%M}"


def _moment(at: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)


class Screen:
    """One month, as it goes by."""

    def __init__(self, console: Console, plan: Plan, title: str, began: int) -> None:
        self._console, self._plan, self._title, self._began = console, plan, title, began
        self._shown = max(2, min(SHOWN, console.height - len(plan.contacts) - 9))
        self._events: deque[Text] = deque(maxlen=self._shown)
        self._writing = threading.Lock()
        self._now, self._killed, self._seen = began, 0, dict[int, Seen]()
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
                auto_refresh=True,
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
            line = Text(f"  {day(now)}  ", "dim").append(f"{mark} {text}", style)
            self._events.append(line)
            if self._live is None:
                self._console.print(line, soft_wrap=True)

    def mark(self, contact_id: int, touch: int, sign: str) -> None:
        """The mark of a wrong touch: `2` or more if it was sent that often, `!` if too late."""
        with self._writing:
            self._bad[contact_id, touch] = sign

    # -- the live table

    def _frame(self) -> Group:
        with self._writing:
            date = _moment(self._now)
            days = (self._now - self._began) // 86_400_000 + 1
            head = Table.grid(expand=True)
            head.add_column()
            head.add_column(justify="right")
            head.add_row(
                Text.assemble(
                    (f"  {date:%a %d %B %Y}", "bold"), (f"  {date:%H:%M} UTC · day {days}", "dim")
                ),
                Text.assemble(
                    (f"processes killed: {self._killed}", "red"),
                    (f" · {self.seconds:.0f} s ", "dim"),
                ),
            )
            events = list(self._events)
            events += [Text()] * (self._shown - len(events))
            for line in events:
                line.truncate(self._console.width - 1, overflow="ellipsis")
            return Group(
                Text(f"  {self._title}\n", "bold"),
                head,
                Text(),
                self._contacts(),
                Text(f"  {LEGEND}\n", "dim"),
                *events,
            )

    def _contacts(self) -> Table:
        """The state of each contact. A narrow terminal cuts the last column."""
        table = Table.grid(padding=(0, 2), expand=False)
        cities = {one.id: city(one.zone) for one in self._plan.contacts}
        names = max(len(one.name) for one in self._plan.contacts) + 2
        widths = (names, max(map(len, cities.values())), CELLS_WIDTH)
        for width in widths:
            table.add_column(width=width, no_wrap=True)
        table.add_column(max_width=max(1, self._console.width - sum(widths) - 6), no_wrap=True)
        for contact in self._plan.contacts:
            seen = self._seen.get(contact.id)
            table.add_row(
                Text(f"  {contact.name}", "bold"),
                Text(cities[contact.id], "dim"),
                self._cells(contact.id, seen),
                self._state(seen, contact.zone),
            )
        table.add_row()
        return table

    def _cells(self, id: int, seen: Seen | None) -> Text:
        cells = Text()
        for step in range(1, 7):
            status = seen.touches.get(step, "") if seen else ""
            if seen is not None and seen.over and status in ("draft_pending", "approved"):
                status = "stopped"
            sign, style = CELLS.get(status, ("?", "red"))
            bad = self._bad.get((id, step))
            cells.append(f"●{bad} " if bad else f"{sign}  ", "bold red" if bad else style)
        if seen is not None:
            cells.append(ENDS.get(seen.status, " "), "magenta")
        return cells

    def _state(self, seen: Seen | None, zone: str) -> Text:
        if seen is None:
            return Text("about to begin", "dim")
        if seen.trouble:
            return Text(f"held: {seen.trouble}", "red")
        if seen.over:
            return Text(seen.status, "magenta" if seen.status != "finished" else "green")
        if seen.held is not None:
            return Text(f"draft {seen.held} waits for a person", "yellow")
        if seen.busy or seen.due is None:
            return Text("at work", "cyan")
        local = _moment(seen.due).astimezone(ZoneInfo(zone))
        return Text(f"asleep until {local:%a %d %b, %H:%M} there", "dim")
