"""What is typed on a command line, as values: JSON, pairs, durations, times."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from perdure.errors import BadArgument

SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)([wdhms])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


def read_json(option: str, given: str, hint: str = "") -> Any:
    """JSON; what is in the file behind an @, or on stdin for a -. `hint` is what else to do."""
    try:
        if given == "-":
            text = sys.stdin.read()
        elif given.startswith("@"):
            text = Path(given[1:]).read_text(encoding="utf-8")
        else:
            text = given
        return json.loads(text)
    except OSError as error:
        raise BadArgument(f"{option} {given}: {error.strerror or error}.") from error
    except ValueError as error:
        typed = f"{option} " if option.startswith("--") else ""
        raise BadArgument(
            f"{option} {given} is no JSON: {error}. Quote names and texts in it, and all of it for "
            f"the shell: {typed}'{{\"contact\": 7}}'.{hint}"
        ) from error


def read_pairs(option: str, given: Iterable[str]) -> dict[str, Any]:
    """`key=value` each; a value that is no JSON is a text."""
    found: dict[str, Any] = {}
    for one in given:
        key, sign, value = one.partition("=")
        if not key or not sign:
            raise BadArgument(f"{option} {one!r} is no pair: write {option} key=value.")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def read_duration(option: str, given: str) -> timedelta:
    """Such as 3d, 12h, 90m, 45s or 1d12h."""
    if not _DURATION.fullmatch(given):
        raise BadArgument(f"{option} {given!r} is no duration: write 3d, 12h, 30m, 45s or 1d12h.")
    seconds = sum(float(count) * SECONDS[unit] for count, unit in _PART.findall(given))
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise BadArgument(f"{option} {given!r} is longer than time can be told.") from None


def read_time(option: str, given: str) -> datetime:
    """A time of ISO 8601; without a zone it is local."""
    try:
        at = datetime.fromisoformat(given)
        return at if at.tzinfo is not None else at.astimezone()
    except (ValueError, OverflowError):
        raise BadArgument(
            f"{option} {given!r} is neither a duration, such as 3d, nor a time, such as "
            "2026-03-01T09:00+01:00."
        ) from None


def read_ago(option: str, given: str) -> datetime:
    """A time, or how long ago it was."""
    if not _DURATION.fullmatch(given):
        return read_time(option, given)
    try:
        return datetime.now(UTC) - read_duration(option, given)
    except OverflowError:
        raise BadArgument(f"{option} {given!r} was before any time.") from None


def read_after(option: str, given: str) -> timedelta | datetime:
    """A time, or how long until then."""
    return read_duration(option, given) if _DURATION.fullmatch(given) else read_time(option, given)
