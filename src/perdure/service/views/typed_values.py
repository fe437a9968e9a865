"""Parses what people typed: numbers, JSON, times. Pure."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, tzinfo
from typing import Any

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
LONGEST_NUMBER = 400


class Refused(ValueError):
    """A text that is not a valid value of its field."""


def number_in(text: str, is_whole: bool) -> int | float:
    """A number that a person wrote."""
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    value: float = math.nan
    if NUMBER.fullmatch(text) and len(text) <= LONGEST_NUMBER:
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    if is_whole and math.isfinite(value) and value == int(value):
        return int(value)
    if not math.isfinite(value) or is_whole:
        kind = "a whole number, such as 12" if is_whole else "a number, such as 12 or 3.5"
        raise Refused(f"This must be {kind}.")
    return value


def json_in(text: str) -> Any:
    """The value of JSON text that a person wrote."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise Refused("This is nested too deeply.") from None
    except ValueError as error:
        hint = ""
        if not any(one in text for one in '{}[]"\n') and not isinstance(error, Refused):
            hint = f" Text needs quotes: {json.dumps(text.strip(), ensure_ascii=False)}"
        raise Refused(f"This is not JSON: {error}.{hint}") from None


def _refuse_constant(name: str) -> Any:
    raise Refused(f"{name} is not a value of JSON")


def moment_in(text: str, zone: tzinfo) -> str:
    """A time with its zone; without one, in the viewer's zone."""
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo else at.replace(tzinfo=zone)).isoformat()
    except ValueError:
        raise Refused("This must be a date and a time, such as 2027-01-31T09:30.") from None
