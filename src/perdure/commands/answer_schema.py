"""Patterns of a JSON Schema, matched in bounded time.

A schema may be a stranger's, such as that of a tool. For some patterns Python's `re` takes hours
with a text of thirty letters, and nothing else runs meanwhile. So patterns are matched by the
package `regex`, which stops after a time. A text that took so long does not match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import ValidationError
import json
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from perdure.errors import BadAnswer, BadArgument

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

NOT_SCHEMAS = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""

Keyword = Iterator["ValidationError"]

PATIENCE = 0.2
"""Seconds that one match may take."""


def can_match(pattern: str, text: str) -> bool:
    """Whether a pattern matches somewhere in a text. True if the pattern is not valid."""
    matcher = _matcher(pattern)
    if matcher is None:
        return True
    try:
        return matcher.search(text, timeout=PATIENCE) is not None
    except TimeoutError:
        return False


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Any:
    import regex

    try:
        return regex.compile(pattern)
    except regex.error:
        return None


@cache
def validator_class() -> Any:
    """jsonschema's validator, without the keywords that match with `re`."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    made: Any = extend
    return made(Draft202012Validator, own)


def enforceable(schema: Any) -> Any:
    """A schema without what would be matched with `re` all the same: `$schema`, which names another
    validator, and `unevaluatedProperties` in a schema that has `patternProperties`."""
    left_out = {"$schema"} | ({"unevaluatedProperties"} if _has_named_patterns(schema) else set())
    return _without(schema, left_out)


def _has_named_patterns(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return "patternProperties" in schema or any(map(_has_named_patterns, schema.values()))
    return isinstance(schema, list) and any(map(_has_named_patterns, schema))


def _without(schema: Any, names: set[str]) -> Any:
    if isinstance(schema, list):
        return [_without(one, names) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: one if name in NOT_SCHEMAS else _without(one, names)
        for name, one in schema.items()
        if name not in names or (isinstance(one, Mapping) and name == "$schema")
    }


# -- the keywords


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Keyword:
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not can_match(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Keyword:
    if not validator.is_type(instance, "object"):
        return
    for pattern, part in patterns.items():
        if _matcher(pattern) is not None:
            for name, one in instance.items():
                if can_match(pattern, name):
                    yield from validator.descend(one, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Keyword:
    """The keyword of jsonschema, for which names that match a pattern are properties."""
    from jsonschema import Draft202012Validator

    known = dict(schema.get("properties", {}))
    if validator.is_type(instance, "object"):
        for pattern in schema.get("patternProperties", {}):
            known |= {name: True for name in instance if can_match(pattern, name)}
    plain = {"properties": known}
    yield from Draft202012Validator.VALIDATORS["additionalProperties"](
        validator, allowed, instance, plain
    )


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
