"""Times, durations, counts, figures and calls in words; URLs without their passwords."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from perdure.serde.redaction import hide_in_url as hide_in_url

if TYPE_CHECKING:
    from perdure.views.intervals import Estimate

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
