"""Every error as JSON: `{"error": "..."}`, one sentence. Internal errors are only logged."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse


class BadRequest(Exception):
    """A request that cannot be served; the message is the response."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


def json_error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)


async def on_bad_request(request: Request, error: Any) -> JSONResponse:
    return json_error(error.status, str(error))


async def on_http_error(request: Request, error: Any) -> JSONResponse:
    """Starlette's own `HTTPException`: no such route, or the wrong method."""
    allowed = (error.headers or {}).get("Allow")
    if error.status_code == 404:
        message = f"Nothing is served at {request.url.path[:100]!a}."
    elif allowed is not None:
        message = f"This route takes {allowed}, not {request.method[:20]}."
    else:
        message = error.detail
    answer = json_error(error.status_code, message)
    answer.headers.update(error.headers or {})
    return answer


async def on_failure(request: Request, error: Exception) -> JSONResponse:
    """Starlette raises the error again, and the server logs it."""
    return json_error(500, "The server failed; its log says why.")
