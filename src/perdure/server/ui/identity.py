"""The viewer of a page, and what they may do; sessions, form tokens and the sign-in URL, signed.

These are asked in order; the first that identifies the person decides.

    the embedding application   `ui_user`, a callable: what it returns; None: not signed in
    a trusted proxy             `ui_proxy`: the person in its header, if the request comes from it
    a session                   signed in with a token, or with the URL the server printed
    langgraph_sdk.Auth          its `authenticate` handler, for cookies of the application's own
    insecure                    anyone

The printed URL works on this machine only, and only while there is no other way to sign in. The key
of signatures is the journal's server secret, so every server on the journal accepts what another
one signed, and a restart ends no session. Nothing is stored: a session ends with its token, because
each request looks the token up.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request
from itsdangerous import BadSignature, URLSafeTimedSerializer

from perdure.commands.tokens import IMPLIED
from perdure.errors import BadArgument
from perdure.server.authentication import AccessControl
from perdure.server.authorization import Caller, Scope
from perdure.server.errors import ApiError
from perdure.server.origins import client_address, forwarded_for, is_allowed, is_local_client

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


@dataclass(frozen=True)
class UiUser:
    """The person who is signed in, as `ui_user` returns them."""

    name: str
    """Name for the record. Empty means not signed in."""
    scopes: Sequence[str] = ("answer",)
    """What the person may do: `read`, `start`, `answer` (which includes `read`) or `admin`."""

    @property
    def caller(self) -> Caller:
        """The same, as the server checks it. Raises `BadArgument` for an unknown scope."""
        return Caller(self.name, scopes_of(self.scopes))


@dataclass(frozen=True)
class TrustedProxy:
    """A proxy that signs people in and names them in a header.

    If uvicorn serves your application, run it with `--no-proxy-headers`; otherwise it hides the
    proxy's address.

    Raises:
        BadArgument: `addresses` is not a list, or the header is empty.
    """

    addresses: Sequence[str]
    """Addresses of the proxy. The header is ignored in requests from elsewhere."""
    header: str
    """The header, such as `X-Forwarded-User`. The proxy must remove it from incoming requests."""
    admins: Sequence[str] = ()
    """People who may do everything. All others may read and answer."""

    def __post_init__(self) -> None:
        if isinstance(self.addresses, str) or not self.addresses or not self.header.strip():
            raise BadArgument("ui_proxy needs a list of addresses, and the name of a header.")

    def sent(self, request: Request) -> bool:
        """Whether a request comes from the proxy.

        Args:
            request: The request.
        """
        return request.client is not None and request.client.host in self.addresses

    def user_of(self, request: Request) -> UiUser | None:
        """The person in the header, if the request comes from the proxy.

        Args:
            request: The request.
        """
        if not self.sent(request):
            return None
        names = [one.strip() for one in request.headers.getlist(self.header)]
        if len(names) != 1 or not names[0]:  # with two of them, one is not the proxy's
            return None
        [name] = names
        return UiUser(name, ("admin",) if name in self.admins else ("answer",))


FindUser = Callable[[Request], Any]
"""`ui_user`: given a request, returns a `UiUser`, a name, a mapping, or None; may be async."""


class Identities:
    """Identifies the viewer."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._find_user: FindUser | None = access.options.ui_user
        self._proxy: TrustedProxy | None = access.options.ui_proxy

    async def find(self, request: Request, session: Session | None) -> Caller | None:
        """The caller, or None if they have to sign in first."""
        if self._find_user is not None:
            return await self._from_application(request, self._find_user)
        if self._proxy is not None and (user := self._proxy.user_of(request)) is not None:
            return user.caller
        if session is not None and (caller := await self._from_session(request, session)):
            return caller
        handlers = self._access.handlers
        if handlers is not None and handlers.authenticates:
            try:
                return await handlers.authenticate(request)
            except ApiError as error:
                if error.status_code in (401, 403):
                    return None
                raise
        return Caller() if self._access.options.insecure else None

    def address_of(self, request: Request) -> str | None:
        """The network address of the browser."""
        if self._proxy is not None and self._proxy.sent(request):
            return forwarded_for(request)
        return client_address(request)

    async def is_local(self, request: Request) -> bool:
        """Whether the printed URL may be used."""
        options, handlers = self._access.options, self._access.handlers
        others = options.ui_user, options.ui_proxy
        if any(others) or (handlers is not None and handlers.authenticates):
            return False
        if not is_local_client(request) or await self._access.tokens.exist():
            return False
        return is_allowed(request.headers.get("host", ""), options.hosts)  # not after DNS rebinding

    @property
    def signs_out(self) -> bool:
        """Whether people can sign out here: an application or a proxy would sign them in again."""
        return self._find_user is None and self._proxy is None

    @property
    def takes_tokens(self) -> bool:
        """Whether people can sign in with a token."""
        return self._find_user is None

    async def token_session(self, token: str) -> Session | None:
        """A session for a token. None if it is not valid."""
        row = await self._access.tokens.find(token.strip())
        return None if row is None else Session(row.hash)

    async def _from_session(self, request: Request, session: Session) -> Caller | None:
        if session.token_hash is None:
            return Caller(_this_user()) if await self.is_local(request) else None
        row = await self._access.tokens.find_hash(session.token_hash)
        if row is None:
            return None
        until_invalid = partial(self._access.tokens.until_invalid, row.hash)
        return Caller(row.name, row.allowed, is_token=True, until_invalid=until_invalid)

    async def _from_application(self, request: Request, find: FindUser) -> Caller | None:
        found = find(request)
        if inspect.isawaitable(found):
            found = await found
        if not found:  # also an empty text, of a session or a header without a person
            return None
        if isinstance(found, str):
            found = UiUser(found)
        if isinstance(found, Mapping):
            found = UiUser(**found)
        if not isinstance(found, UiUser):
            raise BadArgument(
                "ui_user must return a UiUser(name, scopes), its fields as a mapping, a name or "
                f"None, not {type(found).__name__}."
            )
        return found.caller if found.name.strip() else None


def scopes_of(names: Sequence[str]) -> frozenset[Scope]:
    """Scopes by their names, with those they imply. Raises `BadArgument`."""
    try:
        given = [Scope(name) for name in ([names] if isinstance(names, str) else names)]
    except ValueError as error:
        raise BadArgument(f"{error}; use {', '.join(Scope)}.") from None
    return frozenset[Scope]().union(*(IMPLIED[scope] for scope in given))


def _this_user() -> str | None:
    """The operating-system user of the server, whom the printed URL signs in."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return None
