"""Signed texts of the browser pages: sessions, form tokens and the sign-in URL.

The key is the journal's server secret, so every server on the journal accepts what another one
signed, and a restart ends no session. Nothing is stored: a session ends with its token, because
each request looks the token up.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

from itsdangerous import BadSignature, URLSafeTimedSerializer

SESSION_SECONDS = 7 * 24 * 3600
"""How long a session lasts."""
LONGEST = 1000
"""Maximum length of a signed text. Anything longer is not checked."""


@dataclass(frozen=True)
class Session:
    """Who signed in: with the token of this hash, or with the URL that the server printed."""

    token_hash: str | None


class Signer:
    """Signs and checks with one journal's server secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._sessions = URLSafeTimedSerializer(secret, salt="perdure.session")
        self.name = self._digest("name")[:8]
        """Part of cookie names, different for each journal on the same host."""
        self.sign_in_key = self._digest("sign-in")[:40]
        """The key in the URL that a server on loopback prints."""

    def session(self, session: Session) -> str:
        """The text of a session's cookie."""
        signed: str | bytes = self._sessions.dumps(session.token_hash)
        return signed if isinstance(signed, str) else signed.decode()

    def read_session(self, cookie: str) -> Session | None:
        """The session of a cookie. None if it is forged or has expired."""
        if len(cookie) > LONGEST:
            return None
        try:
            found: Any = self._sessions.loads(cookie, max_age=SESSION_SECONDS)
        except BadSignature:
            return None
        return Session(found) if found is None or isinstance(found, str) else None

    def is_sign_in_key(self, given: str) -> bool:
        return hmac.compare_digest(self.sign_in_key.encode(), given.encode())

    def form_token(self, browser: str, identity: str) -> str:
        """The hidden field of forms: bound to the browser's cookie and to who is signed in."""
        return self._digest("form", browser, identity)

    def is_form_token(self, given: str, browser: str, identity: str) -> bool:
        expected = self.form_token(browser, identity)
        return bool(browser) and hmac.compare_digest(expected.encode(), given.encode())

    def _digest(self, *parts: str) -> str:
        text = "\0".join(parts).encode()
        return hmac.new(self._secret, b"perdure.ui\0" + text, hashlib.sha256).hexdigest()
