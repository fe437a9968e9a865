"""Standard Webhooks signatures: `v1,` and the base64 of an HMAC-SHA256 over id, time and body.

A request may have several, while one secret replaces another; one that matches is enough.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping

TOLERANCE = 300
"""Seconds that the time of a request may differ from ours."""


class BadSignature(Exception):
    """A request whose signature does not hold; the message says why, without a secret."""


def sign(keys: Iterable[bytes], id: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of a request. `at` is in seconds since 1970."""
    headers = {"webhook-id": id, "webhook-timestamp": str(at)}
    if signatures := [_signature(key, id, str(at), body) for key in keys]:
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def verify(keys: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The id of a request that one of these keys signed. Raises `BadSignature`."""
    id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    sent = headers.get("webhook-signature", "")
    if not id or not at or not sent:
        raise BadSignature(
            "Sign the request: webhook-id, webhook-timestamp and webhook-signature are needed."
        )
    if not at.isascii() or not at.isdigit() or len(at) > 12:
        raise BadSignature("webhook-timestamp is not a number of seconds.")
    if abs(now - int(at)) > TOLERANCE:
        raise BadSignature(f"webhook-timestamp is more than {TOLERANCE} seconds from now.")
    expected = [_signature(key, id, at, body).encode() for key in keys]
    given = [one.encode("utf-8", "replace") for one in sent.split(" ")]
    if not any(hmac.compare_digest(one, other) for one in expected for other in given):
        raise BadSignature("No webhook-signature matches.")
    return id


def _signature(key: bytes, id: str, at: str, body: bytes) -> str:
    signed = f"{id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
