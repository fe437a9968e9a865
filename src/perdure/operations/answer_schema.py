"""What an answer must look like: JSON Schema, checked before it is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import BadAnswer, BadArgument


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that no answer could be checked against."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise BadArgument(f"response_schema is no JSON Schema: {error.message}.") from error


def check_answer(wait_id: str, schema: Mapping[str, Any], value: Any) -> None:
    """Refuse an answer that does not fit. A schema that is none asks for nothing."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return
    checker = Draft202012Validator.FORMAT_CHECKER
    problems = [
        ".".join(map(str, error.absolute_path)) + ": " * bool(error.absolute_path) + error.message
        for error in Draft202012Validator(schema, format_checker=checker).iter_errors(
            _as_json(value)
        )
    ]
    if problems:
        raise BadAnswer(wait_id, f"it does not fit the response_schema: {'; '.join(problems[:5])}.")


def _as_json(value: Any) -> Any:
    """A model, dataclass, date or tuple as JSON would have it: that is what a schema is about."""
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value)
    except ValueError:
        return value
