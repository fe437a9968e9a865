"""What a person may answer: a JSON Schema in one line, and an answer that fits it.

For people, not for a check: what a line cannot say is left out, and whoever needs all of it asks
with --json.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

ANY = "JSON"
"""What stands for an answer that only a person can think of."""


def tell_schema(schema: Any) -> str:
    """Its choices, or its fields, the required ones first: `action: yes | no; subject, body`."""
    if not isinstance(schema, Mapping):
        return ""
    fields = dict(_fields(schema))
    if not fields:
        return _kind(schema, schema)
    said: list[str] = []
    plain = False
    for name, one in fields.items():
        kind = _kind(one, schema)
        told = f"{name}: {kind}" if kind else name
        if said and plain and not kind:
            said[-1] += f", {told}"
        else:
            said.append(told)
        plain = not kind
    return "; ".join(said)


def example(schema: Any) -> str:
    """An answer as it is typed, of the first choices; JSON where there is more to say."""
    if not isinstance(schema, Mapping):
        return ANY
    fields = dict(_fields(schema))
    required = [name for name in fields if name in schema.get("required", ())]
    if fields and not required:
        return ANY
    chosen = [_choices(fields[name], schema) for name in required] or [_choices(schema, schema)]
    if not all(chosen):
        return ANY
    first = [one[0] for one in chosen]
    answer = dict(zip(required, first, strict=True)) if fields else first[0]
    return shlex.quote(json.dumps(answer, ensure_ascii=False))


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    fields, required = schema.get("properties"), schema.get("required", ())
    if isinstance(fields, Mapping):
        yield from sorted(fields.items(), key=lambda field: field[0] not in required)


def _kind(one: Any, schema: Mapping[str, Any]) -> str:
    """The values it may have, or their type; nothing of a text, which is what people write."""
    if choices := _choices(one, schema):
        return " | ".join(x if isinstance(x, str) else json.dumps(x) for x in choices)
    kinds = [kind for each in _each(one, schema) if (kind := each.get("type")) != "null"]
    told = [kind for kind in kinds if isinstance(kind, str)]
    return " or ".join(dict.fromkeys(told)) if told and set(told) != {"string"} else ""


def _choices(one: Any, schema: Mapping[str, Any]) -> list[Any]:
    """The values it may have, if they can be counted; that there may be none is left out."""
    found: list[Any] = []
    for each in _each(one, schema):
        if "const" in each:
            found.append(each["const"])
        elif isinstance(each.get("enum"), list):
            found += each["enum"]
        elif each.get("type") == "boolean":
            found += [True, False]
        elif each.get("type") != "null":
            return []
    return found


def _each(one: Any, schema: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """A schema, or those it is made of, with what it refers to."""
    if not isinstance(one, Mapping) or depth > 8:
        return
    place = str(one.get("$ref", ""))
    if place.startswith("#/$defs/"):
        one = (schema.get("$defs") or {}).get(place.removeprefix("#/$defs/"))
        yield from _each(one, schema, depth + 1)
        return
    parts = one.get("anyOf") or one.get("oneOf")
    if isinstance(parts, list):
        for part in parts:
            yield from _each(part, schema, depth + 1)
    else:
        yield one
