"""Signed links to questions: bound to what was shown, to a person and to a time, and used once."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from itsdangerous import URLSafeSerializer

import perdure
from perdure import Runtime
from perdure.commands import question_links
from perdure.commands.connection import PublicUrl, check_public_url
from perdure.errors import (
    AlreadyAnswered,
    BadArgument,
    InvalidLink,
    LinkExpired,
    NotFound,
    WaitExpired,
)
from perdure.types import Wait
from tests.contract.test_question_links import asked
from tests.support.agents import Log, opened

BASE = "https://agents.example.com/perdure"
ANA = "ana@example.com"


def limited(state: Log) -> Log:
    return {"log": [perdure.ask("Now?", expires=timedelta(hours=1), default="no")]}


def linked(url: str, **options: Any) -> Any:
    return opened(url, public_url=BASE, **options)


def token_of(url: str) -> str:
    [token] = parse_qs(urlsplit(url).query)["t"]
    return token


async def look(rt: Runtime, token: str) -> Any:
    return await rt.journal.arun(question_links.look_at(rt.engine, token))


async def answer(rt: Runtime, token: str, value: Any, address: str | None = None) -> Any:
    return await rt.journal.arun(question_links.answer_by_link(rt.engine, token, value, address))


async def test_a_link_ends_with_its_question(sqlite_url: str) -> None:
    async with linked(sqlite_url) as rt:
        wait = await asked(rt, limited)
        token = token_of(await rt.link(wait.id, to=ANA))
        assert (await look(rt, token)).link.expires_at == wait.expires_at
        rt.clock.advance(timedelta(hours=1))
        with pytest.raises(LinkExpired):
            await answer(rt, token, "yes")
        await rt.tick()
        with pytest.raises(WaitExpired):
            await rt.link(wait.id, to=ANA)


def forgeries(token: str, wait: Wait) -> dict[str, str]:
    body, _, signature = token.rpartition(".")
    other = json.dumps([wait.id, "eve@example.com", 4_000_000_000, 0]).encode()
    return {
        "empty": "",
        "no signature": body,
        "cut off": token[:-1],
        "changed": ("A" if token[0] != "A" else "B") + token[1:],
        "another person": f"{base64.urlsafe_b64encode(other).decode().strip('=')}.{signature}",
        "another key": str(
            URLSafeSerializer("x", salt="perdure.link").dumps([wait.id, "e", 9**9, 0])
        ),
        "long": "A" * 2000 + f".{signature}",
        "not ASCII": "ä" + token,
        "NUL": "\0" + token,
    }


async def test_a_forged_link_says_nothing_about_its_question(sqlite_url: str) -> None:
    async with linked(sqlite_url) as rt:
        wait = await asked(rt)
        token = token_of(await rt.link(wait.id, to=ANA))
        for forged in forgeries(token, wait).values():
            for use in (look(rt, forged), answer(rt, forged, "yes")):
                with pytest.raises(InvalidLink) as refused:
                    await use
                assert wait.id not in str(refused.value)
        assert await rt.waits() == [wait]


async def test_a_signature_of_something_else_is_not_a_link(sqlite_url: str) -> None:
    """What the server signs for another purpose has another salt."""
    from perdure.commands.question_links import server_secret

    async with linked(sqlite_url) as rt:
        wait = await asked(rt)
        secret = await rt.journal.arun(server_secret(rt.engine.serializer))
        how = {"key_derivation": "hmac"}
        for salt in ("itsdangerous", "perdure.session"):
            other = URLSafeSerializer(secret, salt=salt, signer_kwargs=how)
            with pytest.raises(InvalidLink):
                await look(rt, str(other.dumps([wait.id, ANA, 4_000_000_000, 0])))


async def test_every_process_on_the_journal_accepts_a_link(url: str) -> None:
    async with linked(url) as rt:
        wait = await asked(rt)
        async with perdure.Client(url, public_url=BASE, clock=rt.clock) as client:
            token = token_of(await client.link(wait.id, to=ANA))
        assert (await look(rt, token)).link.wait_id == wait.id


async def test_a_link_needs_an_open_question_a_person_and_a_public_url(sqlite_url: str) -> None:
    async with linked(sqlite_url) as rt:
        wait = await asked(rt)
        for bad in ({"to": ""}, {"to": ANA, "expires": timedelta(0)}, {"to": "x" * 300}):
            with pytest.raises(perdure.Error):
                await rt.link(wait.id, **bad)
        with pytest.raises(NotFound):
            await rt.link("nothing", to=ANA)
        await rt.answer(wait.id, "yes")
        with pytest.raises(AlreadyAnswered):
            await rt.link(wait.id, to=ANA)
    async with perdure.Client(sqlite_url) as client:
        with pytest.raises(BadArgument, match="PERDURE_PUBLIC_URL"):
            await client.link(wait.id, to=ANA)


def test_the_environment_names_the_public_url(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PublicUrl.of(None) is None
    monkeypatch.setenv("PERDURE_PUBLIC_URL", "https://a.example.com/")
    assert PublicUrl.of(None) == PublicUrl("https://a.example.com")
    assert PublicUrl.of("http://127.0.0.1:8000") == PublicUrl("http://127.0.0.1:8000")


@pytest.mark.parametrize(
    "url",
    [
        "agents.example.com",
        "ftp://agents.example.com",
        "https://",
        "https://user:word@example.com",
        "https://example.com/?a=b",
        "https://example.com/#a",
        "https://example.com/\r\nx",
        'https://example.com/">',
        "https://exämple.com",
        "https://example.com:x",
        "https://example.com/" + "x" * 2000,
        "javascript:alert(1)",
        7,
    ],
)
def test_an_invalid_public_url_is_refused(url: Any) -> None:
    with pytest.raises(BadArgument, match="public_url"):
        check_public_url(url)
    with pytest.raises(BadArgument, match="public_url"):
        perdure.Client("sqlite:///x.db", public_url=url)
