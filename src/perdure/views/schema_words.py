"""JSON Schema in words: a schema in one line with an answer that fits it, labels, limits, and why a
value does not fit. For people, not for validation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from perdure.commands.answer_schema import Fault

DEEPEST = 8
"""How many references deep a schema is followed: it may refer to itself."""


def summarise_schema(schema: Any) -> str:
    """Its choices, or its fields, the required ones first: `action: yes | no; subject, body`."""
    if not isinstance(schema, Mapping):
        return ""
    fields = dict(_fields(schema))
    if not fields:
        return _type(schema, schema)
    parts: list[str] = []
    untyped = False
    for name, one in fields.items():
        kind = _type(one, schema)
        part = f"{name}: {kind}" if kind else name
        if parts and untyped and not kind:
            parts[-1] += f", {part}"
        else:
            parts.append(part)
        untyped = not kind
    return "; ".join(parts)


def example_answer(schema: Any) -> str | None:
    """An answer of first choices as JSON text. None if a person has to think of one."""
    if not isinstance(schema, Mapping):
        return None
    fields = dict(_fields(schema))
    required = [name for name in fields if name in schema.get("required", ())]
    if fields and not required:
        return None
    chosen = [_choices(fields[name], schema) for name in required] or [_choices(schema, schema)]
    if not all(chosen):
        return None
    first = [one[0] for one in chosen]
    answer = dict(zip(required, first, strict=True)) if fields else first[0]
    return json.dumps(answer, ensure_ascii=False)


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    fields, required = schema.get("properties"), schema.get("required", ())
    if isinstance(fields, Mapping):
        yield from sorted(fields.items(), key=lambda field: field[0] not in required)


def _type(one: Any, schema: Mapping[str, Any]) -> str:
    """The values it may have, or their type; empty for strings, which people write anyway."""
    if choices := _choices(one, schema):
        return " | ".join(x if isinstance(x, str) else json.dumps(x) for x in choices)
    kinds = [kind for each in alternatives(one, schema) if (kind := each.get("type")) != "null"]
    named = [kind for kind in kinds if isinstance(kind, str)]
    return " or ".join(dict.fromkeys(named)) if named and set(named) != {"string"} else ""


def _choices(one: Any, schema: Mapping[str, Any]) -> list[Any]:
    """The values it may have, if they can be listed; null is left out."""
    found: list[Any] = []
    for each in alternatives(one, schema):
        if "const" in each:
            found.append(each["const"])
        elif isinstance(each.get("enum"), list):
            found += each["enum"]
        elif each.get("type") == "boolean":
            found += [True, False]
        elif each.get("type") != "null":
            return []
    return found


def alternatives(
    one: Any, schema: Mapping[str, Any], depth: int = 0
) -> Iterator[Mapping[str, Any]]:
    """A schema, or its alternatives, with references followed."""
    if not isinstance(one, Mapping) or depth > DEEPEST:
        return
    place = str(one.get("$ref", ""))
    if place.startswith("#/$defs/"):
        one = (schema.get("$defs") or {}).get(place.removeprefix("#/$defs/"))
        yield from alternatives(one, schema, depth + 1)
        return
    parts = one.get("anyOf") or one.get("oneOf")
    if isinstance(parts, list):
        for part in parts:
            yield from alternatives(part, schema, depth + 1)
    else:
        yield one


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
