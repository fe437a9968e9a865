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
