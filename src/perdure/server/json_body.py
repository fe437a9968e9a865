"""A request's body as JSON, read strictly: anything ambiguous is refused with a sentence.

Python's own parser accepts NaN, the last of two equal keys and text that no database can store, and
raises three kinds of errors. The result here can be printed, compared and stored.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from perdure.server.json_errors import BadRequest

DEEPEST = 100
"""Maximum depth of nested lists and objects."""


async def read_json(request: Request, *, largest: int) -> Any:
    """The body, or None if it is empty. `largest` is in bytes. Raises `BadRequest`."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > largest:
                raise BadRequest(f"The body is larger than {largest} bytes.")
    except ClientDisconnect:
        raise BadRequest("The body was cut off.", 400) from None
    if not body.strip():
        return None
    try:
        found = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise BadRequest(f"The body is nested deeper than {DEEPEST} levels.") from None
    except ValueError as error:  # bytes that are not text, and numbers of 5,000 digits, among them
        raise BadRequest(f"The body is not JSON: {ascii(str(error))[1:-1][:100]}.") from None
    _check(found)
    return found


def _refuse_constant(name: str) -> Any:
    raise BadRequest(f"The body is not JSON: {name} is not a JSON number.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRequest(f"The body has the key {ascii(twice)[:60]} twice in one object.")
    return found


def _check(value: Any) -> None:
    """Refuse what is too deep, and text with half of a surrogate pair. Without recursion."""
    left: list[tuple[Any, int]] = [(value, 0)]
    while left:
        one, depth = left.pop()
        if isinstance(one, str):
            if not one.isascii() and any("\ud800" <= letter <= "\udfff" for letter in one):
                raise BadRequest(f"The body has half of a surrogate pair: {ascii(one)[:60]}.")
        elif isinstance(one, (list, dict)):
            if depth == DEEPEST:
                raise BadRequest(f"The body is nested deeper than {DEEPEST} levels.")
            inner = [*one, *one.values()] if isinstance(one, dict) else one
            left.extend((part, depth + 1) for part in inner)
