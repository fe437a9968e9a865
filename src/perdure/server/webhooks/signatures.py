"""Standard Webhooks signatures: `v1,` and the base64 of an HMAC-SHA256 over id, time and body.

A request may carry several during a rotation of secrets; one match is enough.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping

TOLERANCE = 300
"""Maximum difference in seconds between the request's time and ours."""


class BadSignature(Exception):
    """A request with an invalid signature. The message says why, without a secret."""


def sign(keys: Iterable[bytes], id: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of a signed request. `at` is a Unix time in seconds."""
    headers = {"webhook-id": id, "webhook-timestamp": str(at)}
    if signatures := [_signature(key, id, str(at), body) for key in keys]:
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def check_headers(headers: Mapping[str, str], now: float) -> None:
    """Raise `BadSignature` for what needs no body to be refused: no signature, or an old one."""
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


def verify(keys: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The id of a request that one of these keys signed. Raises `BadSignature`."""
    check_headers(headers, now)
    id, at, sent = (headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    expected = [_signature(key, id, at, body).encode() for key in keys]
    received = [one.encode("utf-8", "replace") for one in sent.split(" ")]
    if not any(hmac.compare_digest(one, other) for one in expected for other in received):
        raise BadSignature("No signature in webhook-signature matches. Check the secret.")
    return id


def _signature(key: bytes, id: str, at: str, body: bytes) -> str:
    signed = f"{id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
