"""A filled-in form as the value that the agent gets: numbers, JSON and times as typed. Pure.

Each field gives a value of exactly its schema's type, or an error beside it, and keeps what was
typed. An unchanged field gives its initial value, exact to the last byte, whatever a browser does
to line endings and unusual characters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any

from perdure.commands.answer_schema import Fault, SchemaCheck, as_json
from perdure.views.markup import visible
from perdure.views.schema_form import LEFT_OUT, Field, Widget
from perdure.views.schema_words import fault_in_words

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


Posted = Mapping[str, Sequence[str]]
"""What a form sent: the texts of each name."""
EMPTY = "Fill this in."
CHOOSE = "Choose one."


@dataclass(frozen=True)
class Filled:
    """A form that was filled in."""

    form: Field
    """With what was typed, and its errors."""
    value: Any = None
    """The answer, if there are no errors."""

    @property
    def is_good(self) -> bool:
        return not any(field.error for field in self.form.every)


def fill(form: Field, posted: Posted, schema: Mapping[str, Any], zone: tzinfo = UTC) -> Filled:
    """The form with what was posted, and the answer, which fits the schema if there are no errors.

    Texts that were left as the question showed them are not part of the answer, unless the schema
    requires them.
    """
    check = SchemaCheck(schema)
    reader = _Reader(posted, zone, check, keeps_shown=False)
    filled, value = reader.read(form)
    faults = check.faults(as_json(value)) if value is not LEFT_OUT else []
    if faults and any(field.shown is not None for field in form.every):
        other = _Reader(posted, zone, check, keeps_shown=True).read(form)
        if not check.faults(as_json(other[1])):
            (filled, value), faults = other, []
    made = Filled(filled, value)
    return made if not made.is_good or not faults else Filled(_blamed(filled, faults), value)


class _Reader:
    """Reads the fields of one form."""

    def __init__(
        self, posted: Posted, zone: tzinfo, check: SchemaCheck, *, keeps_shown: bool
    ) -> None:
        self._posted, self._zone, self._check = posted, zone, check
        self._keeps_shown = keeps_shown

    def read(self, field: Field) -> tuple[Field, Any]:
        """A field with what was typed into it, and its value."""
        if field.widget is Widget.FIXED:
            return field, field.start
        if field.widget is Widget.GROUP:
            return self._group(field)
        texts = tuple(_plain(text) for text in self._posted.get(field.name, ()))
        texts = texts or (() if field.widget is Widget.CHECKBOXES else ("",))
        field = replace(field, texts=texts, error="")
        if field.widget is Widget.ONE_OF:
            return self._one_of(field)
        if texts == tuple(map(_plain, field.initial)) and field.start is not LEFT_OUT:
            return field, field.start
        if field.shown is not None and texts == (_plain(field.shown),):
            return field, field.shown if self._keeps_shown else LEFT_OUT
        try:
            value = self._value(field)
        except Refused as error:
            return replace(field, error=str(error)), LEFT_OUT
        return self._checked(field, value), value

    def _checked(self, field: Field, value: Any) -> Field:
        if value is LEFT_OUT or (value is None and field.nullable):
            return field
        faults = self._check.faults(as_json(value), field.schema)
        return replace(field, error=fault_in_words(faults[0])) if faults else field

    def _value(self, field: Field) -> Any:
        if field.widget is Widget.CHECKBOX:
            return bool(field.text)
        if field.widget in (Widget.RADIO, Widget.SELECT):
            return _chosen(field, field.text)
        if field.widget is Widget.CHECKBOXES:
            chosen = [_chosen(field, text) for text in field.texts]
            return chosen or (LEFT_OUT if _can_be_left_out(field) else [])
        if not field.text.strip() and (value := _when_empty(field)) is not ...:
            return value
        if field.widget is Widget.MOMENT:
            return moment_in(field.text, self._zone)
        return READ[field.widget](field)

    def _group(self, field: Field) -> tuple[Field, Any]:
        made = [self.read(one) for one in field.fields]
        value = {one.key: given for one, given in made if given is not LEFT_OUT}
        return replace(field, fields=tuple(one for one, _ in made)), value

    def _one_of(self, field: Field) -> tuple[Field, Any]:
        """Only the chosen alternative counts; what was typed into others is kept."""
        made = [self.read(one) for one in field.fields]
        at = next((n for n in range(len(made)) if field.text == str(n)), None)
        kept = [one if n == at else _forgiven(one) for n, (one, _) in enumerate(made)]
        field = replace(field, fields=tuple(kept))
        return (replace(field, error=CHOOSE), LEFT_OUT) if at is None else (field, made[at][1])


def _forgiven(field: Field) -> Field:
    return replace(field, error="", fields=tuple(map(_forgiven, field.fields)))


def _can_be_left_out(field: Field) -> bool:
    return not field.required and field.start is LEFT_OUT


def _when_empty(field: Field) -> Any:
    """The value of a field without text; `...` if the empty text itself is one."""
    if field.nullable:
        return None
    if field.widget is Widget.LINES:
        return LEFT_OUT if _can_be_left_out(field) else []
    is_text = field.widget in (Widget.TEXT, Widget.LINE)
    if is_text and (field.shown is not None or isinstance(field.start, str)):
        return ...
    if _can_be_left_out(field):
        return LEFT_OUT
    raise Refused(EMPTY)


def _chosen(field: Field, key: str) -> Any:
    for choice in field.choices:
        if choice.key == key:
            return choice.value
    raise Refused(CHOOSE if not key else "This is not one of the choices.")


def _text(field: Field) -> str:
    return field.text


def _number(field: Field) -> int | float:
    return number_in(field.text, field.schema.get("type") == "integer")


def _lines(field: Field) -> list[Any]:
    lines = [line for line in field.text.split("\n") if line.strip()]
    items = field.schema.get("items") or {}
    kind = items.get("type") if isinstance(items, Mapping) else None
    if kind in ("number", "integer"):
        return [number_in(line, kind == "integer") for line in lines]
    return lines


def _json(field: Field) -> Any:
    return json_in(field.text)


READ: Mapping[Widget, Callable[[Field], Any]] = {
    Widget.NUMBER: _number,
    Widget.LINE: _text,
    Widget.TEXT: _text,
    Widget.LINES: _lines,
    Widget.JSON: _json,
}


def _plain(text: str) -> str:
    """A text as a browser returns it: line endings and control characters do not survive."""
    return visible(text.replace("\r\n", "\n").replace("\r", "\n"))


def _blamed(form: Field, faults: Sequence[Fault]) -> Field:
    """The form with each fault at its field, or at the nearest enclosing field."""
    for fault in faults:
        path = fault.path if fault.key is None else (*fault.path, fault.key)
        fields = [field for field in form.every if _is_open(form, field)]
        about = [field for field in fields if field.path == path[: len(field.path)]]
        at = max(about, key=lambda field: len(field.path))
        exact = len(at.path) >= len(path)
        words = fault_in_words(fault) if exact else f"{fault.message}."
        form = _with_error(form, at.name, words)
    return form


def _is_open(form: Field, field: Field) -> bool:
    """Whether a field counts: no alternative above it was chosen instead."""
    for one in form.every:
        if one.widget is Widget.ONE_OF:
            for n, part in enumerate(one.fields):
                if str(n) != one.text and any(inner.name == field.name for inner in part.every):
                    return False
    return True


def _with_error(field: Field, name: str, error: str) -> Field:
    if field.name == name:
        return field if field.error else replace(field, error=error)
    return replace(field, fields=tuple(_with_error(one, name, error) for one in field.fields))
