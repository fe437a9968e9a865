"""Answers checked against the JSON Schema of their question.

A schema may be a stranger's, such as that of a tool: it reads nothing from the network, and its
patterns are matched in bounded time. A text that takes longer does not match.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import BadAnswer, BadArgument

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError

MOST_STEPS = 100_000
"""Steps that a pattern with look-around or back references may go back in a text."""

LARGEST_PATTERN = 1 << 20
"""Bytes that a compiled pattern may take. `ask` refuses a larger one; a schema from elsewhere, such
as a tool's, is enforced without its patterns then."""

WHOLE = "urn:schema"
"""Where a part of a schema finds the whole, which its references are about."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise `BadArgument` if this is no valid JSON Schema, or one of its patterns is too large."""
    from jsonschema_rs import ValidationError, meta

    try:
        meta.validate({name: value for name, value in schema.items() if name != "$schema"})
    except ValidationError as error:
        raise BadArgument(f"response_schema is not a JSON Schema: {error.message}.") from error
    if _compiled(schema) is None and _compiled(_without_patterns(schema)) is not None:
        raise BadArgument(
            "response_schema has a pattern that is no regular expression, or too large a one: "
            f"compiled it may take {LARGEST_PATTERN:,} bytes."
        )


def check_answer(wait_id: str, schema: Mapping[str, Any], value: Any) -> None:
    """Raise `BadAnswer` if the answer does not fit. An invalid schema is not enforced."""
    if problems := problems_of(schema, as_json(value)):
        raise BadAnswer(wait_id, f"it does not fit the response_schema: {'; '.join(problems[:5])}.")


def problems_of(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Why a value of JSON does not fit a schema, each with its path. An invalid schema fits all."""
    return [
        ".".join(map(str, fault.path)) + ": " * bool(fault.path) + fault.message
        for fault in SchemaCheck(schema).faults(value)
    ]


class Fault(NamedTuple):
    """One reason why a value does not fit a schema.

    Attributes:
        path: The path in the value.
        key: The key of an object it is about: one that is missing, or that must not be there.
        keyword: The keyword of the schema that refuses it, such as `maximum`.
        limit: The value of that keyword.
    """

    path: tuple[str | int, ...]
    key: str | None
    keyword: str
    limit: Any
    message: str


class SchemaCheck:
    """Validates values against a schema or its parts. An invalid schema, or one with a broken
    reference, accepts everything."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._validator = _validator(schema)

    def faults(self, value: Any, part: Mapping[str, Any] | None = None) -> list[Fault]:
        """Why a value of JSON does not fit the schema, or this part of it."""
        validator = self._validator if part is None else self._part_validator(part)
        if self._validator is None or validator is None:
            return []
        try:
            return [_fault(error) for error in validator.iter_errors(value)]
        except ValueError as error:
            return [Fault((), None, "type", "JSON", str(error))]

    def _part_validator(self, part: Mapping[str, Any]) -> Draft202012Validator | None:
        from jsonschema_rs import Registry

        if "$ref" not in str(part):  # which takes a hundredth of the time
            return _validator(part)
        definitions = {**self._schema.get("$defs", {}), WHOLE: part}
        with suppress(ValueError):
            registry = Registry([(WHOLE, {**self._schema, "$defs": definitions})])
            return _validator({"$ref": f"{WHOLE}#/$defs/{WHOLE}"}, registry=registry)
        return None


def _validator(schema: Mapping[str, Any], **options: Any) -> Draft202012Validator | None:
    """The validator of a schema, without its patterns if they are wrong; None if it is invalid."""
    whole = _compiled(schema, **options)
    return _compiled(_without_patterns(schema), **options) if whole is None else whole


def _compiled(schema: Mapping[str, Any], **options: Any) -> Draft202012Validator | None:
    from jsonschema_rs import Draft202012Validator, FancyRegexOptions

    patterns = FancyRegexOptions(backtrack_limit=MOST_STEPS, size_limit=LARGEST_PATTERN)
    make = partial(Draft202012Validator, validate_formats=True, offline=True)
    with suppress(ValueError):
        return make(dict(schema), pattern_options=patterns, **options)
    return None


def _without_patterns(schema: Any) -> Any:
    """A schema in which no text is compared with a pattern."""
    if isinstance(schema, Mapping):
        kept = {key: value for key, value in schema.items() if not _is_pattern(key, value)}
        return {key: _without_patterns(value) for key, value in kept.items()}
    return [_without_patterns(one) for one in schema] if isinstance(schema, list) else schema


def _is_pattern(key: str, value: Any) -> bool:
    return (key == "pattern" and isinstance(value, str)) or key == "patternProperties"


def _fault(error: ValidationError) -> Fault:
    keyword, limit, key = error.kind.name, error.kind.value, None
    if keyword == "required":
        key = limit
    elif keyword == "propertyNames":
        key = str(limit.instance)
    return Fault(tuple(error.instance_path), key, keyword, limit, error.message)


def as_json(value: Any) -> Any:
    """The value as JSON has it: a schema does not know models, dataclasses, dates or tuples."""
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value)
    except ValueError:
        return value
