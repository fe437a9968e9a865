"""E-mail about questions: stored with the question, one letter for each recipient with their own
link, and repeated for days under one Message-ID."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import perdure
from perdure import Mail
from perdure.commands import question_links
from perdure.commands.mail import Encryption, SmtpServer
from perdure.errors import BadArgument, WaitExpired
from perdure.execution.duties import Undelivered
from perdure.notifications import mail as smtp
from perdure.notifications.mail import MailSender, hand_over
from perdure.notifications.webhooks import PAUSES
from tests.contract.test_mail import (
    ANA,
    BASE,
    BO,
    LONG,
    approve,
    asked,
    mailing,
    to,
)
from tests.contract.test_mail import server as server
from tests.support.agents import chain, opened
from tests.support.mail_server import MailServer, receiving_mail
from tests.support.polling import auntil


class Certificates:
    """A certificate authority; only clients that trust it accept its certificates."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("an authority of a test")
        made = _builder(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._authority = made.sign(self._key, hashes.SHA256())

    def server(self, host: str) -> ssl.SSLContext:
        """The context of a server with this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_name(host), self._name, key.public_key()).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False
        )
        path = self._directory / f"{host}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.write_bytes(_pem(made.sign(self._key, hashes.SHA256())) + private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def trust(self) -> ssl.SSLContext:
        """The context of a client that trusts this authority."""
        return ssl.create_default_context(cadata=_pem(self._authority).decode())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


# -- what is sent


async def test_each_recipient_gets_a_letter_of_their_own_about_a_new_question(
    url: str, server: MailServer
) -> None:
    async with mailing(url, to(server, ANA, BO)) as rt:
        wait = await asked(rt)
        assert sorted(one.to for one in server.got) == [[ANA], [BO]]
        assert {one.sender for one in server.got} == {"agents@example.com"}
        for got in server.got:
            message = got.message
            assert message["From"] == "Agents <agents@example.com>"
            assert message["To"] == got.to[0]
            assert message["Subject"] == "Please decide: approve"
            assert message["Auto-Submitted"] == "auto-generated"
            assert got.id.startswith(f"<{wait.id}-mail-")
            assert got.id.endswith("@example.com>")
            assert "Dear Ada, a secret offer" in got.part("plain")
            assert "Dear Ada, a secret offer" in got.part("html")
        assert len({one.id for one in server.got}) == 2
        assert await rt.messages() == []
        await rt.tick()
        assert len(server.got) == 2


async def test_the_link_of_a_letter_answers_in_the_name_of_its_recipient(
    url: str, server: MailServer
) -> None:
    async with mailing(url, to(server, ANA, BO)) as rt:
        wait = await asked(rt)
        for got in server.got:
            assert got.url.startswith(f"{BASE}/ui/link?t=")
            seen = await rt.journal.arun(question_links.look_at(rt.engine, token_of(got.url)))
            assert (seen.link.to, seen.wait.id) == (got.to[0], wait.id)
        await rt.journal.arun(
            question_links.answer_by_link(rt.engine, token_of(server.got[0].url), "yes", None)
        )
        [record] = await rt.wait_history(wait.run_id)
        assert record.answered_by == server.got[0].to[0]


def token_of(url: str) -> str:
    [token] = parse_qs(urlsplit(url).query)["t"]
    return token


async def test_what_runs_is_above_the_link_and_the_agents_words_are_below_it_and_marked(
    sqlite_url: str, server: MailServer
) -> None:
    async with mailing(sqlite_url, to(server)) as rt:
        await asked(rt, "review")
        [got] = server.got
        plain = got.part("plain")
        order = ["send_mail runs if", "to: ada", "Open and decide", "own words", "> I am sure"]
        assert [plain.index(one) for one in order] == sorted(plain.index(one) for one in order)
        assert "Opening the link decides nothing" in plain
        page = got.part("html")
        quoted = page.partition("<blockquote")[2]
        assert "I am sure" in quoted
        assert "ada@example" not in quoted
        assert "send_mail" in str(got.message["Subject"])


async def test_a_letter_says_when_its_question_and_its_link_end(
    sqlite_url: str, server: MailServer
) -> None:
    mail = to(server, link_expires=timedelta(hours=3))
    async with mailing(sqlite_url, mail) as rt:
        await asked(rt, "soon")
        [got] = server.got
        assert "expires 2030-01-02 12:00 UTC" in " ".join(got.part("plain").split())
        assert "until 2030-01-01 15:00 UTC" in " ".join(got.part("plain").split())


async def test_without_content_a_letter_has_only_the_link(
    sqlite_url: str, server: MailServer
) -> None:
    mail = to(server, content=False, events=["question.waiting", "run.held"])
    async with mailing(sqlite_url, mail) as rt:
        await asked(rt)
        await asked(rt, "review")
        await rt.start("hold", {"log": []})
        await rt.tick()
        assert len(server.got) == 3
        for got in server.got:
            sent = got.content + got.part("plain").encode() + got.part("html").encode()
            for word in (b"Ada", b"secret", b"send_mail", b"sure", b"mailbox"):
                assert word not in sent
        assert server.got[0].message["Subject"] == "Please decide: approve"


async def test_a_held_run_is_mailed_if_its_event_is_selected(url: str, server: MailServer) -> None:
    mail = to(server, events=["run.held", "run.failed"])
    async with mailing(url, mail) as rt:
        await asked(rt)
        assert server.got == []
        run = await rt.start("hold", {"log": []})
        await rt.tick()
        [got] = server.got
        assert got.message["Subject"] == "[perdure] hold: a run is held until a person decides"
        assert "no such mailbox" in got.part("plain")
        assert got.url == f"{BASE}/ui/runs/{run.id}"


async def test_a_question_that_expired_before_its_letter_is_sent_needs_none(
    sqlite_url: str, server: MailServer
) -> None:
    """Its run is paused, so nothing has ended the question yet."""
    async with mailing(sqlite_url, to(server)) as rt:
        server.stop()
        wait = await asked(rt, "soon")
        await rt.pause(wait.run_id)
        server.start()
        rt.clock.advance(LONG)
        await rt.tick()
        assert (server.got, await rt.messages()) == ([], [])
        with pytest.raises(WaitExpired):
            await rt.link(wait.id, to=ANA)


async def test_an_evaluation_sends_no_mail(sqlite_url: str, server: MailServer) -> None:
    from perdure.evals import Example, evaluate

    example = Example({"log": []}, answers=["yes"])
    async with mailing(sqlite_url, to(server)) as rt:
        await evaluate("approve", [example], [], name="e", runtime=rt)
        assert (server.got, await rt.messages()) == ([], [])


# -- hostile text


# -- which settings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://127.0.0.1", ("127.0.0.1", 25, Encryption.NONE, None, None)),
        ("smtp://localhost:1025", ("localhost", 1025, Encryption.NONE, None, None)),
        ("smtp://a:b@[::1]", ("::1", 25, Encryption.NONE, "a", "b")),
        ("smtps://u%40x:p%3Aw@m.example", ("m.example", 465, Encryption.TLS, "u@x", "p:w")),
        ("smtp://u:p@m.example?starttls", ("m.example", 587, Encryption.STARTTLS, "u", "p")),
        ("smtp://m.example:26?plaintext", ("m.example", 26, Encryption.NONE, None, None)),
    ],
)
def test_a_url_names_the_mail_server(url: str, expected: Any) -> None:
    assert SmtpServer.of(url) == SmtpServer(*expected)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "m.example",
        "http://m.example",
        "smtp://",
        "smtp://m.example",
        "smtp://u:p@m.example",
        "smtp://u:p@m.example?plaintext",
        "smtp://u:p@10.0.0.1?plaintext",
        "smtps://m.example?plaintext",
        "smtp://m.example?tls",
        "smtp://u@m.example?starttls",
        "smtp://u:pä@m.example?starttls",
        "smtp://m.example:x?starttls",
        "smtp://m.example/x?starttls",
        7,
    ],
)
def test_a_url_that_would_send_a_password_in_the_clear_or_names_no_server_is_refused(
    url: Any,
) -> None:
    with pytest.raises(BadArgument) as refused:
        Mail(url, "agents@example.com", [ANA])
    assert "u:p@" not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"to": []},
        {"to": ANA},
        {"to": ["ana"]},
        {"to": ["ana@example.com\r\nRCPT TO:<eve@example.com>"]},
        {"to": ["<ana@example.com>"]},
        {"to": ["Ana <ana@example.com>"]},
        {"to": ["ana@exämple.com"]},
        {"to": [f"a{n}@example.com" for n in range(30)]},
        {"sender": "agents"},
        {"sender": "Agents\r\nBcc: eve@example.com <agents@example.com>"},
        {"events": ["run.lost"]},
        {"name": "a name"},
        {"name": ""},
        {"link_expires": timedelta(0)},
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any]) -> None:
    given = {"server": "smtp://127.0.0.1", "sender": "agents@example.com", "to": [ANA]}
    with pytest.raises(BadArgument):
        Mail(**{**given, **options})


def test_mail_needs_to_know_where_people_reach_the_pages(sqlite_url: str) -> None:
    with pytest.raises(BadArgument, match="PERDURE_PUBLIC_URL"):
        perdure.Runtime(sqlite_url, mail=Mail("smtp://127.0.0.1", "agents@example.com", [ANA]))


async def test_the_environment_names_server_sender_and_recipients(
    sqlite_url: str, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_SMTP_URL", server.url)
    monkeypatch.setenv("PERDURE_PUBLIC_URL", BASE)
    with pytest.raises(BadArgument, match="PERDURE_MAIL_FROM and PERDURE_MAIL_TO"):
        perdure.Runtime(sqlite_url)
    monkeypatch.setenv("PERDURE_MAIL_FROM", "Agents <agents@example.com>")
    monkeypatch.setenv("PERDURE_MAIL_TO", f"{ANA}, {BO} ")
    async with opened(sqlite_url) as rt:
        rt.register(chain(approve), name="approve")
        await asked(rt)
        assert sorted(one.to for one in server.got) == [[ANA], [BO]]


# -- again, for days


async def test_a_server_that_is_down_gets_the_letter_when_it_is_up(
    url: str, server: MailServer
) -> None:
    async with mailing(url, to(server, ANA, BO)) as rt:
        server.stop()
        await asked(rt)
        found = await rt.messages()
        assert len(found) == 2
        for message in found:
            assert (message.attempts, message.due_at is None) == (1, False)
            assert message.error.startswith(f"127.0.0.1:{server.port} failed at the connection")
        server.start()
        rt.clock.advance(PAUSES[0] * 1.2)
        await rt.tick()
        assert sorted(one.to for one in server.got) == [[ANA], [BO]]
        assert await rt.messages() == []


async def test_a_letter_that_is_refused_for_now_is_repeated_under_the_same_id(
    url: str, server: MailServer
) -> None:
    async with mailing(url, to(server)) as rt:
        server.answers = ["451 4.7.1 greylisted", "421 4.3.0 too busy"]
        await asked(rt)
        for pause in PAUSES[:2]:
            [message] = await rt.messages()
            assert message.due_at is not None
            rt.clock.advance(pause * 1.2)
            await rt.tick()
        assert len(server.got) == 3
        assert len({one.id for one in server.got}) == 1
        assert await rt.messages() == []


@pytest.mark.parametrize("stage", ["the recipient", "the content"])
async def test_a_letter_that_is_refused_for_good_is_given_up_and_stays_in_the_outbox(
    url: str, server: MailServer, stage: str
) -> None:
    async with mailing(url, to(server, ANA, BO)) as rt:
        if stage == "the recipient":
            server.refused[ANA] = f"550 5.1.1 no mailbox {ANA} here"
        else:
            server.answers = ["554 5.7.1 spam from agents@example.com"]
        await asked(rt)
        rt.clock.advance(LONG)
        await rt.tick()
        [message] = await rt.messages()
        code = "550 5.1.1" if stage == "the recipient" else "554 5.7.1"
        where = f"127.0.0.1:{server.port}"
        assert (message.due_at, message.error) == (None, f"{where} answered {code} to {stage}")
        server.refused.clear()
        await rt.redeliver(message.id)
        await rt.tick()
        assert await rt.messages() == []
        assert f"<{message.id}@example.com>" in {one.id for one in server.got}


async def test_a_recipient_whom_only_newer_workers_know_gets_the_mail_from_them(
    sqlite_url: str, server: MailServer
) -> None:
    async with mailing(sqlite_url, to(server, ANA, BO)) as new:
        async with mailing(sqlite_url, to(server, ANA), clock=new.clock) as old:
            server.stop()
            await asked(new)
            server.start()
            new.clock.advance(PAUSES[0] * 1.2)
            await old.tick()
            assert [one.to for one in server.got] == [[ANA]]
        new.clock.advance(PAUSES[1] * 1.2)
        await new.tick()
        assert [one.to for one in server.got] == [[ANA], [BO]]
        assert await new.messages() == []


async def test_a_recipient_who_was_removed_gets_no_mail(
    sqlite_url: str, server: MailServer
) -> None:
    server.stop()
    async with mailing(sqlite_url, to(server, ANA, BO)) as rt:
        await asked(rt)
        clock = rt.clock
    server.start()
    clock.advance(LONG)
    async with mailing(sqlite_url, to(server, BO), clock=clock) as rt:
        for pause in PAUSES:
            await rt.tick()
            [message] = await rt.messages()
            assert "recipient" in message.error
            clock.advance(pause * 1.2)
        await rt.tick()
        [message] = await rt.messages()
        assert message.due_at is None
        assert [one.to for one in server.got] == [[BO]]


@pytest.mark.parametrize("first", [b"220 ready\r\n250-", b"220-"], ids=["ready", "greeting"])
async def test_a_server_that_sends_a_byte_now_and_then_times_out_too(
    monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(smtp, "TIMEOUT", 0.5)
    gone = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        with contextlib.suppress(OSError):
            while not reader.at_eof():
                writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(100), 0.05)
            writer.close()
            await writer.wait_closed()
        gone.set()

    listening = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        with pytest.raises(Undelivered, match="did not accept the mail within"):
            await hand_over(SmtpServer.of(f"smtp://127.0.0.1:{port}"), None, ANA, BO, b"x\r\n")
        await gone.wait()  # the connection is closed, and its thread ends


async def test_a_worker_that_was_held_up_until_another_may_have_sent_a_letter_does_not_send_it(
    sqlite_url: str, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smtp, "TIMEOUT", 0.5)
    read = MailSender._of_question

    async def late(self: MailSender, message: Any, to: str) -> Any:
        text, begun = await read(self, message, to), time.monotonic()
        await auntil(lambda: time.monotonic() > begun + 0.5)
        return text

    monkeypatch.setattr(MailSender, "_of_question", late)
    async with mailing(sqlite_url, to(server)) as rt:
        await asked(rt)
        assert server.got == []
        [message] = await rt.messages()
        assert "did not accept the mail" in message.error
        monkeypatch.undo()
        rt.clock.advance(LONG)
        await rt.tick()
        assert len(server.got) == 1


# -- killed


# -- encryption and secrets


async def test_with_encryption_nothing_of_a_question_or_a_recipient_is_in_the_journal(
    sqlite_url: str, server: MailServer
) -> None:
    keys = {"a": b"k" * 32}
    async with mailing(sqlite_url, to(server), encryption_keys=keys) as rt:
        server.stop()
        await asked(rt)
        await rt.journal.aflush()
        path = Path(sqlite_url.removeprefix("sqlite:///"))
        stored = b"".join(one.read_bytes() for one in path.parent.glob(f"{path.name}*"))
        for word in (b"Dear Ada", b"ana@"):
            assert word not in stored
        server.start()
        rt.clock.advance(LONG)
        await rt.tick()
        [got] = server.got
        assert "Dear Ada" in got.part("plain")
        await rt.journal.arun(question_links.look_at(rt.engine, token_of(got.url)))


async def test_logs_have_neither_the_question_nor_the_recipient_nor_the_link(
    sqlite_url: str, server: MailServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with mailing(sqlite_url, to(server)) as rt:
            server.refused[ANA] = f"450 4.2.1 {ANA} is busy"
            await asked(rt)
            server.refused.clear()
            rt.clock.advance(LONG)
            await rt.tick()
            assert len(server.got) == 1
    told = "\n".join(one.getMessage() for one in caplog.records if one.name == "perdure")
    assert "was not delivered" in told
    for word in ("Ada", "ana@", "link?t="):
        assert word not in told


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize("kind", ["smtps", "starttls"])
async def test_a_password_is_sent_over_tls_only_to_a_server_with_a_valid_certificate(
    sqlite_url: str, certificates: Certificates, kind: str
) -> None:
    options: dict[str, Any] = {"tls_context": certificates.server("localhost")}
    if kind == "starttls":
        options |= {"require_starttls": True, "auth_require_tls": True}
    else:
        options |= {"auth_require_tls": False}  # aiosmtpd does not see that the socket has it
    with receiving_mail(**options) as server:
        where = f"localhost:{server.port}"
        url = (
            f"smtps://u:secret@{where}" if kind == "smtps" else f"smtp://u:secret@{where}?starttls"
        )
        untrusted = Mail(url, "agents@example.com", [ANA])
        async with mailing(sqlite_url, untrusted) as rt:
            await asked(rt)
            [message] = await rt.messages()
            assert "CERTIFICATE_VERIFY_FAILED" in message.error
            assert server.logins == []
            clock = rt.clock
        clock.advance(LONG)
        trusted = Mail(url, "agents@example.com", [ANA], tls=certificates.trust())
        async with mailing(sqlite_url, trusted, clock=clock) as rt:
            await rt.tick()
            assert server.logins == [("u", "secret")]
            [got] = server.got
            assert got.is_encrypted


async def test_a_server_without_starttls_gets_neither_password_nor_letter(
    server: MailServer, certificates: Certificates
) -> None:
    where = SmtpServer.of(f"smtp://u:secret@localhost:{server.port}?starttls")
    with pytest.raises(Undelivered, match="STARTTLS") as failed:
        await hand_over(where, certificates.trust(), "a@example.com", ANA, b"x\r\n")
    assert not failed.value.final
    assert (server.logins, server.got) == ([], [])


async def test_a_wrong_password_is_retried_because_it_can_be_corrected(
    certificates: Certificates,
) -> None:
    options = {"tls_context": certificates.server("localhost"), "require_starttls": True}
    with receiving_mail(**options, auth_require_tls=True) as server:
        where = SmtpServer.of(f"smtp://u:wrong@localhost:{server.port}?starttls")
        with pytest.raises(Undelivered, match=r"answered 535 .* to the login") as failed:
            await hand_over(where, certificates.trust(), "a@example.com", ANA, b"x\r\n")
        assert not failed.value.final
        assert server.got == []
