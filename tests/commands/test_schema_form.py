"""A form made from a schema gives values that fit it, or says at which field they do not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from perdure.commands.answer_schema import SchemaCheck, as_json
from perdure.views import schema_form
from perdure.views.question_form import fill
from perdure.views.schema_form import LEFT_OUT, Widget, make_form, schema_of
from tests.commands.forms import posted


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Address(BaseModel):
    street: str
    zip: Annotated[str, Field(max_length=5, pattern="^[0-9]+$")] = "00000"


class Card(BaseModel):
    kind: Literal["card"]
    last4: Annotated[str, Field(max_length=4)]


class Invoice(BaseModel):
    kind: Literal["invoice"]
    days: Annotated[int, Field(ge=0, le=90)] = 30


class Order(BaseModel):
    """All that a form is made of."""

    verdict: Literal["send", "drop"]
    size: Size | None = None
    urgent: bool
    gift: bool = False
    amount: Annotated[float, Field(gt=0, description="In euros.")]
    count: int = 3
    comment: str = ""
    subject: Annotated[str, Field(max_length=80)]
    address: Address
    other: Address | None = None
    tags: list[str] = []
    numbers: list[int] = []
    colours: list[Literal["red", "blue"]] = []
    payment: Annotated[Card | Invoice, Field(discriminator="kind")]
    at: datetime | None = None
    parts: list[Address] = []
    extra: dict[str, int] = {}


ORDER = TypeAdapter(Order).json_schema()


def field(form: schema_form.Field, *path: str) -> schema_form.Field:
    [found] = [one for one in form.every if one.path == path and one.widget is not Widget.FIXED][:1]
    return found


def test_each_type_has_its_widget() -> None:
    form = make_form(ORDER)
    widgets = {one.key: one.widget.value for one in form.fields}
    assert widgets == {
        "verdict": "radio",
        "size": "radio",
        "urgent": "radio",
        "gift": "checkbox",
        "amount": "number",
        "count": "number",
        "comment": "text",
        "subject": "line",
        "address": "group",
        "other": "one of",
        "tags": "lines",
        "numbers": "lines",
        "colours": "checkboxes",
        "payment": "one of",
        "at": "moment",
        "parts": "json",
        "extra": "json",
    }
    assert [choice.label for choice in field(form, "size").choices] == ["s", "l", "No answer"]
    assert [one.label for one in field(form, "payment").fields] == ["Card", "Invoice"]
    assert field(form, "amount").help == "In euros.\nMore than 0."
    assert field(form, "subject").help == "At most 80 characters."
    assert field(form, "address").label == "Address"


FILLED = {
    "verdict": '"send"',
    "urgent": "false",
    "amount": "12.5",
    "subject": "Hello",
    "address__street": "Main St 1",
    "payment": "1",
}


def test_what_a_form_sends_is_typed_as_the_schema_says() -> None:
    form = make_form(ORDER, zone=timezone(timedelta(hours=1)))
    sent = posted(
        form,
        **FILLED,
        count="7",
        comment="Two\nlines",
        tags="a\n\n b",
        numbers="1\n2",
        colours=['"blue"'],
        at="2027-01-31T09:30",
        parts='[{"street": "x"}]',
    )
    filled = fill(form, sent, ORDER, timezone(timedelta(hours=1)))
    assert filled.is_good
    assert filled.value == {
        "verdict": "send",
        "size": None,
        "urgent": False,
        "gift": False,
        "amount": 12.5,
        "count": 7,
        "comment": "Two\nlines",
        "subject": "Hello",
        "address": {"street": "Main St 1", "zip": "00000"},
        "other": None,
        "tags": ["a", " b"],
        "numbers": [1, 2],
        "colours": ["blue"],
        "payment": {"kind": "invoice", "days": 30},
        "at": "2027-01-31T09:30:00+01:00",
        "parts": [{"street": "x"}],
        "extra": {},
    }
    made = Order.model_validate(filled.value)
    assert made.at == datetime(2027, 1, 31, 8, 30, tzinfo=UTC)


def test_an_error_stands_at_its_field_and_what_was_typed_is_kept() -> None:
    form = make_form(ORDER)
    wrong = {"amount": "-1", "address__zip": "abc", "numbers": "1\ntwo", "extra": "{"}
    filled = fill(form, posted(form, **{**FILLED, **wrong}), ORDER)
    errors = {".".join(map(str, one.path)): one.error for one in filled.form.every if one.error}
    assert errors.pop("extra").startswith("This is not JSON")
    assert errors == {
        "amount": "This must be more than 0.",
        "address.zip": "This does not match the pattern ^[0-9]+$",
        "numbers": "This must be a whole number, such as 12.",
    }
    assert field(filled.form, "numbers").text == "1\ntwo"
    assert not filled.is_good


def test_nothing_is_chosen_for_a_person_who_has_to_choose() -> None:
    form = make_form(ORDER)
    filled = fill(form, posted(form), ORDER)
    errors = {one.key: one.error for one in filled.form.every if one.error}
    assert errors == {
        "verdict": "Choose one.",
        "urgent": "Choose one.",
        "amount": "Fill this in.",
        "subject": "Fill this in.",
        "street": "Fill this in.",
        "payment": "Choose one.",
    }


def test_an_alternative_that_was_not_chosen_is_not_an_error() -> None:
    form = make_form(ORDER)
    sent = posted(form, **{**FILLED, "payment": "0"}, payment__0__last4="1234")
    sent["answer.payment.1.days"] = ["many"]
    filled = fill(form, sent, ORDER)
    assert filled.is_good
    assert filled.value["payment"] == {"kind": "card", "last4": "1234"}


SCALARS: list[tuple[Any, str, Any]] = [
    (Literal["yes", "no"], '"no"', "no"),
    (Literal[1, "1", True], "1", 1),
    (Literal[1, "1", True], '"1"', "1"),
    (bool, "true", True),
    (int, "-3", -3),
    (int, "3.0", 3),
    (float, "1e3", 1000.0),
    (float, "3", 3),
    (str, "x", "x"),
    (int | None, "", None),
    (list[str], "", []),
    (Annotated[int, Field(ge=0)], "0", 0),
    (Any, '{"a": [1]}', {"a": [1]}),
    (Size, '"s"', "s"),
]


@pytest.mark.parametrize(("type", "text", "value"), SCALARS)
def test_a_schema_need_not_be_an_object(type: Any, text: str, value: Any) -> None:
    schema = TypeAdapter(type).json_schema()
    form = make_form(schema)
    filled = fill(form, {"answer": [text]}, schema)
    assert filled.is_good
    assert (filled.value, filled.value.__class__) == (value, value.__class__)


@pytest.mark.parametrize(
    "text", ["", "x", "1_000", "1,5", "NaN", "inf", "1e999", "0x10", "٣", "9" * 500]
)
def test_what_is_not_a_number_is_refused(text: str) -> None:
    filled = fill(make_form({"type": "number"}), {"answer": [text]}, {"type": "number"})
    assert not filled.is_good
    assert filled.form.text == text


def test_an_odd_schema_is_a_field_for_json() -> None:
    odd: list[Any] = [
        {},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/missing"},
        {"type": "object"},
        {"type": "array"},
        {"type": "array", "prefixItems": [{}], "items": {"type": "string"}},
        {"not": {"type": "string"}},
        {"type": "nonsense"},
        {"$ref": "#"},
    ]
    for schema in odd:
        form = make_form(schema)
        assert form.widget is Widget.JSON, schema
        assert fill(form, {"answer": ["[]"]}, schema).value == []


def test_a_schema_that_refers_to_itself_ends_in_json() -> None:
    class Tree(BaseModel):
        name: str
        child: Tree | None = None

    schema = Tree.model_json_schema()
    form = make_form(schema)
    assert Widget.JSON in {one.widget for one in form.every}
    names = [one.name for one in form.every]
    assert len(names) == len({*names}) < 30


def test_a_large_schema_has_a_bounded_form() -> None:
    schema = {"properties": {f"f{n}": {"type": "string"} for n in range(500)}}
    form = make_form(schema)
    assert sum(one.widget is Widget.TEXT for one in form.every) < 100


def test_a_cleared_text_is_empty_and_not_the_default() -> None:
    schema = {"properties": {"greeting": {"type": "string", "default": "Hello"}}}
    form = make_form(schema)
    assert fill(form, posted(form), schema).value == {"greeting": "Hello"}
    assert fill(form, posted(form, greeting=""), schema).value == {"greeting": ""}


def test_a_cleared_number_with_a_default_has_to_be_given() -> None:
    schema = {"properties": {"n": {"type": "integer", "default": 3}}}
    form = make_form(schema)
    assert not fill(form, posted(form, n=""), schema).is_good


# -- texts that the question showed

DECISION = {
    "type": "object",
    "properties": {
        "action": {"enum": ["approve", "edit"]},
        "subject": {"type": "string"},
        "body": {"type": "string", "pattern": "."},
        "comment": {"type": "string"},
    },
    "required": ["action"],
    "additionalProperties": False,
    "if": {"properties": {"action": {"const": "edit"}}},
    "then": {"required": ["body"]},
    "else": {"propertyNames": {"enum": ["action", "comment"]}},
}
SHOWN = {"to": "bo", "subject": "Hi", "body": "Dear Bo,\nhello."}


def test_a_text_that_was_shown_is_there_to_be_edited_and_not_sent_unless_it_is() -> None:
    form = make_form(DECISION, shown=SHOWN)
    assert field(form, "body").widget is Widget.TEXT
    assert field(form, "body").text == SHOWN["body"]

    def answer(**changes: str) -> Any:
        filled = fill(form, posted(form, **changes), DECISION)
        return filled.value if filled.is_good else {one.key: one.error for one in filled.form.every}

    assert answer(action='"approve"') == {"action": "approve"}
    assert answer(action='"edit"', body="New") == {"action": "edit", "body": "New"}
    assert answer(action='"edit"', subject="Ho") == {
        "action": "edit",
        "subject": "Ho",
        "body": SHOWN["body"],
    }
    wrong = answer(action='"approve"', body="New")
    assert wrong["body"] == "This conflicts with the other answers."


def test_a_required_text_of_a_shown_name_starts_with_it() -> None:
    schema = {"properties": {"body": {"type": "string"}}, "required": ["body"]}
    form = make_form(schema, shown=SHOWN)
    assert fill(form, posted(form), schema).value == {"body": SHOWN["body"]}


# -- values that are there already

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_arguments_that_are_not_touched_stay_what_they_are(arguments: dict[str, Any]) -> None:
    schema = schema_of(arguments)
    form = make_form(schema, name="edit.0", start=arguments)
    filled = fill(form, posted(form), schema)
    assert filled.is_good
    assert filled.value == arguments
    assert repr(filled.value) == repr(arguments)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(min_size=1), json_values, min_size=1, max_size=4), st.data())
def test_a_changed_argument_changes_no_other(arguments: dict[str, Any], data: Any) -> None:
    schema = schema_of(arguments)
    form = make_form(schema, name="edit.0", start=arguments)
    changed = data.draw(st.sampled_from(form.fields))
    sent = posted(form)
    sent[changed.name] = [data.draw(st.text())]
    filled = fill(form, sent, schema)
    errors = [one for one in filled.form.every if one.error]
    assert {one.path[0] for one in errors} <= {changed.key}
    if not errors:
        others = {key: one for key, one in arguments.items() if key != changed.key}
        assert {key: one for key, one in filled.value.items() if key != changed.key} == others


# -- any schema, anything typed

scalars = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5},
        {"type": "string", "minLength": 1, "pattern": "^a"},
        {"type": "string", "format": "email"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
        {"type": "integer", "minimum": 1, "maximum": 5},
        {"type": "number", "multipleOf": 0.5},
        {"type": "boolean"},
        {"type": "boolean", "default": True},
        {"enum": ["a", "b", 1, None, True]},
        {"const": "fixed"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
        {"$ref": "#/$defs/shared"},
        {},
        True,
    ]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b.c", "d e", "verdict"])
    lists = st.builds(lambda one: {"type": "array", "items": one, "minItems": 1}, inner)
    unions = st.builds(lambda *parts: {"oneOf": [*parts]}, inner, inner)
    return (
        lists
        | unions
        | st.builds(
            lambda fields, required: {
                "type": "object",
                "properties": fields,
                "required": sorted(required & fields.keys()),
            },
            st.dictionaries(names, inner, min_size=1),
            st.sets(names),
        )
    )


schemas = st.recursive(scalars, objects, max_leaves=8).map(
    lambda one: {
        **(one if isinstance(one, dict) else {}),
        "$defs": {"shared": {"enum": [1, 2, 3, 4, 5, 6, 7]}},
    }
)
typed = (
    st.text(max_size=6)
    | st.sampled_from(["", "0", "1", "2", "true", '"a"', "null", "a@b.c", "2027-01-31", "[]", "{}"])
    | st.sampled_from(["2027-01-31T09:30", "a\r\nb", "1\r\n2", "1.5", "abc"])
)


@settings(max_examples=400, deadline=None)
@given(schemas, st.data())
def test_what_a_form_gives_fits_the_schema_or_is_refused_at_a_field(schema: Any, data: Any) -> None:
    form = make_form(schema, shown={"a": "abc", "verdict": "no"})
    names = [one.name for one in form.every]
    assert len({one.id for one in form.every}) == len(names) == len({*names})
    sent: dict[str, Sequence[str]] = dict(posted(form))
    for one in form.every:
        choices = [st.just([choice.key]) for choice in one.choices]
        sent[one.name] = data.draw(st.one_of(st.lists(typed, max_size=2), *choices))
    filled = fill(form, sent, schema)
    if filled.is_good:
        assert filled.value is not LEFT_OUT
        assert SchemaCheck(schema).faults(as_json(filled.value)) == []
        json.dumps(filled.value)
    else:
        assert any(one.error for one in filled.form.every)


def test_an_email_address_is_checked() -> None:
    schema = {"type": "string", "format": "email"}
    form = make_form(schema)
    assert form.input == "email"
    assert not fill(form, {"answer": ["nobody"]}, schema).is_good


# -- schemas of strangers


SLOW = ("^(a+)+$", "^(a|a)*$", "(a*)*b", "^(?=x?)(a+)+$", r"^(a+)+\1$")
"""Patterns for which `re` takes hours with forty letters."""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", SLOW)
@pytest.mark.parametrize(
    "inner", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}], ids=["", "another draft"]
)
def test_no_pattern_of_a_schema_keeps_the_server_busy(pattern: str, inner: dict[str, Any]) -> None:
    text = {"type": "string", "pattern": pattern, **inner}
    many = "a" * 40 + "!"
    schema = {
        "type": "object",
        "properties": {"to": {"anyOf": [text, {"type": "integer"}], "default": many}},
        "patternProperties": {pattern: {**text}},
        "additionalProperties": {"propertyNames": text},
        "unevaluatedProperties": False,
    }
    form = make_form(schema)
    fill(form, posted(form), schema)
    SchemaCheck(schema).faults({many: {many: many}, "to": many})


def test_an_object_with_very_many_fields_is_one_field_of_json() -> None:
    many = {f"field {n}": n for n in range(20_000)}
    for schema, start in (
        ({"properties": {name: {"type": "integer"} for name in many}}, LEFT_OUT),
        ({"type": "object"}, many),
    ):
        form = make_form({"type": "object", **schema}, start=start)
        assert (form.widget, form.fields) == (Widget.JSON, ())


@pytest.mark.parametrize(
    "odd", ['"\\ud83d"', '{"\\udfff": 1}', "1e400", "[-1e999]", "NaN", "[" * 120 + "]" * 120]
)
def test_json_that_cannot_be_stored_is_refused_where_it_is_typed(odd: str) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"any": {}}}
    form = make_form(schema)
    filled = fill(form, {"answer.any": [odd]}, schema)
    assert not filled.is_good
    assert [field.error for field in filled.form.every if field.error]
    for field in filled.form.every:
        field.error.encode()


@pytest.mark.parametrize("kind", ["number", "integer"])
def test_a_number_of_hundreds_of_digits_is_refused_where_it_is_typed(kind: str) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": kind}}}
    for text in ("9" * 30, "-" + "9" * 399):
        filled = fill(make_form(schema), {"answer.n": [text]}, schema)
        assert "must be a" in next(one.error for one in filled.form.every if one.error)
