"""JSON Schema in words: labels, limits, and why a value does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from perdure.commands.answer_schema import Fault

KINDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "yes or no",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
FORMATS = {
    "email": "an e-mail address",
    "idn-email": "an e-mail address",
    "date": "a date, such as 2027-01-31",
    "date-time": "a date and a time",
    "time": "a time, such as 09:30:00Z",
    "uri": "a web address",
    "uuid": "a UUID",
    "ipv4": "an IP address",
    "ipv6": "an IPv6 address",
}
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
}
"""Limits of a value, by their name in a schema."""
ANY_NUMBER = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
"""Limits that are worth saying even at 0."""


def humanise(name: str) -> str:
    """The name of a field as a label: `due_date` is `Due date`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:] if words else name


def value_label(value: Any) -> str:
    """One of the values to choose from."""
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def alternative_label(schema: Mapping[str, Any], n: int) -> str:
    """The label of one alternative schema: its title, its distinguishing constant, or its type."""
    if title := schema.get("title"):
        return str(title)
    for one in (schema.get("properties") or {}).values():
        if isinstance(one, Mapping) and "const" in one:
            return value_label(one["const"])
    kind = schema.get("type")
    return humanise(KINDS.get(kind, "")) if isinstance(kind, str) else f"Alternative {n + 1}"


def limits_in_words(schema: Mapping[str, Any]) -> str:
    """What limits a value: `at least 1, at most 5`."""
    form = str(schema.get("format"))
    parts = [FORMATS[form]] if form in FORMATS else []
    for key, words in LIMITS.items():
        limit = schema.get(key)
        if isinstance(limit, (int, float)) and (limit or key in ANY_NUMBER):
            parts.append(words.format(_figure(limit)))
    return ", ".join(parts)


def fault_in_words(fault: Fault) -> str:
    """Why a value does not fit, to the person who gave it."""
    if fault.keyword in LIMITS:
        return f"This must be {LIMITS[fault.keyword].format(_figure(fault.limit))}."
    match fault.keyword:
        case "required":
            return "Fill this in."
        case "propertyNames" | "additionalProperties" | "not" | "dependentRequired" | "if":
            return "This conflicts with the other answers."
        case "format":
            return f"This must be {FORMATS.get(str(fault.limit), f'of the format {fault.limit}')}."
        case "type":
            kinds = [fault.limit] if isinstance(fault.limit, str) else fault.limit
            return f"This must be {' or '.join(KINDS.get(one, one) for one in kinds)}."
        case "pattern":
            return f"This does not match the pattern {fault.limit}"
    return f"{fault.message[:1].upper()}{fault.message[1:]}."


def _figure(limit: Any) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
