"""The form for a JSON Schema: a field for each part. Pure.

What a form cannot express becomes a field for JSON text, so every schema has a form. Answers are
validated against the schema itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any, NamedTuple

from perdure.commands.answer_schema import SchemaCheck, as_json
from perdure.views.field_texts import (
    as_json_text,
    is_date,
    is_line,
    local_time,
    number_text,
    with_text,
)
from perdure.views.form_fields import LEFT_OUT, Choice, Field, Widget, is_empty
from perdure.views.schema_parts import SchemaParts, key_of, listed, schema_of
from perdure.views.schema_words import alternative_label, humanise, limits_in_words

DEEPEST = 4
"""Maximum nesting of objects with fields of their own."""
MOST_FIELDS = 100
"""Maximum number of fields. An object with more of them is JSON text, and so is the rest."""
MOST_RADIOS = 6
"""Maximum number of choices shown at once; more are in a drop-down list."""
SHORT = 200
"""Texts limited to this length have one line."""
LONG = 80
"""Initial texts of this length have several lines."""
ONE_LINE = {"email": "email", "idn-email": "email", "uri": "url", "date": "date", "uuid": "text"}
"""Formats of one line, and the type of their input."""


def make_form(
    schema: Mapping[str, Any],
    *,
    name: str = "answer",
    start: Any = LEFT_OUT,
    shown: Any = None,
    zone: tzinfo = UTC,
) -> Field:
    """The form for a value that fits a schema. It starts with `start`, and with the schema's
    defaults. `shown` is the object that the question showed: a text field of the same name as one
    of its texts starts with that."""
    return _Maker(schema, name, shown, zone).make(schema, _Place(name), start)


class _Place(NamedTuple):
    """The place of a field in the form and in the answer."""

    name: str
    label: str = ""
    path: tuple[str | int, ...] = ()
    required: bool = True
    depth: int = 0

    def property(self, key: str, required: bool) -> _Place:
        escaped = key.replace("%", "%25").replace(".", "%2E")
        name, path = f"{self.name}.{escaped}", (*self.path, key)
        return _Place(name, humanise(key), path, required, self.depth + 1)

    def alternative(self, schema: Mapping[str, Any], n: int) -> _Place:
        label = alternative_label(schema, n)
        return _Place(f"{self.name}.{n}", label, self.path, True, self.depth + 1)


class _Maker:
    """Makes the fields of one schema."""

    def __init__(self, schema: Mapping[str, Any], name: str, shown: Any, zone: tzinfo) -> None:
        self._parts, self._shown, self._zone = SchemaParts(schema), shown, zone
        self._check, self._prefix, self._count = SchemaCheck(schema), re.sub(r"\W", "-", name), 0

    def make(self, schema: Any, place: _Place, start: Any) -> Field:
        """The field of a part of the schema."""
        self._count += 1
        whole = self._parts.resolved(schema)
        one, others, nullable = self._parts.alternatives(whole)
        if start is LEFT_OUT and whole is not None:
            start = whole.get("default", LEFT_OUT)
        title = schema.get("title") if isinstance(schema, Mapping) else None
        field = Field(
            name=place.name,
            id=f"{self._prefix}-{self._count}",
            label=str(title or place.label),
            widget=Widget.JSON,
            schema=one or {},
            path=place.path,
            required=place.required,
            nullable=nullable,
            start=start,
        )
        made = self._made(field, one, others, place)
        return replace(made, help=_help(whole or {}, made))

    def _made(
        self,
        field: Field,
        one: dict[str, Any] | None,
        others: Sequence[dict[str, Any]],
        place: _Place,
    ) -> Field:
        is_large = self._count > MOST_FIELDS or place.depth > DEEPEST
        if one is None or is_large or not self._fits(field, others):
            return as_json_text(field)
        if (made := _choices(field, [one, *others])) is not None:
            return made
        return self._one_of(field, [one, *others], place) if others else self._by_type(field, place)

    def _fits(self, field: Field, others: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the field's widget can show the value it starts with."""
        start, kind = as_json(field.start), field.schema.get("type")
        if field.start is LEFT_OUT or (start is None and field.nullable) or others:
            return True
        return not isinstance(kind, str) or not self._check.faults(start, {"type": kind})

    # -- the widgets

    def _one_of(self, field: Field, parts: Sequence[Mapping[str, Any]], place: _Place) -> Field:
        """A field for alternatives, each with fields of its own."""
        starts = [self._start_of(part, field.start) for part in parts]
        found = [
            self.make(part, place.alternative(part, n), start)
            for n, (part, start) in enumerate(zip(parts, starts, strict=True))
        ]
        chosen = next((n for n, one in enumerate(starts) if one is not LEFT_OUT), None)
        if field.nullable or not field.required:
            n, nothing = len(found), None if field.nullable else LEFT_OUT
            name, id = f"{place.name}.{n}", f"{field.id}-none"
            found.append(Field(name, id, "No answer", Widget.FIXED, {}, place.path, start=nothing))
            chosen = n if chosen is None else chosen
        made = replace(field, widget=Widget.ONE_OF, fields=tuple(found))
        return with_text(made, "" if chosen is None else str(chosen))

    def _start_of(self, part: Mapping[str, Any], start: Any) -> Any:
        """What an alternative starts with: the value of the whole, if it fits."""
        if is_empty(start) or self._check.faults(as_json(start), part):
            return LEFT_OUT
        return start

    def _by_type(self, field: Field, place: _Place) -> Field:
        match field.schema.get("type"):
            case "string":
                return self._text(field)
            case "number" | "integer":
                return with_text(replace(field, widget=Widget.NUMBER), number_text(field.start))
            case "array":
                return self._list(field)
            case "object" | None:
                return self._group(field, place)
        return as_json_text(field)

    def _text(self, field: Field) -> Field:
        field = self._from_shown(field)
        schema, form = field.schema, str(field.schema.get("format", ""))
        text = field.shown or ("" if is_empty(field.start) else str(field.start))
        if form == "date-time" and (local := local_time(text, self._zone)) is not None:
            return with_text(replace(field, widget=Widget.MOMENT), local)
        is_long = "\n" in text or len(text) > LONG
        is_short = isinstance(most := schema.get("maxLength"), int) and most <= SHORT
        if not is_long and (is_short or form in ONE_LINE or "pattern" in schema):
            kind = ONE_LINE.get(form, "text")
            kind = "text" if kind == "date" and not is_date(text) else kind
            return with_text(replace(field, widget=Widget.LINE, input=kind), text)
        return with_text(replace(field, widget=Widget.TEXT), text)

    def _from_shown(self, field: Field) -> Field:
        """A text field that starts with the text that the question showed under its name."""
        if len(field.path) != 1 or not isinstance(self._shown, Mapping):
            return field
        found = self._shown.get(field.path[0])
        if (
            not isinstance(found, str)
            or not found
            or not (is_empty(field.start) or field.start == "")
        ):
            return field
        if field.required and field.start is LEFT_OUT:
            return replace(field, start=found)
        return replace(field, shown=found)

    def _list(self, field: Field) -> Field:
        items = self._parts.resolved(field.schema.get("items"))
        start = [] if is_empty(field.start) else [*field.start]
        if items is None or "prefixItems" in field.schema:
            return as_json_text(field)
        if choices := listed(items):
            keys = tuple(key_of(one) for one in start)
            if len({*keys}) == len(keys) and {*keys} <= {choice.key for choice in choices}:
                made = replace(field, widget=Widget.CHECKBOXES, choices=tuple(choices))
                return replace(made, initial=keys, texts=keys)
        elif items.get("type") in ("string", "number", "integer"):
            lines = start if items["type"] == "string" else [*map(number_text, start)]
            if all(isinstance(one, str) and is_line(one) for one in lines):
                return with_text(replace(field, widget=Widget.LINES), "\n".join(lines))
        return as_json_text(field)

    def _group(self, field: Field, place: _Place) -> Field:
        """An object. If optional, it is an alternative to no answer."""
        start = field.start if isinstance(field.start, Mapping) else {}
        known = field.schema.get("properties")
        known = known if isinstance(known, Mapping) else {}
        extra = {key: schema_of(one) for key, one in start.items() if key not in known}
        if not (known or extra) or not all(isinstance(key, str) for key in extra):
            return as_json_text(field)
        if self._count + len(known) + len(extra) > MOST_FIELDS:
            return as_json_text(field)
        if is_empty(field.start) and (field.nullable or not field.required):
            return self._one_of(field, [field.schema], place)
        required = field.schema.get("required") or ()
        fields = [
            self.make(one, place.property(key, key in required), start.get(key, LEFT_OUT))
            for key, one in {**known, **extra}.items()
        ]
        return replace(field, widget=Widget.GROUP, fields=tuple(fields))


def _choices(field: Field, parts: Sequence[Mapping[str, Any]]) -> Field | None:
    """A field for one of several values, if they can be listed."""
    lists = [listed(part) for part in parts]
    if not all(lists):
        return None
    found = [*{choice.key: choice for part in lists for choice in part}.values()]
    keys, start = {choice.key for choice in found}, key_of(field.start)
    if not is_empty(field.start) and start not in keys:
        return None
    if len(found) == 1 and field.required and not field.nullable:
        return replace(field, widget=Widget.FIXED, start=found[0].value, choices=(found[0],))
    is_flag = [choice.value for choice in found] == [True, False]
    if is_flag and isinstance(field.start, bool) and not field.nullable:
        return with_text(replace(field, widget=Widget.CHECKBOX), "on" * field.start)
    if field.nullable or (not field.required and field.start is LEFT_OUT):
        found.append(Choice("", "No answer", None if field.nullable else LEFT_OUT))
    widget = Widget.RADIO if len(found) <= MOST_RADIOS else Widget.SELECT
    made = replace(field, widget=widget, choices=tuple(found))
    return with_text(made, start if start in keys else "")


def _help(schema: Mapping[str, Any], field: Field) -> str:
    """What a field is for, and what limits it."""
    described = str(schema.get("description") or "").strip()
    limits = limits_in_words(field.schema) if not field.fields else ""
    if field.widget is Widget.LINES:
        limits = ", ".join(filter(None, ("one per line", limits)))
    if field.widget is Widget.JSON:
        limits = ", ".join(filter(None, ("as JSON", limits)))
    said = f"{limits[:1].upper()}{limits[1:]}." if limits else ""
    return "\n".join(filter(None, (described, said)))
