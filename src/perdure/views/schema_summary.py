"""A JSON Schema in one line, and an answer that fits it.

For people, not for validation: what one line cannot say is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

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
