"""Sending the campaign's mail: it goes out whole, and a failure says whether it went out."""

from __future__ import annotations

import email
import email.policy
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import perdure
from examples.campaign.demo.postoffice import Fault, Mail, Moment, PostOffice, scripted
from examples.campaign.mail import Letter, LookupFailed, NoAnswer, Outgoing, compose, footer
from examples.campaign.refusals import (
    LetterRefused,
    NoSuchRecipient,
    Rejected,
    SenderRefused,
    TemporaryTrouble,
)
from examples.campaign.settings import Settings
from tests.support.polling import until

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
BO = "bo@example.org"
ID = "<touch-1-2-3@example.com>"
DATE = datetime(2026, 3, 2, 9, 30, tzinfo=timezone(timedelta(hours=1)))
LETTER = Letter(
    sender="Ana Ruiz <ana@example.com>",
    recipient=BO,
    recipient_name="Bo Li",
    subject="Hello",
    body="Dear Bo,\nhow are you?\n",
    message_id=ID,
    unsubscribe="unsubscribe@example.com",
)


def yes() -> bool:
    return True


def outgoing(office: PostOffice, **options: Any) -> Outgoing:
    settings = Settings(smtp_port=office.smtp_port, smtp_timeout=20.0, lookup_url=office.lookup_url)
    return Outgoing(replace(settings, **options))


def sent(letter: Letter) -> tuple[Mail, email.message.EmailMessage]:
    """A letter as the provider got it."""
    with PostOffice() as office:
        assert outgoing(office).send(letter, DATE, yes) == "sent"
        [mail] = office.log
    content = mail.content.encode("utf-8", "surrogateescape")
    return mail, email.message_from_bytes(content, policy=email.policy.default)


# -- what goes out


def test_a_letter_arrives_with_its_headers() -> None:
    mail, message = sent(replace(LETTER, in_reply_to="<touch-1-2-2@example.com>"))
    assert (mail.sender, mail.recipient, mail.message_id) == ("ana@example.com", BO, ID)
    assert dict(message.items()) == {
        "From": "Ana Ruiz <ana@example.com>",
        "To": "Bo Li <bo@example.org>",
        "Subject": "Hello",
        "Date": "Mon, 02 Mar 2026 09:30:00 +0100",
        "Message-ID": ID,
        "In-Reply-To": "<touch-1-2-2@example.com>",
        "References": "<touch-1-2-2@example.com>",
        "List-Unsubscribe": "<mailto:unsubscribe@example.com?subject=unsubscribe>",
        "Content-Type": 'text/plain; charset="utf-8"',
        "Content-Transfer-Encoding": "quoted-printable",
        "MIME-Version": "1.0",
    }


@pytest.mark.parametrize(
    "body",
    [
        "Grüße aus Köln – 你好, мир 🎉\n",
        ".\n..\n.x\n\n.\nQUIT\n",
        "long " * 2000 + "\n" + "x" * 5000 + "\n",
        "spaces at the end   \n\ttabs\t\n = =3D =\n",
        "From here on\n\n\n\nFrom there\n",
    ],
    ids=["not ASCII", "dots", "long lines", "white space", "From"],
)
def test_a_body_arrives_as_it_was_written(body: str) -> None:
    mail, message = sent(replace(LETTER, body=body))
    assert message.get_content().replace("\r\n", "\n") == f"{body}\n{footer('')}\n"
    assert mail.content.isascii()
    assert max(map(len, mail.content.split("\r\n"))) <= 998
    assert "\n" not in mail.content.replace("\r\n", "")


def test_long_names_and_subjects_beyond_ascii_arrive() -> None:
    name, subject = 'Zoë "Z" Straße, 你好', "Grüße an alle, die das lesen: " * 12
    _, message = sent(replace(LETTER, recipient_name=name, subject=subject.strip()))
    [to] = message["To"].addresses
    assert (to.display_name, to.addr_spec) == (name, BO)
    assert message["Subject"] == subject.strip()


def test_long_identifiers_are_not_folded_or_encoded() -> None:
    long = f"<{'a' * 180}@example.com>"
    letter = replace(
        LETTER, message_id=long, in_reply_to=long, unsubscribe=f"{'u' * 180}@example.com"
    )
    mail, _ = sent(letter)
    lines = mail.content.split("\r\n")
    assert mail.message_id == long
    for name in ("Message-ID", "In-Reply-To", "References"):
        assert f"{name}: {long}" in lines
    assert f"List-Unsubscribe: <mailto:{letter.unsubscribe}?subject=unsubscribe>" in lines


# -- what may go wrong


@pytest.mark.parametrize(
    ("fault", "raised", "text", "accepted"),
    [
        (Fault.REJECT_RECIPIENT, NoSuchRecipient, "RCPT TO: 550 5.1.1 No such", 0),
        (Fault.GREYLIST, TemporaryTrouble, "451 4.7.1 Greylisted", 0),
        (Fault.BUSY, TemporaryTrouble, "421 4.3.2 Too busy", 0),
        (Fault.HANG_UP, TemporaryTrouble, "DATA: SMTPServerDisconnected", 0),
        (Fault.REJECT_DATA, LetterRefused, "the content: 554 5.7.1 Not wanted", 0),
        (Fault.DROP_BEFORE, NoAnswer, "no answer to the content", 0),
        (Fault.DROP_AFTER, NoAnswer, "no answer to the content", 1),
        (Fault.LATE, NoAnswer, "no answer to the content", 1),
    ],
)
def test_each_fault_says_whether_the_mail_may_have_gone_out(
    fault: Fault, raised: type[Exception], text: str, accepted: int
) -> None:
    with PostOffice(scripted({(BO, 1): fault}), late=60) as office:
        out = outgoing(office, smtp_timeout=0.5 if fault is Fault.LATE else 20.0)
        with pytest.raises(raised, match=text) as caught:
            out.send(LETTER, DATE, yes)
        assert type(caught.value) is raised
        assert isinstance(caught.value, perdure.NotDone) == (raised is not NoAnswer)
        assert len(office.log) == accepted
        assert outgoing(office).accepted(ID) is bool(accepted)
        assert out.send(LETTER, DATE, yes) == "sent"


@contextmanager
def server(*answers: bytes) -> Iterator[Outgoing]:
    """An SMTP server that says this, line by line, whatever it hears, and then nothing more.

    `b""` hangs up.
    """

    def serve() -> None:
        peer, _ = listening.accept()
        with peer, peer.makefile("rb") as heard:
            in_content = False
            for number, answer in enumerate(answers):
                if number:
                    while (line := heard.readline()) and in_content and line != b".\r\n":
                        pass
                if not answer:
                    return
                in_content = answer.startswith(b"354")
                peer.sendall(answer)
            over.wait(20)

    over = threading.Event()
    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Outgoing(Settings(smtp_port=listening.getsockname()[1], smtp_timeout=0.5))
        finally:
            over.set()
            thread.join()


HELLO, OK, GO_ON = b"220 hello\r\n", b"250 ok\r\n", b"354 go on\r\n"


@pytest.mark.parametrize(
    ("answers", "raised"),
    [
        ([b""], TemporaryTrouble),
        ([], TemporaryTrouble),
        ([b"554 go away\r\n"], SenderRefused),
        ([b"what?\r\n"], TemporaryTrouble),
        ([b"2" * 20_000], TemporaryTrouble),
        ([HELLO, b"502 no\r\n", b"502 no\r\n"], SenderRefused),
        ([HELLO, OK, b"550 not you\r\n"], SenderRefused),
        ([HELLO, OK, OK], TemporaryTrouble),
        ([HELLO, OK, OK, b""], TemporaryTrouble),
        ([HELLO, OK, OK, b"550 no such user\r\n"], NoSuchRecipient),
        ([HELLO, OK, OK, b"550 5.1.1 no such user\r\n"], NoSuchRecipient),
        ([HELLO, OK, OK, b"550 5.7.1 not from you\r\n"], Rejected),
        ([HELLO, OK, OK, b"450 5.1.1 confused\r\n"], TemporaryTrouble),
        ([HELLO, OK, OK, OK], TemporaryTrouble),
        ([HELLO, OK, OK, OK, b"250 what content?\r\n"], TemporaryTrouble),
        ([HELLO, OK, OK, OK, b"451 later\r\n"], TemporaryTrouble),
        ([HELLO, OK, OK, OK, b"554 no valid recipients\r\n"], Rejected),
        ([HELLO, OK, OK, OK, GO_ON], NoAnswer),
        ([HELLO, OK, OK, OK, GO_ON, b""], NoAnswer),
        ([HELLO, OK, OK, OK, GO_ON, b"25"], NoAnswer),
        ([HELLO, OK, OK, OK, GO_ON, b"?\r\n"], NoAnswer),
        ([HELLO, OK, OK, OK, GO_ON, b"2" * 20_000], NoAnswer),
        ([HELLO, OK, OK, OK, GO_ON, b"250-first\r\n"], NoAnswer),
        ([HELLO, OK, OK, OK, GO_ON, b"452 full\r\n"], TemporaryTrouble),
        ([HELLO, OK, OK, OK, GO_ON, b"552 too big\r\n"], LetterRefused),
    ],
)
def test_whatever_a_server_says_the_exception_separates_known_from_unknown(
    answers: list[bytes], raised: type[Exception]
) -> None:
    with server(*answers) as out, pytest.raises(raised) as caught:
        out.send(LETTER, DATE, yes)
    assert type(caught.value) is raised
    [text] = caught.value.args
    assert len(text) < 700


@pytest.mark.parametrize(
    "answer", [b"250 ok\r\n", b"250-it\r\n250 is ok\r\n", b"251 passed on\r\n"]
)
def test_a_mail_is_sent_once_the_content_is_answered_without_waiting_for_quit(
    answer: bytes,
) -> None:
    with server(HELLO, OK, OK, OK, GO_ON, answer) as out:
        assert out.send(LETTER, DATE, yes) == "sent"


# -- the last moment


def test_a_letter_that_may_no_longer_go_out_leaves_no_mail() -> None:
    with PostOffice() as office:
        assert outgoing(office).send(LETTER, DATE, lambda: False) == "stopped"
        until(lambda: not office.desks, "the end of the connection")
        [conversation] = office.conversations
        assert conversation.reached is Moment.BEGAN
        assert office.log == []


def test_the_last_check_comes_after_the_recipient_and_before_the_content() -> None:
    moments: list[Moment | str] = []

    def asked() -> bool:
        moments.append("asked")
        return True

    with PostOffice(on=lambda moment, mail: moments.append(moment)) as office:
        outgoing(office).send(LETTER, DATE, asked)
    assert moments[:4] == [Moment.BEGAN, "asked", "asked", Moment.DATA]


def test_a_letter_stopped_after_the_servers_go_ahead_leaves_no_mail() -> None:
    answers = [True, False]
    with PostOffice() as office:
        assert outgoing(office).send(LETTER, DATE, lambda: answers.pop(0)) == "stopped"
        until(lambda: not office.desks, "the end of the connection")
        assert office.log == []
        assert outgoing(office).send(LETTER, DATE, yes) == "sent"


@pytest.mark.parametrize("field", ["sender", "subject", "message_id", "in_reply_to"])
def test_no_field_can_bring_in_a_header(field: str) -> None:
    value = getattr(LETTER, field) or ID
    with pytest.raises(LetterRefused, match="cannot be written"):
        compose(replace(LETTER, **{field: f"{value}\r\nBcc: x@y.z"}), DATE)


SENDER = """
import sys
from datetime import datetime
from examples.campaign.mail import Letter, Outgoing
from examples.campaign.settings import Settings
letter, date = eval(sys.argv[2]), datetime.fromisoformat(sys.argv[3])
Outgoing(Settings(smtp_port=int(sys.argv[1]))).send(letter, date, lambda: True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "accepted"),
    [(Moment.BEGAN, 0), (Moment.DATA, 1), (Moment.ACCEPTED, 1), (Moment.ANSWERED, 1)],
)
def test_a_sender_can_be_killed_at_each_moment(moment: Moment, accepted: int) -> None:
    with PostOffice() as office:
        given = str(office.smtp_port), repr(LETTER), DATE.isoformat()
        command = [sys.executable, "-c", SENDER, *given]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:

            def kill(reached: Moment, mail: Mail) -> None:
                if reached is moment:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait(20)

            office.on = kill
            assert process.wait(60) == -signal.SIGKILL
        until(lambda: not office.desks, "the end of the connection")
        until(lambda: len(office.log) == accepted, "the mail")
        assert outgoing(office).accepted(ID) is bool(accepted)


# -- asking what became of it


def test_a_look_up_says_whether_a_mail_was_accepted_whatever_its_id_is_made_of() -> None:
    odd = "<a/b?c=d&e#f%20+g{h}@example.com>"
    with PostOffice() as office:
        lookup = outgoing(office)
        assert not lookup.accepted(odd)
        outgoing(office).send(replace(LETTER, message_id=odd), DATE, yes)
        assert lookup.accepted(odd)
        assert not lookup.accepted(ID)


def test_a_look_up_that_cannot_say_raises() -> None:
    with PostOffice() as office:
        lookup = outgoing(office)
        office.lookup_down = True
        with pytest.raises(LookupFailed, match="503"):
            lookup.accepted(ID)
    with pytest.raises(LookupFailed, match="ConnectError"):
        lookup.accepted(ID)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found",
        b'HTTP/1.1 404 Not Found\r\nContent-Length: 22\r\n\r\n{"detail":"Not Found"}',
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"message_id":"<x>"}',
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
    ],
    ids=["text", "another 404", "a list", "another mail", "redirect", "garbage", "nothing"],
)
def test_an_answer_that_does_not_name_the_mail_does_not_count(answer: bytes) -> None:
    def serve() -> None:
        peer, _ = listening.accept()
        with peer:
            peer.recv(10_000)
            peer.sendall(answer)

    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            url = f"http://{HOST}:{listening.getsockname()[1]}/{{message_id}}"
            with pytest.raises(LookupFailed):
                Outgoing(Settings(lookup_url=url)).accepted(ID)
        finally:
            thread.join()


# -- the post office


def test_in_a_process_of_its_own_it_writes_its_log_for_others_to_judge(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "examples.campaign.demo.postoffice", "--log", str(log)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            smtp, address, lookup, url = process.stdout.readline().split()
            assert (smtp, lookup) == ("smtp", "lookup")
            assert url.startswith("http://127.0.0.1:")
            out = Outgoing(Settings(smtp_port=int(address.rpartition(":")[2])))
            for one in (ID, "<touch-2@example.com>"):
                out.send(replace(LETTER, message_id=one), DATE, yes)
            lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
            assert [line["message_id"] for line in lines] == [ID, "<touch-2@example.com>"]
            assert all(line["began"] < line["accepted"] for line in lines)
        finally:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
