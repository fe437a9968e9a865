"""Errors as JSON: `{"detail": "..."}`, one sentence. Details of internal errors are only logged.

A perdure error keeps its message, without the journal's password. Why the journal does not answer
is only logged: it names hosts, databases and paths. For any other exception the log has its type
and where it was raised, not its message, which may quote what a person wrote.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from fastapi.exceptions import HTTPException, RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure import errors
from perdure.views.json_values import dump

log = logging.getLogger("perdure")

FAILED = "The server failed; its log says why."
AWAY = "The journal does not answer; the server's log says why."

STATUSES: tuple[tuple[type[errors.Error], int], ...] = (
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.BadAnswer, 422),
    (errors.AnswerRefused, 409),
    (errors.LinkExpired, 410),
    (errors.LinkSpent, 410),
    (errors.LinkRefused, 403),
    (errors.NotWithdrawn, 409),
    (errors.AlreadyAssigned, 409),
    (errors.NotSettled, 409),
    (errors.ThreadBusy, 409),
    (errors.WrongState, 409),
    (errors.GraphChanged, 409),
    (errors.TooLarge, 413),
    (errors.BadArgument, 422),
    (errors.UnknownGraph, 422),
    (errors.Unserializable, 422),
    (errors.TypeNotAllowed, 422),
    (errors.NotDurable, 422),
    (errors.Unsupported, 501),
    (errors.Closed, 503),
)
"""The HTTP status of each perdure error; the first match counts. Any other is 500."""


class WireResponse(JSONResponse):
    """A response whose body is the JSON of a value. With another base class, FastAPI would describe
    it as text."""

    def render(self, content: Any) -> bytes:
        return dump(content)


class ApiError(HTTPException):
    """A request that is refused. The message becomes the response."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, dict(headers or {}))

    def __str__(self) -> str:
        return str(self.detail)


HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
"""Of every response of the API that does not say otherwise: browsers neither guess what it is nor
keep it."""


def guarded(response: Response) -> Response:
    """The response, with the headers that every response has."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def json_error(status: int, message: str, headers: Mapping[str, str] | None = None) -> WireResponse:
    return WireResponse({"detail": message}, status, dict(headers or {}))


def error_response(error: Exception, redact: Callable[[str], str]) -> Response:
    """The response for an exception that an endpoint raised."""
    if isinstance(error, RequestValidationError):
        error = invalid(error)
    if isinstance(error, StarletteHTTPException):  # ours, or one of `langgraph_sdk.Auth`
        return json_error(error.status_code, str(error.detail), error.headers)
    if isinstance(error, errors.Unavailable):  # it names hosts, databases, roles and paths
        log.warning("A request was not served: %s", redact(str(error)))
        return json_error(503, AWAY, {"Retry-After": "1"})
    if isinstance(error, errors.Error):
        status = status_of(error)
        if status == 500:
            log_failure("A request", error, redact)
        headers = {"Retry-After": "1"} if status == 503 else None
        return json_error(status, redact(str(error)), headers)
    log_failure("A request", error, redact)
    return json_error(500, FAILED)


def status_of(error: errors.Error) -> int:
    """The HTTP status of a perdure error."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def log_failure(what: str, error: BaseException, redact: Callable[[str], str]) -> None:
    """Log a failure and its traceback. The message is included only if it is perdure's own."""
    detail = f": {redact(str(error))}" if isinstance(error, errors.Error) else ""
    frames = "".join(traceback.format_tb(error.__traceback__)[-8:])
    log.error("%s failed: %s%s\n%s", what, type(error).__qualname__, detail, frames.rstrip())


def invalid(error: RequestValidationError | ValidationError, *above: str) -> ApiError:
    """A 422 with the first problem of an invalid value, and how many more there are; `above` is
    where in the request's body it is."""
    problems = error.errors()
    first: Any = problems[0] if problems else {"loc": (), "msg": "invalid"}
    if first["loc"] == ("body",) and isinstance(getattr(error, "body", None), bytes):
        message = (
            "The body has to be JSON: send Content-Type: application/json, as curl --json does."
        )
        return ApiError(422, message)  # it is of another content type
    # Without the type that Pydantic tried in a union: it is not a field of the body.
    parts = [str(part) for part in (*above, *first["loc"]) if "[" not in str(part)]
    place = ascii(".".join(parts)[:100])[1:-1]
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    return ApiError(422, f"{place}: {first['msg'].rstrip('.')[:200]}{more}.")


async def on_http_error(request: Request, error: Any) -> Response:
    """The response for Starlette's own `HTTPException`: no such route, or the wrong method."""
    allowed = (error.headers or {}).get("Allow")
    if error.status_code == 404:
        message = f"Nothing is served at {request.url.path[:100]!a}."
    elif allowed is not None:
        message = f"This route takes {allowed}, not {request.method[:20]}."
    else:
        message = error.detail
    return guarded(json_error(error.status_code, message, error.headers))


async def on_failure(request: Request, error: Exception) -> Response:
    """The response for any other exception. Starlette raises it again, and the server logs it."""
    return guarded(json_error(500, FAILED))
