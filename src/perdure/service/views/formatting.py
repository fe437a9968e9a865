"""Times, durations, counts and calls in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def utc_time(at: datetime) -> str:
    """A time to the second, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


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


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 3 runs."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


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
