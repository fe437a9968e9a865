"""Validation of answers against the JSON Schema of their question, before they are accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import BadAnswer, BadArgument
from perdure.operations.schema_patterns import enforceable, validator_class

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise `BadArgument` if this is not a valid JSON Schema."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise BadArgument(f"response_schema is not a JSON Schema: {error.message}.") from error


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
    """One reason why a value does not fit a schema."""

    path: tuple[str | int, ...]
    """The path in the value."""
    key: str | None
    """The key of an object it is about: one that is missing, or that must not be there."""
    keyword: str
    """The keyword of the schema that refuses it, such as `maximum`."""
    limit: Any
    """The value of that keyword."""
    message: str


class SchemaCheck:
    """Validates values against a schema or its parts. An invalid schema, or one with a broken
    reference, accepts everything."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator: Draft202012Validator | None = None
        with suppress(TypeError, ValueError, RecursionError):
            self._validator = _validator(json.dumps(schema))

    def faults(self, value: Any, part: Mapping[str, Any] | None = None) -> list[Fault]:
        """Why a value of JSON does not fit the schema, or this part of it."""
        from referencing.exceptions import Unresolvable

        if self._validator is None:
            return []
        whole = self._validator
        checked = whole if part is None else whole.evolve(schema=enforceable(part))
        with suppress(Unresolvable, RecursionError):
            try:
                return [_fault(error) for error in checked.iter_errors(value)]
            except OverflowError:  # of an integer that `multipleOf` makes a float of
                return [Fault((), None, "too large", None, "it has a number that is too large")]
        return []


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    """The validator of a schema in JSON; None if that is invalid. It is made once for a schema that
    many questions have, which takes much longer than a check."""
    from jsonschema import SchemaError
    from referencing import Registry

    found = enforceable(json.loads(schema))
    made = validator_class()
    with suppress(SchemaError, RecursionError, OverflowError):  # these of a pattern
        made.check_schema(found)
        # A registry of its own reads nothing: the default one fetches what `$ref` names.
        return made(found, registry=Registry(), format_checker=made.FORMAT_CHECKER)
    return None


def _fault(error: ValidationError) -> Fault:
    limit: Any = error.validator_value
    keyword, key = str(error.validator), None
    if error.parent is None and "propertyNames" in error.absolute_schema_path:
        keyword, key = "propertyNames", str(error.instance)
    elif keyword == "required":
        key = next((one for one in limit if error.message.startswith(f"{one!r} ")), None)
    return Fault(tuple(error.absolute_path), key, keyword, limit, error.message)


def as_json(value: Any) -> Any:
    """The value as JSON has it: a schema does not know models, dataclasses, dates or tuples."""
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value)
    except ValueError:
        return value
