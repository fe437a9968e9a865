"""The tokens of a journal, cached in memory and reloaded every few seconds.

A request costs no query. A token created or revoked elsewhere takes effect within `READ_EVERY`, for
open streams too.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from typing import TYPE_CHECKING

from fastapi import Request

from perdure.commands.tokens import TokenRow, hash_of
from perdure.errors import Error

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


class Tokens:
    """The tokens of one runtime's journal."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_hash: dict[str, TokenRow] = {}
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
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
        return row.is_valid(self._runtime.services.clock.now())

    async def _refresh(self) -> None:
        if self._read_at is not None and time.monotonic() - self._read_at < READ_EVERY:
            return
        reading, loop = self._reading, asyncio.get_running_loop()
        if reading is None or reading.done() or reading.get_loop() is not loop:
            reading = self._reading = loop.create_task(self._read())
        await asyncio.shield(reading)

    async def _read(self) -> None:
        started = time.monotonic()
        plan = self._runtime.services.tokens.rows
        rows = await self._runtime.journal.arun(plan(), flush=False)
        self._by_hash = {row.hash: row for row in rows}
        self._read_at = started

    def _note(self, hash: str) -> None:
        """Store in the background that a token was used."""
        now = time.monotonic()
        if now - self._noted.get(hash, -NOTE_EVERY) >= NOTE_EVERY:
            self._noted[hash] = now
            task = asyncio.get_running_loop().create_task(self._store_note(hash))
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)

    async def _store_note(self, hash: str) -> None:
        with contextlib.suppress(Error):  # only informational
            await self._runtime.journal.arun(self._runtime.services.tokens.note_use(hash))


def sent_token(request: Request) -> str | None:
    """The token of a request: `x-api-key`, or `Authorization: Bearer`."""
    if HEADERS.isdisjoint(name for name, _ in request.scope["headers"]):
        return None
    key = request.headers.get("x-api-key", "").strip()
    if key:
        return key
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
