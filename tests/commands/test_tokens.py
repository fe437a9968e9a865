"""Tokens of the HTTP API: shown once, stored as hashes, one of each name."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from typing import Any

import pytest

from perdure.commands import tokens
from perdure.commands.tokens import Scope, TokenRow
from perdure.errors import BadArgument, NotFound
from tests.support.agents import NOON, opened
from tests.support.raw import execute


async def test_a_token_is_returned_once_and_only_its_hash_is_stored(url: str) -> None:
    async with opened(url) as rt:
        journal = rt.journal
        token = await journal.arun(
            tokens.create(rt.engine, "ci", ["start", "read"], expires=timedelta(days=90))
        )
        [row] = await journal.arun(tokens.read_rows(rt.engine))
        [shown] = await journal.arun(tokens.list_tokens(rt.engine))
    assert token.startswith("perdure_")
    assert len(token) > 50
    assert row.hash == hashlib.sha256(token.encode()).hexdigest()
    assert token not in str(execute(url, "SELECT * FROM perdure_tokens"))
    assert (shown.name, shown.scopes) == ("ci", (Scope.READ, Scope.START))
    assert (shown.created_at, shown.expires_at) == (NOON, NOON + timedelta(days=90))
    assert (shown.used_at, shown.revoked_at) == (None, None)


async def test_no_two_tokens_that_can_be_used_have_one_name(url: str) -> None:
    async with opened(url) as rt:
        journal = rt.journal
        made = await asyncio.gather(
            *(journal.arun(tokens.create(rt.engine, "ci", ["read"])) for _ in range(5)),
            return_exceptions=True,
        )
        assert [type(one) for one in made].count(str) == 1
        with pytest.raises(BadArgument, match="Revoke it first"):
            await journal.arun(tokens.create(rt.engine, "ci", ["read"]))
        await journal.arun(tokens.revoke(rt.engine, "ci"))
        await journal.arun(tokens.create(rt.engine, "ci", ["read"]))
        assert [
            one.revoked_at is None for one in await journal.arun(tokens.list_tokens(rt.engine))
        ] == [False, True]
        with pytest.raises(NotFound, match="no token 'bo'"):
            await journal.arun(tokens.revoke(rt.engine, "bo"))


@pytest.mark.parametrize(
    ("name", "scopes", "options", "said"),
    [
        ("", ["read"], {}, "name"),
        ("a", [], {}, "at least one scope"),
        ("a", ["write"], {}, "'write' is not a scope"),
        ("a", ["read"], {"expires": timedelta(0)}, "expires"),
    ],
)
async def test_a_token_that_makes_no_sense_is_refused(
    sqlite_url: str, name: str, scopes: list[str], options: Any, said: str
) -> None:
    async with opened(sqlite_url) as rt:
        with pytest.raises(BadArgument, match=said):
            await rt.journal.arun(tokens.create(rt.engine, name, scopes, **options))


async def test_its_use_is_noted_every_few_minutes(url: str) -> None:
    async with opened(url) as rt:
        journal, clock = rt.journal, rt.engine.given_clock
        await journal.arun(tokens.create(rt.engine, "ci", ["read"]))
        [row] = await journal.arun(tokens.read_rows(rt.engine))
        used = []
        for minutes in (1, 5, 6):
            clock.advance(timedelta(minutes=minutes))  # type: ignore[union-attr]
            await journal.arun(tokens.note_use(rt.engine, row.hash))
            used.append((await journal.arun(tokens.list_tokens(rt.engine)))[0].used_at)
    first = NOON + timedelta(minutes=1)
    assert used == [first, first, first + timedelta(minutes=11)]


def test_a_scope_of_a_newer_perdure_allows_nothing_here() -> None:
    assert TokenRow("", "n", "fly", 0, None, None, None).allowed == frozenset()
    assert TokenRow("", "n", "fly answer", 0, None, None, None).allowed == {
        Scope.ANSWER,
        Scope.READ,
    }
