"""A request's body, read within limits, and as JSON, read strictly: anything ambiguous is refused
with a clear message.

Python's own parser accepts NaN, turns large numbers into infinity, accepts duplicate keys and text
that no database can store, and raises three kinds of errors. A value returned here can be printed,
compared and stored.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request

from perdure.server.json_errors import ApiError

DEEPEST = 100
"""Maximum depth of nested lists and objects."""
HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair. The parser joins the halves of a whole one."""
BUSY = "Too many large bodies of unknown senders arrive at once. Send it again later."
CLOSE = {"Connection": "close"}
"""For errors after which the rest of the body is not read."""


class SharedMemory:
    """Memory for bodies that are read before their senders are known to be allowed."""

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> None:
        """Raise 503 if so much is not left."""
        if size > self._left:
            raise ApiError(503, BUSY, CLOSE | {"Retry-After": "5"})
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


async def read_body(
    request: Request,
    *,
    largest: int,
    seconds: float,
    take: Callable[[int], None] | None = None,
) -> bytes:
    """The bytes of a body. Raises `ApiError` if it is too large, cut off, or too slow. `take` is
    called with the size of what was received, and may raise, too."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > largest:
        raise ApiError(413, f"The body is larger than {largest} bytes.", CLOSE)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > largest:
                    raise ApiError(413, f"The body is larger than {largest} bytes.", CLOSE)
                if take is not None:
                    take(len(part))
    except ClientDisconnect:
        raise ApiError(400, "The body was cut off.") from None
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {seconds:g} s.", CLOSE) from None
    return bytes(body)


def parse_json(body: bytes) -> Any:
    """The value of a body, or None if it is empty. Raises `ApiError`."""
    if not body.strip():
        return None
    try:
        found = json.loads(
            body, parse_constant=_refuse_constant, parse_float=_float, object_pairs_hook=_object
        )
    except RecursionError:
        raise ApiError(422, f"The body is nested deeper than {DEEPEST} levels.") from None
    except ValueError as error:  # also for invalid UTF-8, and numbers of 5,000 digits
        raise ApiError(422, f"The body is not JSON: {ascii(str(error))[1:-1][:100]}.") from None
    if not _is_surely_plain(body):
        _check(found)
    return found


def _is_surely_plain(body: bytes) -> bool:
    """Whether a body has too few brackets to be too deep, and no letter that may be half of a pair.
    Counting is cheaper than `_check`."""
    brackets = body.count(b"[") + body.count(b"{")
    is_odd = not body.isascii() or rb"\u" in body or b"\0" in body  # UTF-16 has zeros
    return brackets <= DEEPEST and not is_odd


def _refuse_constant(name: str) -> Any:
    raise ApiError(422, f"The body is not JSON: {name} is not a JSON number.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ApiError(422, f"The body has the key {ascii(name)[:60]} twice in one object.")
            seen.add(name)
    return found


def _float(text: str) -> float:
    """A number with a point or an exponent. Python makes infinity of one that is too large."""
    found = float(text)
    if math.isinf(found):
        raise ApiError(422, f"The body has the number {text[:60]}, which is too large.")
    return found


def _check(value: Any) -> None:
    """Refuse deep nesting and unpaired surrogates, without recursion."""
    left: list[tuple[Any, int]] = [(value, 0)]
    while left:
        one, depth = left.pop()
        if isinstance(one, str):
            if not one.isascii() and HALF.search(one):
                raise ApiError(422, f"The body contains an unpaired surrogate: {ascii(one)[:60]}.")
        elif isinstance(one, (list, dict)):
            if depth == DEEPEST:
                raise ApiError(422, f"The body is nested deeper than {DEEPEST} levels.")
            inner = [*one, *one.values()] if isinstance(one, dict) else one
            left.extend((part, depth + 1) for part in inner)
