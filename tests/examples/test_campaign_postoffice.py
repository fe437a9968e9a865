"""The campaign's mail provider: its faults, its log, which is the judge, and its look-up."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest

from examples.campaign.demo.postoffice import Fault, Faults, Mail, Moment, PostOffice
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
