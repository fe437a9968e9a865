"""Values of arguments and options: JSON, pairs, durations, times."""

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


def parse_json(option: str, text: str, hint: str = "") -> Any:
    """JSON as it is, from the file behind an @, or from stdin for a -. `hint` ends the error."""
    try:
        if text == "-":
            source = sys.stdin.read()
        elif text.startswith("@"):
            source = Path(text[1:]).read_text(encoding="utf-8")
        else:
            source = text
        return json.loads(source)
    except OSError as error:
        raise BadArgument(f"{option} {text}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        name = f"{option} " if option.startswith("--") else ""
        raise BadArgument(
            f"{option} {text} is not JSON: {error}. Quote names and texts inside it, and all of it "
            f"for the shell: {name}'{{\"contact\": 7}}'.{hint}"
        ) from error


def parse_pairs(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """`key=value` each; a value that is not JSON is a text."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise BadArgument(f"{option} {text!r} is not a pair: write key=value.")
        try:
            pairs[key] = json.loads(value)
        except (ValueError, RecursionError):
            pairs[key] = value
    return pairs


def parse_duration(option: str, text: str) -> timedelta:
    """A duration such as 3d, 12h, 90m, 45s or 1d12h."""
    if not _DURATION.fullmatch(text):
        raise BadArgument(f"{option} {text!r} is not a duration: write 3d, 12h, 30m, 45s or 1d12h.")
    seconds = sum(float(count) * SECONDS[unit] for count, unit in _PART.findall(text))
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise BadArgument(f"{option} {text!r} is too long a duration.") from None


def parse_time(option: str, text: str) -> datetime:
    """A time of ISO 8601; local if it has no zone."""
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo is not None else at.astimezone()
    except (ValueError, OverflowError):
        raise BadArgument(
            f"{option} {text!r} is neither a duration, such as 3d, nor a time, such as "
            "2026-03-01T09:00+01:00."
        ) from None


def parse_past(option: str, text: str) -> datetime:
    """A time, or how long ago it was."""
    if not _DURATION.fullmatch(text):
        return parse_time(option, text)
    try:
        return datetime.now(UTC) - parse_duration(option, text)
    except OverflowError:
        raise BadArgument(f"{option} {text!r} is too long ago.") from None


def parse_delay(option: str, text: str) -> timedelta | datetime:
    """A time, or how long until then."""
    is_duration = _DURATION.fullmatch(text)
    return parse_duration(option, text) if is_duration else parse_time(option, text)
