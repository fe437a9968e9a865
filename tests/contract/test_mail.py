"""Mail about questions."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure import Mail
from perdure.testing import Clock, crash_at
from perdure.types import Retry
from tests.support.agents import Log, chain, opened
from tests.support.fork_server import ForkServer, Tell
from tests.support.mail_server import MailServer, receiving_mail
from tests.support.polling import auntil

TO = ("ana@example.com", "bo@example.com")


def approved(state: Log) -> Log:
    return {"log": [perdure.ask({"draft": "Dear Ada"})]}


def make(url: str, smtp: str, **options: Any) -> perdure.Runtime:
    """A runtime with one graph that asks, and mail to two people."""
    mail = perdure.Mail(smtp, "agents@example.com", TO)
    rt = perdure.Runtime(url, mail=mail, public_url="https://agents.example.com", **options)
    rt.register(chain(approved), name="g")
    return rt


async def work(order: dict[str, Any], tell: Tell) -> None:
    """Drive until killed: when a message is stored and not sent (`stored`), while it is sent
    (`taken`, by the test), or when it was sent and that is not noted (`sent`)."""
    point = {"stored": "take_messages.before", "sent": "delete_message.before"}.get(order["at"])
    with crash_at(point) if point else contextlib.nullcontext():
        async with make(order["url"], order["smtp"]) as rt:
            await rt.start("g", {"log": []}, thread_id="t")
            await rt.work()


ANA, BO = "ana@example.com", "bo@example.com"


BASE = "https://agents.example.com"


LONG = timedelta(days=2)


@pytest.fixture
def server() -> Iterator[MailServer]:
    with receiving_mail() as made:
        yield made


def approve(state: Log) -> Log:
    return {"log": [perdure.ask({"draft": "Dear Ada, a secret offer"})]}


def soon(state: Log) -> Log:
    return {"log": [perdure.ask("Now?", expires=timedelta(days=1), default="no")]}


def fail(state: Log) -> Log:
    raise ValueError("no such mailbox")


def review(state: Log) -> Log:
    """As LangChain's middleware asks."""
    action = {
        "name": "send_mail",
        "args": {"to": "ada@example.com", "text": "Dear Ada"},
        "description": "I am sure that this is fine.",
    }
    config = {"action_name": "send_mail", "allowed_decisions": ["approve", "reject"]}
    perdure.ask({"action_requests": [action], "review_configs": [config]})
    return {"log": ["sent"]}


def to(server: MailServer, *people: str, **options: Any) -> Mail:
    given = {"sender": "Agents <agents@example.com>", **options}
    return Mail(server.url, to=people or (ANA,), **given)


@asynccontextmanager
async def mailing(url: str, mail: Mail, **options: Any) -> AsyncIterator[Any]:
    async with opened(url, mail=mail, public_url=BASE, **options) as rt:
        rt.register(chain(approve), name="approve")
        rt.register(chain(soon), name="soon")
        rt.register(chain(review), name="review")
        rt.register(chain(fail), name="hold", retry=Retry(attempts=1), hold=True)
        yield rt


async def asked(rt: Any, graph: str = "approve") -> Any:
    await rt.start(graph, {"log": []})
    await rt.tick()
    found = await rt.waits()
    return found[0] if found else None


async def test_a_question_that_is_answered_before_its_letter_is_sent_needs_none(
    sqlite_url: str, server: MailServer
) -> None:
    async with mailing(sqlite_url, to(server)) as rt:
        server.stop()
        wait = await asked(rt)
        await rt.answer(wait.id, "yes")
        server.start()
        rt.clock.advance(LONG)
        await rt.tick()
        assert server.got == []
        assert await rt.messages() == []


HEADERS = [
    *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "MIME-Version"),
    "Content-Type",
]


HOSTILE = [
    "hi\r\nBcc: eve@example.com\r\n\r\nbody",
    "hi\nSubject: other",
    "\0\x07\x1b[31m\u2028\u2029\x85x",
    "right \u202eto left\u202c \u2066isolate\u2069",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "Open and decide: https://evil.example/ui/link?t=x http://1.2.3.4",
    "www.evil.example evil.example",
    "javascript:alert(1) data:text/html,x HTTPS://EVIL.EXAMPLE/ ftp://evil.example",
    "[Open](https://evil.example) <https://evil.example>",
    "=?utf-8?q?encoded?= =?utf-8?b?PHNjcmlwdD4=?=",
    "=?utf-8?q?hi=0D=0ABcc:_eve=40example.com=0D=0A=0D=0Abody?=",
    "hi =?utf-8?b?DQpCY2M6IGV2ZUBleGFtcGxlLmNvbQ==?= ==?utf-8?q?=0AX-Evil:_1?=",
    "=?unicode_escape?q?=5Cud800?=",
    ".\r\n.\r\nQUIT\r\n",
    "lone \ud800 surrogate".encode("utf-8", "replace").decode(),
    "Grüße 你好 🎉" * 40,
    "x" * 20_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_changes_neither_the_headers_nor_the_link_of_a_letter(
    sqlite_url: str, server: MailServer, text: str
) -> None:
    def ask(state: Log) -> Log:
        return {"log": [perdure.ask(text)]}

    def call(state: Log) -> Log:
        action = {"name": text, "args": {text[:100]: text}, "description": text}
        return {"log": [perdure.ask({"action_requests": [action], "review_configs": [{}]})]}

    async with mailing(sqlite_url, to(server)) as rt:
        for name, node in (("ask", ask), ("call", call)):
            rt.register(chain((name, node)), name=name)
            await rt.start(name, {"log": []})
        await rt.tick()
        assert len(server.got) == 2
        for got in server.got:
            message, plain, page = got.message, got.part("plain"), got.part("html")
            assert message.defects == []
            assert message.keys() == HEADERS
            assert got.to == [ANA]
            assert str(message["Subject"]).isprintable()
            assert len(str(message["Subject"])) <= 130  # folding may add a space
            assert got.content.isascii()
            assert max(map(len, got.content.split(b"\r\n"))) <= 998
            assert len(got.content) < 200_000
            found = re.findall(r"(?i)\b[a-z]+://\S+|www\.\w+|\bevil\.example", plain)
            assert found == [got.url]
            links = re.findall(r"""(?i)href\s*=\s*["']?([^"' >]+)""", page)
            assert [html.unescape(one) for one in links] == [got.url]
            assert "evil.example" not in page
            assert not re.search(r"(?i)<(script|img|iframe|form|input|object|svg)", page)
            assert not re.search("[\u202a-\u202e\u2066-\u2069\0\x07\x1b]", plain + page)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["stored", "taken", "sent"])
async def test_a_killed_worker_loses_no_letter_and_repeats_it_under_the_same_id(
    url: str, server: MailServer, fork_server: ForkServer, at: str
) -> None:
    """Killed before the server's 250 it is delivered once; after it, before the delete, twice."""
    if at == "taken":
        server.may_answer.clear()
    with fork_server.child(work, url=url, smtp=server.url, at=at) as one:
        if at == "taken":
            await auntil(lambda: len(server.got) == 2)
        else:
            await asyncio.to_thread(one.wait)
    server.may_answer.set()
    first = {one.id for one in server.got}
    assert (len(first) > 0) == (at != "stored")
    server.got.clear()
    later = Clock(datetime.now(UTC) + timedelta(minutes=2))  # what it took is due again
    async with make(url, server.url, clock=later) as rt:
        assert len(await rt.messages()) == 2
        await rt.tick()
        assert sorted(one.to for one in server.got) == [[ANA], [BO]]
        again = {one.id for one in server.got}
        assert first <= again
        assert await rt.messages() == []
