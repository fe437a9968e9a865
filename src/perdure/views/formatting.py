"""Times, durations, counts, figures, calls and values in words; URLs without their passwords.

A value that a person decides about is shown in full: nothing is folded, shortened or disguised, and
invisible characters that change how a text reads, such as those that reverse its direction, are
replaced by their names. The next times of a schedule are shown in its own time zone and in the
reader's, with the clock changes of either, because a cron line follows the wall clock of its zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from perdure.commands import schedules
from perdure.commands.schedules import ScheduleRow
from perdure.errors import BadArgument
from perdure.serde.redaction import hide_in_url as hide_in_url
from perdure.text import any_json, json_default
from perdure.times import milliseconds, moment
from perdure.views.markup import Html, element, join

if TYPE_CHECKING:
    from perdure.views.intervals import Estimate


TIMES = 10
"""Number of times shown."""


@dataclass(frozen=True)
class Upcoming:
    """One time at which a schedule starts a run."""

    theirs: datetime
    """In the zone of the schedule."""
    yours: datetime
    """The same time in the zone of the reader."""
    change: str = ""
    """Clock changes between the previous time and this one."""

    @property
    def same_day(self) -> bool:
        """Whether it is the same date in both zones."""
        return self.theirs.date() == self.yours.date()


def upcoming(
    row: ScheduleRow, now: datetime, zone: ZoneInfo, count: int = TIMES
) -> tuple[Upcoming, ...]:
    """The next times of a schedule, as if it were enabled. Empty if it has ended, or if its cron
    line or zone is invalid."""
    try:
        found = list(islice(schedules.slots(row.cron, row.timezone, milliseconds(now)), count))
    except BadArgument:
        return ()
    theirs = ZoneInfo(row.timezone)
    times = [moment(slot) for slot in found if row.end_at is None or slot <= row.end_at]
    both = [(at.astimezone(theirs), at.astimezone(zone)) for at in times]
    before = [(now.astimezone(theirs), now.astimezone(zone)), *both]
    return tuple(
        Upcoming(there, here, _change(earlier, (there, here)))
        for earlier, (there, here) in zip(before, both, strict=False)
    )


def cron_words(cron: str) -> str:
    """A cron line in words: At 09:00 on Monday through Friday. Empty if it cannot be worded."""
    try:
        return str(CronSim(cron, datetime(2000, 1, 1)).explain())  # noqa: DTZ001 — any time will do
    except (CronSimError, ValueError):
        return ""


def _change(before: tuple[datetime, datetime], after: tuple[datetime, datetime]) -> str:
    """The clock changes of both zones between two times."""
    moves: dict[str, str] = {}
    for old, new in zip(before, after, strict=True):
        by = (new.utcoffset() or timedelta(0)) - (old.utcoffset() or timedelta(0))
        if by:
            way = "forward" if by > timedelta(0) else "back"
            moves[str(new.tzinfo)] = f"clocks in {new.tzinfo} go {way} {duration(abs(by))}"
    return "; ".join(moves.values())


def value_text(value: Any) -> str:
    """A text as it is, an object as a line for each field, a message as its role and content,
    anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if is_message(value):
        return f"{value.type}: {value_text(value.content)}"
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_indented(value_text(one))}" for name, one in value.items())
    if isinstance(value, (list, tuple)) and any(map(is_message, value)):
        return "\n".join(value_text(one) for one in value)
    return any_json(value, _readable)


def _indented(text: str) -> str:
    return text if "\n" not in text else "\n" + "\n".join(f"  {one}" for one in text.splitlines())


def _readable(value: Any) -> Any:
    """A message without its ids and metadata."""
    if is_message(value):
        return {"type": value.type, "content": value.content}
    return json_default(value)


def is_message(value: Any) -> bool:
    """Whether a value is one of LangChain's messages."""
    return isinstance(getattr(value, "type", None), str) and hasattr(value, "content")


DEEP = 6
"""Levels of nesting shown as lists; deeper values are JSON."""
BRIEF = 600
"""Maximum length of a value that can be read at a glance."""
BRIEF_LINES = 14
_DISGUISES = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)
_WORDS: Mapping[bool | None, str] = {None: "none", True: "yes", False: "no"}


def whole_value(shown: Any, depth: int = 0) -> Html:
    """Any value as people read it: text as text, an object as a list of names and values."""
    if isinstance(shown, str):
        if not shown:
            return element("span", "empty text", class_="muted")
        return element("div", revealed(shown), class_="text")
    if shown is None or isinstance(shown, bool):
        return element("span", _WORDS[shown], class_="plain")
    if isinstance(shown, (int, float)):
        return element("span", str(shown), class_="plain")
    if depth < DEEP and isinstance(shown, Mapping) and shown:
        pairs = [
            element(
                "div",
                element("dt", revealed(str(name))),
                element("dd", whole_value(one, depth + 1)),
            )
            for name, one in shown.items()
        ]
        return element("dl", *pairs, class_="value")
    if depth < DEEP and isinstance(shown, (list, tuple)) and shown:
        items = [element("li", whole_value(one, depth + 1)) for one in shown]
        return element("ol", *items, class_="value")
    if is_message(shown):
        return element("div", revealed(value_text(shown)), class_="text")
    return element("div", revealed(any_json(shown, indent=2)), class_="code")


def revealed(text: str) -> Html:
    """A text in which no character is hidden."""
    parts: list[object] = []
    last = 0
    for found in _DISGUISES.finditer(text):
        name = f"U+{ord(found[0]):04X}"
        title = "An invisible character that changes how the text reads"
        parts += [text[last : found.start()], element("mark", name, class_="disguise", title=title)]
        last = found.end()
    return join(*parts, text[last:])


def is_brief(shown: Any) -> bool:
    """Whether a value can be read at a glance."""
    text = value_text(shown)
    return len(text) <= BRIEF and text.count("\n") < BRIEF_LINES


MINUS = "\N{MINUS SIGN}"

UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def duration(lasted: timedelta) -> str:
    """A duration in two units: 3d 4h, 12m 5s, 0.42s."""
    seconds = max(0.0, lasted.total_seconds())
    if seconds < 10:
        return f"{seconds:.2f}s" if seconds < 1 else f"{seconds:.1f}s"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in UNITS:
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number}{unit}" if number else "")
    return " ".join(filter(None, parts[:2]))


def age(at: datetime, now: datetime) -> str:
    """The time since then in one unit, such as 5d; `in 3d 4h` for a time to come."""
    if at > now:
        return f"in {duration(at - now)}"
    seconds = int((now - at).total_seconds())
    return next((f"{seconds // size}{unit}" for unit, size in UNITS if seconds >= size), "0s")


def calendar_time(at: datetime, now: datetime, zone: tzinfo = UTC) -> str:
    """A time as people say it, in a zone: 14:00, tomorrow 09:00, Friday 14:00, 12 Nov 09:00."""
    local = at.astimezone(zone)
    days = (local.date() - now.astimezone(zone).date()).days
    clock = f"{local:%H:%M}{'Z' * (local.tzname() == 'UTC')}"
    if days == 0:
        return clock
    if days in (-1, 1):
        return f"{'tomorrow' if days == 1 else 'yesterday'} {clock}"
    if 1 < days < 7:
        return f"{local:%A} {clock}"
    year = f" {local.year}" * (local.year != now.astimezone(zone).year)
    return f"{local.day} {local:%b}{year} {clock}"


def shorten(text: str, most: int) -> str:
    """A text in one line of at most so many characters."""
    line = " ".join(text[: most * 8].split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 3 runs."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def short_id(id: str) -> str:
    """An id in few characters. Ids of runs begin with their time, so the end tells them apart."""
    return id if len(id) <= 14 else f"{id[:8]}…{id[-5:]}"


def arguments(of_call: Mapping[str, Any]) -> str:
    """The arguments of a call as they are written in Python."""
    return ", ".join(f"{name}={value!r}" for name, value in of_call.items())


def call_arguments(name: str, of_call: Mapping[str, Any]) -> str:
    """The arguments of an effect; of a run that a node starts, those that it was given."""
    if name != "perdure.start":
        return arguments(of_call)
    given = {**of_call, **(of_call.get("setup") or {})}
    shown = ("graph", "version", "input", "thread_id", "key", "metadata", "tags", "after")
    return arguments({name: given[name] for name in shown if given.get(name)})


def graph_title(name: str, version: str) -> str:
    """A graph with its version, if it has one: campaign@v2."""
    return f"{name}@{version}" if version else name


def number(value: float) -> str:
    """A figure with three digits that count: 0.833, 12.3, 12,346."""
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    value = round(float(value), digits) or 0.0  # not -0.0
    return f"{value:,.{0 if value.is_integer() else digits}f}".replace("-", MINUS)


def percent(value: float) -> str:
    """A share in percent: 83 %."""
    return f"{value * 100:.0f} %".replace("-", MINUS)


def data_size(number_of_bytes: float) -> str:
    """Bytes in the unit that fits: 812 B, 4.2 MB."""
    value, unit = float(number_of_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if abs(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{number(value) if abs(value) < 100 else number(round(value))} {unit}"


def estimate(one: Estimate | None, *, n: bool = True) -> str:
    """A figure with its interval: 83 % (62–94 %, n = 20)."""
    if one is None:
        return "–"
    span, count = [], [f"n = {one.n}"] if n else []
    if one.low is not None and one.high is not None:
        dash = " to " if one.low < 0 else "–"
        low = f"{one.low * 100:.0f}" if one.share else number(one.low)
        span = [f"{low}{dash}{percent(one.high) if one.share else number(one.high)}"]
    inside = ", ".join([*span, *count])
    return (
        f"{percent(one.value) if one.share else number(one.value)}{f' ({inside})' * bool(inside)}"
    )


def difference(one: Estimate | None) -> str:
    """A difference with its interval: +12 points (-3 to +25, n = 20)."""
    if one is None:
        return "–"
    said = f"{_signed(one.value, one.share)}{' points' * one.share}"
    if one.low is None or one.high is None:
        return f"{said} (n = {one.n})"
    low, high = _signed(one.low, one.share), _signed(one.high, one.share)
    return f"{said} ({low} to {high}, n = {one.n})"


def _signed(value: float, share: bool) -> str:
    """A figure that says its direction: +0.12, -3, 0. Of a share: in percentage points."""
    shown = number(round(value * 100) if share else value)
    return shown if shown == "0" or shown.startswith(MINUS) else f"+{shown}"
