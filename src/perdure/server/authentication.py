"""Who calls, and from where: the access control in front of every endpoint.

Credentials are required once a token was ever created in the journal, if an `Auth` has an
`authenticate` handler, or if the caller is on another machine. Otherwise the server is open, to
this machine only: under a loopback name, an address or one of `hosts`, and not to web pages of
other origins. `insecure` opens it to every address, but only under those names. If `hosts` is set,
the name is checked for every route and caller.

A browser says when a page of another site made it send a request. Such a request is refused unless
it has a token, or `cors` allows the page, or it is a link to a page of ours that a person follows.

Tokens are cached in memory and read again every few seconds, so a request costs no query. A token
created or revoked elsewhere takes effect within `READ_EVERY`, for open streams too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import time
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request

from perdure.commands import tokens
from perdure.commands.tokens import PREFIX, TokenRow, hash_of
from perdure.errors import Error
from perdure.server.authorization import ANYONE, AuthHandlers, Caller, Scope
from perdure.server.bodies import BodyLimits
from perdure.server.errors import ApiError
from perdure.server.lifespan import OpenStreams, SharedCall, SharedLifespan, retrieve_exception
from perdure.server.options import ServerOptions
from perdure.server.origins import Origins, host_name, is_allowed, is_local_client, is_same_origin

if TYPE_CHECKING:
    from perdure.runtime import Runtime

READ_EVERY = 3.0
"""Seconds between two reads of the tokens."""
NOTE_EVERY = 600.0
"""Seconds between two notes that a token was used."""
LONGEST = 200
"""Maximum length of a token. Anything longer is not looked up."""
HEADERS = frozenset({b"x-api-key", b"authorization"})
"""Where a request may have its token."""
CREDENTIALS = frozenset({"authorization", "cookie", "x-api-key", "proxy-authorization"})
CHALLENGE = {"WWW-Authenticate": "Bearer"}


class AccessControl:
    """Access control for the routes of one runtime."""

    def __init__(self, runtime: Runtime, options: ServerOptions, lifespan: SharedLifespan) -> None:
        self.runtime, self.options, self.lifespan = runtime, options, lifespan
        self.streams = OpenStreams(options.max_streams, runtime.redact)
        self._headers = PassedHeaders(options.configurable_headers)
        self.limits = BodyLimits(options)
        self.origins = Origins(options.cors)
        self.tokens = Tokens(runtime)
        self.handlers = None if options.auth is None else AuthHandlers(options.auth)

    async def check(self, request: Request, *, public: bool) -> Caller:
        """The caller of a request that is allowed. Raises `ApiError`. `public`: it needs no
        credentials."""
        if public:
            self._check_public(request)
        caller = ANYONE if public else await self._identify(request)
        if self._headers and (passed := self._headers.of(request)):
            configurable = {**passed, **caller.configurable}
            caller = dataclasses.replace(caller, configurable=configurable)
        return caller

    def _check_public(self, request: Request) -> None:
        """Raise 403 for a foreign name or site, on a route that needs no credentials."""
        self.refuse_cross_site(request, links=True)
        is_named = "host" in request.headers  # every browser names the host, some probes do not
        if is_named and (self.options.hosts or self.options.insecure):
            self.check_host(request)

    async def _identify(self, request: Request) -> Caller:
        if self.options.hosts:
            self.check_host(request)
        token = sent_token(request)
        if token is not None and token.startswith(PREFIX):
            return await self._check_token(token)
        if token is None:  # no browser adds one by itself
            self.refuse_cross_site(request)
        if self.handlers is not None and self.handlers.authenticates:
            return await self.handlers.authenticate(request)
        if self.options.insecure:
            return self._open(request)
        if await self.tokens.exist():
            message = "Send a token: x-api-key: <token>, or Authorization: Bearer <token>."
            if token is not None:
                message = f"What was sent is not a token of perdure: these begin with {PREFIX}."
            raise ApiError(401, message, CHALLENGE)
        if not is_local_client(request):
            message = "Without tokens this server is open to its own machine only. Create a token: "
            raise ApiError(401, f"{message}perdure tokens create NAME --scope admin.", CHALLENGE)
        return self._open(request)

    async def _check_token(self, token: str) -> Caller:
        row = await self.tokens.find(token)
        if row is None:
            message = "This token is not valid. It may have expired or been revoked."
            raise ApiError(401, message, CHALLENGE)
        scopes = row.allowed
        if Scope.READ not in scopes:
            raise ApiError(403, "This server knows none of the token's scopes. Upgrade the server.")
        until_invalid = partial(self.tokens.until_invalid, row.hash)
        return Caller(row.name, scopes, is_token=True, until_invalid=until_invalid)

    def check_host(self, request: Request) -> None:
        """Raise 403 unless the server answers to this host name."""
        host, names = request.headers.get("host", ""), self.options.hosts
        if not is_allowed(host, names):
            escaped = ascii(host_name(host) or host)[1:-1][:100]
            raise ApiError(
                403,
                f"The host name {escaped!r} is not allowed. To allow it, pass "
                f"--allow-host {escaped}, or asgi(hosts=[...]).",
            )

    def refuse_cross_site(self, request: Request, *, links: bool = False) -> None:
        """Raise 403 if a page of another site made the browser send this. `links`: the person may
        have followed a link."""
        headers = request.headers
        if headers.get("sec-fetch-site") != "cross-site":
            return
        is_link = headers.get("sec-fetch-mode") == "navigate" and request.method in ("GET", "HEAD")
        if links and is_link and headers.get("sec-fetch-dest", "document") == "document":
            return
        origin = headers.get("origin")
        if origin is None or not self.origins.allow(origin):
            raise _foreign_origin(origin or "another site")

    def _open(self, request: Request) -> Caller:
        """Allow without credentials. Refuses web pages of other origins or under other names, which
        could otherwise use a server that is open to this machine."""
        self.check_host(request)
        origin = request.headers.get("origin")
        if origin is None or self.origins.allow(origin) or is_same_origin(origin, request):
            return ANYONE
        raise _foreign_origin(origin)


def _foreign_origin(origin: str) -> ApiError:
    escaped = ascii(origin)[1:-1][:100]
    return ApiError(
        403,
        f"Pages from {escaped} may not call this server. To allow the origin, pass --cors "
        f"{escaped if '://' in escaped else 'ORIGIN'}, or asgi(cors=[...]).",
    )


class PassedHeaders:
    """Request headers that are copied to a run's `config["configurable"]`, and stored with it:
    patterns of their names, such as `x-my-*`; a leading `!` excludes. A header with credentials is
    copied only if a pattern is its full name."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        lowered = [one.lower() for one in patterns]
        self._includes = [one for one in lowered if not one.startswith("!")]
        self._excludes = [one[1:] for one in lowered if one.startswith("!")]

    def __bool__(self) -> bool:
        return bool(self._includes)

    def of(self, request: Request) -> dict[str, str]:
        """The headers to pass on, with names in lower case."""
        return {name: value for name, value in request.headers.items() if self._is_passed(name)}

    def _is_passed(self, name: str) -> bool:
        if any(fnmatchcase(name, one) for one in self._excludes):
            return False
        if name in CREDENTIALS:
            return name in self._includes
        return any(fnmatchcase(name, one) for one in self._includes)


class Tokens:
    """The tokens of one runtime's journal."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_hash: dict[str, TokenRow] = {}
        self._read_at: float | None = None
        self._reading = SharedCall(self._read)
        self._noted: dict[str, float] = {}
        self._notes: set[asyncio.Task[None]] = set()

    async def exist(self) -> bool:
        """Whether a token was ever created. Expired and revoked ones count: revoking the last one
        must not open the server."""
        await self._refresh()
        return bool(self._by_hash)

    async def find(self, token: str) -> TokenRow | None:
        """The row of a token, or None if it is not valid."""
        return None if len(token) > LONGEST else await self.find_hash(hash_of(token))

    async def find_hash(self, hash: str) -> TokenRow | None:
        """The row of the token with this hash, or None if it is not valid."""
        await self._refresh()
        row = self._by_hash.get(hash)
        if row is None or not hmac.compare_digest(row.hash, hash):
            return None
        if not self._is_valid(row):
            return None
        self._note(hash)
        return row

    async def until_invalid(self, hash: str) -> None:
        """Wait until a token has expired or is revoked."""
        while (row := self._by_hash.get(hash)) is not None and self._is_valid(row):
            await asyncio.sleep(READ_EVERY)
            with contextlib.suppress(Error):  # a journal that is away ends no stream
                await self._refresh()

    def _is_valid(self, row: TokenRow) -> bool:
        return row.is_valid(self._runtime.engine.clock.now())

    async def _refresh(self) -> None:
        if self._read_at is None or time.monotonic() - self._read_at >= READ_EVERY:
            await self._reading()

    async def _read(self) -> None:
        started = time.monotonic()
        plan = tokens.read_rows(self._runtime.engine)
        rows = await self._runtime.journal.arun(plan, flush=False)
        self._by_hash = {row.hash: row for row in rows}
        self._read_at = started

    def _note(self, hash: str) -> None:
        """Store in the background that a token was used."""
        now = time.monotonic()
        if now - self._noted.get(hash, -NOTE_EVERY) >= NOTE_EVERY:
            self._noted[hash] = now
            noting = self._runtime.journal.arun(tokens.note_use(self._runtime.engine, hash))
            task = asyncio.get_running_loop().create_task(noting)
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)
            task.add_done_callback(retrieve_exception)  # only informational


def sent_token(request: Request) -> str | None:
    """The token of a request: `x-api-key`, or `Authorization: Bearer`."""
    if HEADERS.isdisjoint(name for name, _ in request.scope["headers"]):
        return None
    key = request.headers.get("x-api-key", "").strip()
    if key:
        return key
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
