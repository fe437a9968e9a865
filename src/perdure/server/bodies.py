"""A request's body: read within limits, and parsed strictly, with a clear message for what is not
JSON.

Until its sender is known to be allowed, only a few KiB of a body are its own. More of it is in
memory that all such requests share, until the request has ended.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import orjson
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from perdure.server.errors import ApiError
from perdure.server.options import ServerOptions

PUBLIC_BODY = 16 * 1024
"""Bytes of a body that are read from anyone."""
SHARED_BODIES = 2
"""Bodies of the largest size that may arrive at once from senders who are not known yet."""
DEEPEST = 100
"""Maximum depth of nested lists and objects."""
TOO_DEEP = f"The body is nested deeper than {DEEPEST} levels."
LONG_INTEGER = re.compile(rb"\d{19}")
BUSY = "Too many large requests without a token at once. Retry later."
CLOSE = {"Connection": "close"}
"""For errors after which the rest of the body is not read."""


class BodyLimits:
    """The limits of a server's requests."""

    def __init__(self, options: ServerOptions) -> None:
        self.largest, self.seconds = options.max_body, options.body_timeout
        self.shared = SHARED_BODIES * options.max_body
        """Bytes that are left for large bodies of unknown senders."""


class ApiRequest(Request):
    """A request whose body is read within limits and parsed strictly."""

    def __init__(self, scope: Scope, receive: Receive, limits: BodyLimits) -> None:
        super().__init__(scope, receive)
        self.largest, self.seconds = limits.largest, limits.seconds
        self._limits, self._is_trusted, self._taken = limits, False, 0

    def trust(self) -> None:
        """Read bodies from now on within the limits of a caller who is allowed."""
        self.release()
        self._is_trusted = True

    def release(self) -> None:
        """Give back the shared memory."""
        self._limits.shared += self._taken
        self._taken = 0

    def refused(self, response: Response) -> Response:
        """The response to a request that is not served. A large body that was not read is not read
        any more: the connection is closed."""
        length = self.headers.get("content-length", "")
        is_large = length.isdecimal() and int(length[:20]) > PUBLIC_BODY
        if not hasattr(self, "_body") and (is_large or "transfer-encoding" in self.headers):
            response.headers["Connection"] = "close"
        return response

    async def body(self) -> bytes:
        """The bytes of the body. Raises `ApiError` if it is too large, cut off, or too slow."""
        if not hasattr(self, "_body"):
            self._body = await self._read()
        return self._body

    async def _read(self) -> bytes:
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.largest:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self.seconds):
                async for part in self.stream():
                    body += part
                    self._check_size(len(body))
        except ClientDisconnect:
            raise ApiError(400, "The body was cut off.") from None
        except TimeoutError:
            message = f"The body did not arrive within {self.seconds:g} s."
            raise ApiError(408, message, CLOSE) from None
        return bytes(body)

    def _check_size(self, size: int) -> None:
        if size > self.largest:
            raise self._too_large()
        if size > PUBLIC_BODY and not self._is_trusted:
            if size - self._taken > self._limits.shared:
                raise ApiError(503, BUSY, CLOSE | {"Retry-After": "5"})
            self._limits.shared -= size - self._taken
            self._taken = size

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body is larger than {self.largest} bytes.", CLOSE)

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


def parse_json(body: bytes) -> Any:
    """The value of a body, or None if it is empty. Raises `ApiError` for anything but strict JSON,
    and for deep nesting."""
    if not body.strip():
        return None
    try:
        value = orjson.loads(body)
        if body.count(b"[") + body.count(b"{") > DEEPEST:
            _check_depth(value)
        if LONG_INTEGER.search(body):  # orjson rounds what has more than 64 bits
            value = json.loads(body)
    except ValueError as error:
        if "limit exceeded" in str(error):
            raise ApiError(422, TOO_DEEP) from None
        raise ApiError(422, f"The body is not JSON: {ascii(str(error))[1:-1][:100]}.") from None
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, (list, dict))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    if any(isinstance(one, (list, dict)) for one in level):
        raise ApiError(422, TOO_DEEP)
