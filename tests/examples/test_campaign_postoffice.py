"""The campaign's mail provider: its faults, its log, which is the judge, and its look-up."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from examples.campaign.demo.postoffice import (
    Fault,
    Faults,
    Mail,
    Moment,
    PostOffice,
    random_faults,
)
from tests.support.polling import until

ROOT = Path(__file__).parents[2]
BO = "bo@example.org"
ID = "<touch-1@example.com>"
HOST = "127.0.0.1"


def content(message_id: str = ID, subject: str = "Hello") -> str:
    return f"From: ana@example.com\r\nSubject: {subject}\r\nMessage-ID: {message_id}\r\n\r\nHi.\r\n"


def post(port: int, recipient: str = BO, message_id: str = ID, timeout: float = 20.0) -> None:
    """A plain client, which is not ours."""
    with smtplib.SMTP(HOST, port, "localhost", timeout) as smtp:
        smtp.sendmail("ana@example.com", [recipient], content(message_id))


def look_up(office: PostOffice, message_id: str = ID) -> int:
    """The status of a look-up."""
    url = office.lookup_url.replace("{message_id}", quote(message_id, safe=""))
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            assert json.load(response)["message_id"] == message_id
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def converse(sender: socket.socket, content: str) -> None:
    """All of a conversation but its last answer."""
    with sender.makefile("rb") as answers:
        for line in ("EHLO me", "MAIL FROM:<ana@example.com>", f"RCPT TO:<{BO}>", "DATA", content):
            while answers.readline()[3:4] == b"-":
                pass
            sender.sendall(f"{line}\r\n".encode())
    sender.sendall(b".\r\n")


def always(fault: Fault) -> Faults:
    return lambda recipient, attempt: fault


def test_an_accepted_mail_is_in_the_log_and_can_be_looked_up() -> None:
    with PostOffice() as office:
        assert look_up(office) == 404
        post(office.smtp_port)
        [mail] = office.log
        assert (mail.message_id, mail.sender, mail.recipient) == (ID, "ana@example.com", BO)
        assert (mail.subject, mail.content) == ("Hello", content())
        assert mail.accepted is not None
        assert mail.began < mail.accepted
        assert (look_up(office), look_up(office, "<another@example.com>")) == (200, 404)


def test_a_mail_sent_twice_is_in_the_log_twice() -> None:
    with PostOffice() as office:
        post(office.smtp_port)
        post(office.smtp_port)
        first, second = office.log
        assert (first.message_id, second.message_id) == (ID, ID)
        assert (first.attempt, second.attempt) == (1, 2)
        assert first.conversation != second.conversation
        assert look_up(office) == 200


@pytest.mark.parametrize(
    ("fault", "code", "accepted"),
    [
        (Fault.REJECT_RECIPIENT, 550, False),
        (Fault.REJECT_BARE, 550, False),
        (Fault.GREYLIST, 451, False),
        (Fault.BUSY, 421, False),
        (Fault.HANG_UP, None, False),
        (Fault.REJECT_DATA, 554, False),
        (Fault.DROP_BEFORE, None, False),
        (Fault.DROP_AFTER, None, True),
        (Fault.LATE, None, True),
    ],
)
def test_each_fault_is_what_a_plain_client_sees_and_the_log_says(
    fault: Fault, code: int | None, accepted: bool
) -> None:
    with PostOffice(always(fault), late=60) as office:
        with pytest.raises(smtplib.SMTPException) as raised:
            post(office.smtp_port, timeout=0.5 if fault is Fault.LATE else 20)
        if isinstance(raised.value, smtplib.SMTPRecipientsRefused):
            assert raised.value.recipients[BO][0] == code
        else:
            assert getattr(raised.value, "smtp_code", None) == code
        assert [mail.message_id for mail in office.log] == ([ID] if accepted else [])
        assert look_up(office) == (200 if accepted else 404)
        [conversation] = office.conversations
        assert conversation.fault is fault


def test_a_look_up_can_be_down() -> None:
    with PostOffice() as office:
        post(office.smtp_port)
        office.lookup_down = True
        assert look_up(office) == 503


def test_chance_depends_on_the_seed_the_recipient_and_the_attempt_alone() -> None:
    asked = [(f"c{n}@example.org", attempt) for n in range(300) for attempt in range(1, 4)]

    def drawn(seed: int, order: list[tuple[str, int]]) -> dict[tuple[str, int], Any]:
        faults = random_faults(seed, 0.2)
        return {one: faults(*one) for one in order}

    first = drawn(1, asked)
    assert first == drawn(1, asked[::-1])
    assert first != drawn(2, asked)
    tries = [{first[f"c{n}@example.org", attempt] for attempt in range(1, 4)} for n in range(300)]
    assert any(len(fates) > 1 for fates in tries)
    assert {fault for fault in first.values() if fault} == set(Fault)
    assert 0.1 < sum(fault is not None for fault in first.values()) / len(asked) < 0.3


def test_the_watcher_is_called_at_each_moment_and_the_conversation_waits() -> None:
    seen: list[tuple[Moment, int, str]] = []

    def watch(moment: Moment, mail: Mail) -> None:
        assert mail.recipient == BO
        seen.append((moment, len(office.log), mail.message_id))

    with PostOffice(on=watch) as office:
        post(office.smtp_port)
        until(lambda: len(seen) == 4, "an answer")
    assert seen == [
        (Moment.BEGAN, 0, ""),
        (Moment.DATA, 0, ID),
        (Moment.ACCEPTED, 1, ID),
        (Moment.ANSWERED, 1, ID),
    ]


def test_what_a_watcher_raises_is_raised_at_the_end() -> None:
    def watch(moment: Moment, mail: Mail) -> None:
        assert moment is not Moment.DATA, "seen"

    def block() -> None:
        with PostOffice(on=watch) as office:
            post(office.smtp_port)

    with pytest.raises(AssertionError, match="seen"):
        block()


def test_a_mail_that_is_being_received_is_neither_known_nor_unknown() -> None:
    statuses: list[int] = []

    def watch(moment: Moment, mail: Mail) -> None:
        if moment in (Moment.DATA, Moment.ACCEPTED):
            statuses.append(look_up(office))

    with PostOffice(on=watch) as office:
        post(office.smtp_port)
        assert [*statuses, look_up(office)] == [503, 200, 200]


def test_a_mail_whose_sender_dies_when_the_content_has_arrived_is_accepted() -> None:
    gone = threading.Event()
    with PostOffice(on=lambda moment, mail: moment is Moment.DATA and gone.wait(20)) as office:
        with socket.create_connection((HOST, office.smtp_port), 20) as sender:
            converse(sender, content())
            until(lambda: office.conversations[0].reached is Moment.DATA, "the content")
        until(lambda: not office.desks, "the end of the connections")
        assert (look_up(office), office.log) == (503, [])
        gone.set()
        until(lambda: look_up(office) == 200, "the mail")
        assert len(office.log) == 1


def test_a_look_up_that_says_no_stays_true_of_what_was_sent_before_it() -> None:
    with PostOffice() as office:
        said: dict[str, int] = {}
        for number in range(40):
            id = f"<touch-{number}@example.com>"
            with socket.create_connection((HOST, office.smtp_port), 20) as sender:
                converse(sender, content(id))
            said[id] = look_up(office, id)
        until(lambda: not office.desks, "the end of the connections")
        logged = {mail.message_id for mail in office.log}
        assert [id for id, status in said.items() if status == 404 and id in logged] == []


def test_in_a_process_of_its_own_it_writes_its_log_for_others_to_judge(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "examples.campaign.demo.postoffice", "--log", str(log)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            smtp, address, lookup, url = process.stdout.readline().split()
            assert (smtp, lookup) == ("smtp", "lookup")
            assert url.startswith("http://127.0.0.1:")
            post(int(address.rpartition(":")[2]))
            post(int(address.rpartition(":")[2]), message_id="<touch-2@example.com>")
            lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
            assert [line["message_id"] for line in lines] == [ID, "<touch-2@example.com>"]
            assert all(line["began"] < line["accepted"] for line in lines)
        finally:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
