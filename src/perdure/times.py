"""Times as the journal stores them, in milliseconds, and as users see them.

A time that a user gives is stored only if it can be shown in every time zone. A damaged row may
hold any number: it is shown as the first or the last time, and listings still go past it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from perdure.errors import BadArgument

EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""The times that can be stored, and shown in every time zone."""


def moment(ms: int) -> datetime:
    """Convert journal time, in milliseconds, to an aware datetime.

    A damaged row may have a time that no datetime can hold: it is shown as the last or the first.
    """
    try:
        return max(EARLIEST, min(LATEST, datetime.fromtimestamp(ms / 1000, UTC)))
    except (OverflowError, ValueError, OSError):
        return LATEST if ms > 0 else EARLIEST


def maybe_moment(ms: int | None) -> datetime | None:
    """`moment`, or None for None."""
    return None if ms is None else moment(ms)


def milliseconds(at: datetime) -> int:
    """Convert an aware datetime to journal time, in milliseconds."""
    return round(at.timestamp() * 1000)


FIRST_MS, LAST_MS = -(2**63), 2**63 - 1
"""Before and after every journal time, of damaged rows too."""


def position_after(at: datetime) -> int:
    """Where the next page begins, oldest first, after a row that shows the time `at`."""
    return LAST_MS if at >= LATEST else milliseconds(at)


def position_before(at: datetime) -> int:
    """Where the next page begins, newest first, after a row that shows the time `at`."""
    return FIRST_MS if at <= EARLIEST else milliseconds(at)


def deadline(
    name: str, given: timedelta | datetime | None, now: Callable[[], datetime]
) -> int | None:
    """Convert an argument that is a time, or a duration from now on, to journal time."""
    if given is None:
        return None
    if not isinstance(given, timedelta) and getattr(given, "tzinfo", None) is None:
        raise BadArgument(
            f"{name} must be a timedelta or a datetime with a time zone, not {given!r}."
        )
    try:
        at = milliseconds(now() + given if isinstance(given, timedelta) else given)
    except (OverflowError, ValueError):
        at = None
    if at is None or not milliseconds(EARLIEST) <= at <= milliseconds(LATEST):
        raise BadArgument(f"{name}={given!s} is not between the years 1 and 9999.")
    return at


def check_duration(name: str, given: timedelta, least: timedelta = timedelta(0)) -> timedelta:
    if not isinstance(given, timedelta):
        raise BadArgument(
            f"{name} must be a timedelta, such as timedelta(seconds=5), not {given!r}."
        )
    if given < least:
        raise BadArgument(f"{name}={given} must be at least {least}.")
    return given


def check_time(name: str, given: datetime) -> datetime:
    if getattr(given, "tzinfo", None) is None:
        raise BadArgument(f"{name} must be a datetime with a time zone, not {given!r}.")
    return given


def utc_time(at: datetime) -> str:
    """A time to the second, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
