"""The parts of a JSON Schema for a form: resolved references, alternatives, listed values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.views.form_fields import LEFT_OUT, Choice
from perdure.views.schema_words import value_label

DEEPEST = 8
"""Maximum depth of references followed, because a schema may refer to itself."""
Schema = dict[str, Any]


class Alternatives(NamedTuple):
    """What a value may be, besides null."""

    first: Schema | None
    """None if a reference cannot be resolved."""
    others: tuple[Schema, ...] = ()
    nullable: bool = False


class SchemaParts:
    """Reads one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def resolved(self, schema: Any, depth: int = 0) -> Schema | None:
        """A schema with its references resolved. None if one cannot be."""
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return None
        parts = schema.get("allOf")
        if "$ref" in schema:
            inner = self.resolved(_pointed(self._root, schema["$ref"]), depth + 1)
        elif isinstance(parts, list) and len(parts) == 1:
            inner = self.resolved(parts[0], depth + 1)
        else:
            return dict(schema)
        own = {key: one for key, one in schema.items() if key not in ("$ref", "$defs", "allOf")}
        return None if inner is None else {**inner, **own}

    def alternatives(self, schema: Schema | None) -> Alternatives:
        """The alternatives of a resolved schema."""
        if schema is None:
            return Alternatives(None)
        parts = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(schema.get("type"), list):
            parts = [{**schema, "type": kind} for kind in schema["type"]]
        if not isinstance(parts, list) or not parts:
            return Alternatives(schema)
        found = [self.resolved(part) for part in parts]
        real = [part for part in found if part is not None and part.get("type") != "null"]
        if None in found or not real:
            return Alternatives(None)
        return Alternatives(real[0], tuple(real[1:]), len(real) < len(found))


def schema_of(value: Any) -> dict[str, Any]:
    """A schema for values like this one: the same keys, and the same types."""
    if isinstance(value, str):
        return {"type": "string"}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, (int, float)):
        return {"type": "number"}
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        fields = {key: schema_of(one) for key, one in value.items()}
        return {"type": "object", "properties": fields, "required": [*fields]}
    if isinstance(value, (list, tuple)) and value:
        kinds = [schema_of(one) for one in value]
        if kinds[0].get("type") in ("string", "number") and kinds.count(kinds[0]) == len(kinds):
            return {"type": "array", "items": kinds[0]}
    return {}


def listed(schema: Mapping[str, Any]) -> list[Choice]:
    """The values of a schema, if they can be listed."""
    said = str(schema.get("title") or ""), str(schema.get("description") or "")
    if "const" in schema:
        value = schema["const"]
        return [Choice(key_of(value), said[0] or value_label(value), value, said[1])]
    if isinstance(schema.get("enum"), list):
        return [Choice(key_of(one), value_label(one), one) for one in schema["enum"]]
    if schema.get("type") == "boolean":
        return [Choice(key_of(one), value_label(one), one) for one in (True, False)]
    return []


def key_of(value: Any) -> str:
    """A value as a form sends it: its JSON."""
    return "" if value is LEFT_OUT else json.dumps(value, ensure_ascii=False, default=str)


def _pointed(root: Any, reference: Any) -> Any:
    """The part of a schema that a local reference names."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        root = root.get(key) if isinstance(root, Mapping) else None
    return root
