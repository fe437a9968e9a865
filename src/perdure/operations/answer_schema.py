"""Validation of answers against the JSON Schema of their question, before they are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import BadAnswer, BadArgument


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
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return []
    checker = Draft202012Validator.FORMAT_CHECKER
    return [
        ".".join(map(str, error.absolute_path)) + ": " * bool(error.absolute_path) + error.message
        for error in Draft202012Validator(schema, format_checker=checker).iter_errors(value)
    ]


def as_json(value: Any) -> Any:
    """The value as JSON has it: a schema does not know models, dataclasses, dates or tuples."""
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value)
    except ValueError:
        return value
