"""Signals of any content, and from other services' webhooks.

A signal is on disk when the response is sent, and is delivered once. With a key it is stored once,
however often it is sent. The key is `Idempotency-Key`, `key` in the body, or a webhook's
`webhook-id`.

A webhook from another service may have any content type. At `/perdure/hooks/` its sender needs no
token but a Standard Webhooks signature, with the secret that the server has for the signal's name:
`asgi(hook_secrets={name: "whsec_..."})`. At `.../raw` it needs a token, like any caller.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from fastapi import APIRouter, Request

from perdure.commands.webhooks import BadSignature, check_headers, secrets_of, verify
from perdure.server.authorization import Scope
from perdure.server.bodies import parse_json
from perdure.server.errors import ApiError
from perdure.server.perdure_api.requests import Id, Name, allow_thread, errors
from perdure.server.perdure_api.verb_routes import IdempotencyKey, Sent
from perdure.server.routes import Api, ApiDep

router = APIRouter(prefix="/perdure", tags=["perdure: signals"])

KEPT_HEADERS = ("content-type", "user-agent", "webhook-id", "webhook-timestamp")
"""Headers of a webhook that are part of the signal's value, besides `hook_headers`."""
ANY_BODY: dict[str, Any] = {"requestBody": {"content": {"*/*": {"schema": {}}}}}


@router.post(
    "/threads/{thread_id}/signals/{name}/raw", responses=errors(404), openapi_extra=ANY_BODY
)
async def raw_signal(
    api: ApiDep, thread_id: Id, name: Name, request: Request, idempotency_key: IdempotencyKey = None
) -> Sent:
    """Send a body of any content type as a signal: `{"body": ..., "headers": {...}}`. A JSON body
    is parsed; any other is text, or base64 if it is not valid text."""
    api.require(Scope.START)
    await allow_thread(api, thread_id, "update")
    value = _as_value(api, request, await request.body())
    key = idempotency_key or request.headers.get("webhook-id")
    return Sent(await api.runtime.signal(thread_id, name, value, key=key))


@router.post(
    "/hooks/{thread_id}/{name}",
    responses=errors(404),
    openapi_extra={"security": [], **ANY_BODY},
)
async def receive_webhook(api: ApiDep, thread_id: Id, name: Name, request: Request) -> Sent:
    """Store a webhook from another service as a signal, as `.../raw` does. The signature must match
    the secret for this name. `webhook-id` is the signal's key."""
    secret = api.options.hook_secrets.get(name)
    if secret is None:
        raise ApiError(404, "No secret is set for this name. Pass asgi(hook_secrets={name: ...}).")
    try:
        check_headers(request.headers, time.time())
        body = await request.body()
        id = verify(secrets_of(secret), request.headers, body, time.time())
    except BadSignature as error:
        raise ApiError(401, str(error)) from None
    value = _as_value(api, request, body)
    return Sent(await api.runtime.signal(thread_id, name, value, key=id))


def _as_value(api: Api, request: Request, body: bytes) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    found: Any
    if kind == "application/json" or kind.endswith("+json"):
        found = parse_json(body)
    else:
        try:
            found = body.decode()
        except UnicodeDecodeError:
            found = base64.b64encode(body).decode()
    return {"body": found, "headers": _kept(request.headers, api.options.hook_headers)}


def _kept(headers: Mapping[str, str], also: tuple[str, ...]) -> dict[str, str]:
    patterns = (*KEPT_HEADERS, *(one.lower() for one in also))
    return {
        name: value
        for name, value in headers.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
