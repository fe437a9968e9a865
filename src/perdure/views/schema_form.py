"""The form for a JSON Schema: a field for each part. Pure.

What a form cannot express becomes a field for JSON text, so every schema has a form. Answers are
validated against the schema itself. A field says which widget it has and what it holds, never how
it looks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from perdure.commands.answer_schema import SchemaCheck, as_json
from perdure.text import json_default
from perdure.views.markup import visible
from perdure.views.schema_words import alternative_label, humanise, limits_in_words, value_label


class Widget(StrEnum):
    """How a value is given."""

    FIXED = "fixed"
    """A single possible value: nothing to fill in."""
    RADIO = "radio"
    SELECT = "select"
    CHECKBOX = "checkbox"
    CHECKBOXES = "checkboxes"
    NUMBER = "number"
    LINE = "line"
    TEXT = "text"
    MOMENT = "moment"
    """A date and a time in the viewer's zone."""
    LINES = "lines"
    """A list, one line for each."""
    GROUP = "group"
    """An object: it has fields."""
    ONE_OF = "one of"
    """Alternatives: one of its fields is chosen."""
    JSON = "json"


class Nothing(Enum):
    """The value of a field that is not part of the answer."""

    LEFT_OUT = "left out"


LEFT_OUT = Nothing.LEFT_OUT


def is_empty(value: Any) -> bool:
    """Whether there is no value, or null."""
    return value is LEFT_OUT or value is None


class Choice(NamedTuple):
    """One choice."""

    key: str
    """Its value in the form."""
    label: str
    value: Any
    help: str = ""


@dataclass(frozen=True)
class Field:
    """One value of a form, empty or filled in."""

    name: str
    """Its name in the form."""
    id: str
    label: str
    widget: Widget
    schema: Mapping[str, Any]
    path: tuple[str | int, ...] = ()
    """The path of its value in the answer."""
    required: bool = True
    nullable: bool = False
    help: str = ""
    choices: tuple[Choice, ...] = ()
    fields: tuple[Field, ...] = ()
    input: str = "text"
    """The type of an input of one line."""
    start: Any = LEFT_OUT
    """The value it starts with."""
    shown: str | None = None
    """The text that the question showed under this name. Unchanged, it is not answered."""
    initial: tuple[str, ...] = ()
    """What is in it at first: a text, or the keys of what is chosen."""
    texts: tuple[str, ...] = ()
    """What is in it now."""
    error: str = ""

    @property
    def text(self) -> str:
        """What is in it now, if that is one text."""
        return self.texts[0] if self.texts else ""

    @property
    def key(self) -> str:
        """Its key in the object it is part of."""
        return str(self.path[-1]) if self.path else ""

    @property
    def is_optional(self) -> bool:
        """Whether it can be left empty."""
        is_blank = isinstance(self.start, (str, list)) and not self.start
        return self.nullable or (not self.required and (is_blank or is_empty(self.start)))

    @property
    def every(self) -> Iterator[Field]:
        """It, and the fields inside."""
        yield self
        for one in self.fields:
            yield from one.every


def with_text(field: Field, text: str) -> Field:
    """A field with a text in it at first."""
    return replace(field, initial=(visible(text),), texts=(visible(text),))


def as_json_text(field: Field) -> Field:
    """A field whose value is written as JSON."""
    text = "" if field.start is LEFT_OUT else json_of(field.start)
    return with_text(replace(field, widget=Widget.JSON), text)


def json_of(value: Any) -> str:
    """A value as JSON that people read and change."""
    plain = as_json(value)
    return json.dumps(plain, indent=2, ensure_ascii=False, default=json_default, skipkeys=True)


def number_text(value: Any) -> str:
    """A number as people write it; empty if there is none."""
    return "" if is_empty(value) else repr(value)


def is_line(text: str) -> bool:
    """Whether a text is one line of a list."""
    return bool(text.strip()) and text.splitlines() == [text]


def is_date(text: str) -> bool:
    """Whether an input for dates would show this."""
    return not text or re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) is not None


def local_time(text: str, zone: tzinfo) -> str | None:
    """A time as a form has it, in the viewer's zone. None for one that a form would change."""
    if not text:
        return ""
    try:
        at = datetime.fromisoformat(text)
        known = at.tzinfo is not None and not at.microsecond
        local = at.astimezone(zone).replace(tzinfo=None)
        return local.isoformat(timespec="auto" if at.second else "minutes") if known else None
    except (ValueError, OverflowError):
        return None


DEEPEST_REFERENCE = 8
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
        if not isinstance(schema, Mapping) or depth > DEEPEST_REFERENCE:
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
