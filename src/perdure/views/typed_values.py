"""Parses what people typed: numbers, JSON, times. Pure."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, tzinfo
from typing import Any

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
LONGEST_NUMBER = 400
DEEPEST = 100
"""Levels of lists and objects that an answer may have: as many as the API takes."""


class Refused(ValueError):
    """A text that is not a valid value of its field."""


def number_in(text: str, is_whole: bool) -> int | float:
    """A number that a person wrote."""
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    value: float = math.nan
    if NUMBER.fullmatch(text) and len(text) <= LONGEST_NUMBER:
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    if isinstance(value, int) and value.bit_length() > 64:  # it could not be stored
        value = math.nan
    if is_whole and math.isfinite(value) and value == int(value):
        return int(value)
    if not math.isfinite(value) or is_whole:
        kind = "a whole number, such as 12" if is_whole else "a number, written as 12 or 3.5"
        raise Refused(f"This must be {kind}.")
    return value


def json_in(text: str) -> Any:
    """The value of JSON text that a person wrote, if it can be stored and shown."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        _check(found)
    except RecursionError:
        raise Refused("This is nested too deeply.") from None
    except UnicodeEncodeError:
        raise Refused("A text in it has half of a character (a lone surrogate).") from None
    except ValueError as error:
        hint = ""
        if not any(one in text for one in '{}[]"\n') and not isinstance(error, Refused):
            hint = f" Text needs quotes: {json.dumps(text.strip(), ensure_ascii=False)}"
        raise Refused(f"This is not JSON: {error}.{hint}") from None
    else:
        return found


def _refuse_constant(name: str) -> Any:
    raise Refused(f"{name} is not a value of JSON")


def _finite(text: str) -> float:
    if math.isinf(found := float(text)):
        raise Refused(f"{text[:60]} is too large")
    return found


def _check(found: Any, depth: int = 0) -> None:
    """Raise for what is too deep, and for text that UTF-8 does not have."""
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(found, str):
        found.encode()
    elif isinstance(found, dict | list):
        for one in [*found, *found.values()] if isinstance(found, dict) else found:
            _check(one, depth + 1)


def moment_in(text: str, zone: tzinfo) -> str:
    """A time with its zone; without one, in the viewer's zone."""
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo else at.replace(tzinfo=zone)).isoformat()
    except ValueError:
        raise Refused("This must be a date and a time, such as 2027-01-31T09:30.") from None
