"""The secret of `/cron/tick`. A request with it may tick, and sees why the journal is down."""

from __future__ import annotations

import hmac
import os

from starlette.requests import Request

from perdure.errors import BadArgument

VARIABLE = "PERDURE_CRON_SECRET"
SHORTEST = 16


class CronSecret:
    """A bearer token. If none is set, no request matches."""

    def __init__(self, given: str | None) -> None:
        """Default: the environment's. Raises `BadArgument` if it is too short."""
        secret = os.environ.get(VARIABLE) or None if given is None else given
        secret = None if secret is None else secret.strip()  # a file ends with a newline
        if secret is not None and len(secret) < SHORTEST:
            raise BadArgument(
                f"The secret of /cron/tick has {len(secret)} characters, but needs at least "
                f"{SHORTEST}. Make one with: openssl rand -hex 32."
            )
        self._secret = None if secret is None else secret.encode()

    @property
    def is_set(self) -> bool:
        return self._secret is not None

    def is_sent_by(self, request: Request) -> bool:
        header = request.headers.get("authorization", "").encode("latin-1")
        scheme, _, token = header.partition(b" ")
        same = hmac.compare_digest(token.strip(), self._secret or b"")
        return self.is_set and scheme.lower() == b"bearer" and same
