"""A mailbox that is read over IMAP: a reply ends the campaign, and the mailbox stays as it is."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import ssl
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.campaign import imap, mailbox
from examples.campaign.__main__ import main
from examples.campaign.imap import Account, Connection, MailboxTrouble, MailNotGiven
from examples.campaign.mailbox import Mailbox
from examples.campaign.settings import Settings
from perdure.types import State
from tests.examples.test_campaign_mail import certificate as certificate
from tests.examples.test_campaign_people import mentions
from tests.support.campaigns import BO, DAY, PLAN, World, bounce, reply
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office
from tests.support.fork_server import ForkServer
from tests.support.imap_server import HOST, PASSWORD, USER, MailServer
from tests.support.polling import until

AL, CY, DI = "al@example.org", "cy@example.org", "di@example.org"
MUM = "mum@home.example"


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer() as made:
        yield made


def account(server: MailServer, folder: str = "INBOX") -> Account:
    return Account(HOST, server.port, USER, PASSWORD, folder, encrypted=False)


def variables(server: MailServer) -> dict[str, str]:
    """The settings for this server."""
    given = {"HOST": HOST, "PORT": str(server.port), "USER": USER, "PASSWORD": PASSWORD}
    return {f"CAMPAIGN_IMAP_{name}": value for name, value in {**given, "TLS": "no"}.items()}


@contextlib.contextmanager
def reading(office: World, server: MailServer, folder: str = "INBOX") -> Iterator[Mailbox]:
    with contextlib.closing(Mailbox(office.app, account(server, folder))) as made:
        yield made


def ends(office: World) -> dict[str, str]:
    rows = office.rows(
        "SELECT c.address, m.status FROM members m JOIN contacts c ON c.id = m.contact_id"
    )
    return {row["address"]: row["status"] for row in rows}


# -- what is taken in


def test_mail_about_a_contact_ends_its_thread_and_private_mail_is_not_kept(
    office: World, server: MailServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "campaign")
    office.campaign(PLAN, BO, AL, CY, DI)
    [di] = office.rows("SELECT token FROM contacts WHERE address = :di", di=DI)
    with reading(office, server) as inbox:
        assert inbox.read() == 0
        office.drive()
        for mail in (
            reply(sender=MUM, subject="Sunday lunch", text="Please unsubscribe me from the choir."),
            reply(office.message_id(1)),
            bounce(office.message_id(1, address=AL), AL),
            reply("<somebody@else>", sender=MUM, text="Bring wine"),
            office.sent(CY)[0].content.encode(),  # a copy of ours
            reply(sender="di@elsewhere.example", To=f"unsubscribe+{di['token']}@example.com"),
        ):
            server.deliver(mail, office.clock.time)
        before = server.state()
        assert inbox.read() == 3
        assert inbox.read() == 0
    office.drive()
    assert ends(office) == {BO: "replied", AL: "bounced", CY: "active", DI: "unsubscribed"}
    assert office.run().state is State.DONE
    assert server.state() == before
    assert not any(b"Seen" in line for line in before)
    assert len(office.rows("SELECT id FROM messages")) == 3
    assert mentions(office.app.settings.url, MUM, "Sunday lunch", "choir", "Bring wine") == set()
    assert MUM not in caplog.text
    assert f"reply from {BO}" in caplog.text


def test_the_beginning_of_a_large_mail_is_read(
    sqlite_office: World, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = sqlite_office
    monkeypatch.setattr(imap, "PART", 10_000)
    office.campaign()
    office.drive()
    mail = reply(text="See what is attached, and remove me from your list.")
    mail.add_attachment(os.urandom(100_000), maintype="image", subtype="png")
    server.deliver(mail, office.clock.time)
    with reading(office, server) as inbox:
        assert inbox.read() == 1
    assert office.member() == "unsubscribed"


def test_a_mail_that_the_server_does_not_return_is_finally_skipped(
    sqlite_office: World,
    server: MailServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    office, fetch = sqlite_office, Connection.fetch
    monkeypatch.setattr(mailbox, "EVERY", 0.0)
    office.campaign()
    office.drive()
    server.deliver(reply(sender=MUM), office.clock.time)
    server.deliver(reply(), office.clock.time)
    asked: list[int] = []

    def broken(connection: Connection, uid: int) -> bytes | None:
        asked.append(uid)
        if uid == asked[0]:
            raise MailNotGiven(f"FETCH {uid}: Command Error. 12")
        return fetch(connection, uid)

    monkeypatch.setattr(Connection, "fetch", broken)
    with reading(office, server) as inbox:
        for _ in range(mailbox.TRIES):
            assert office.member() == "active"
            inbox.look()
    assert office.member() == "replied"
    assert asked == [asked[0]] * mailbox.TRIES + [asked[0] + 1]
    assert f"skipping mail {asked[0]}" in caplog.text


# -- where it begins


def test_mail_from_before_the_first_letter_is_not_a_reply(
    sqlite_office: World, server: MailServer
) -> None:
    office = sqlite_office
    server.deliver(reply(), office.clock.time - 3 * DAY)
    office.campaign(PLAN, BO, AL)
    office.drive()
    server.deliver(reply(sender=AL), office.clock.time)
    office.advance(3 * DAY)
    with reading(office, server) as inbox:  # for the first time, with letters sent
        assert inbox.read() == 1
        assert ends(office) == {BO: "active", AL: "replied"}
        server.deliver(reply(), office.clock.time)
        assert inbox.read() == 1
    assert ends(office) == {BO: "replied", AL: "replied"}


def test_a_mailbox_with_new_uids_is_read_again_and_nothing_is_missed(
    sqlite_office: World, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "EVERY", 0.0)
    office, folder = sqlite_office, "Antwörten & more"
    with server.person() as person:
        person.create('"Antw&APY-rten &- more"')
    office.campaign(PLAN, BO, AL)
    with reading(office, server, folder) as inbox:
        assert inbox.read() == 0
        office.drive()
        quoted = imap._quoted(folder)
        server.deliver(reply(sender=MUM), office.clock.time - timedelta(days=30), quoted)
        server.deliver(reply(), office.clock.time, quoted)
        assert inbox.read() == 1
        [before] = office.rows("SELECT * FROM mailboxes")
        server.deliver(reply(sender=AL), office.clock.time, quoted)
        server.rebuild(quoted)
        for _ in range(3):  # first it is told that the folder it has open is gone
            inbox.look()
    [after] = office.rows("SELECT * FROM mailboxes")
    assert after["validity"] != before["validity"]
    assert ends(office) == {BO: "replied", AL: "replied"}
    assert len(office.rows("SELECT id FROM messages")) == 2


# -- kills and outages


def test_killed_after_each_of_its_writes_it_takes_each_mail_in_once(
    sqlite_office: World, server: MailServer, fork_server: ForkServer
) -> None:
    office = sqlite_office
    to_read = asdict(Settings.read(variables(server)))
    settings = asdict(office.app.settings) | {
        name: value for name, value in to_read.items() if name.startswith("imap_")
    }
    asked: dict[str, Any] = {"settings": settings, "at": office.clock.time.isoformat()}
    office.campaign()
    office.drive()
    for mail in (reply(), reply(sender=MUM)):
        server.deliver(mail, office.clock.time)
    written = []
    while (ended := fork_server.run("mailbox_child:read_until_written", **asked)).status:
        assert ended.status == -signal.SIGKILL
        written.append(ended.one("written"))
    begun, taken_in, told, past_his, past_hers = written
    assert (taken_in, told) == ("messages", "messages")
    assert (begun, past_his, past_hers) == ("mailboxes", "mailboxes", "mailboxes")
    with reading(office, server) as inbox:
        assert inbox.read() == 0
    office.drive()
    assert (office.member(), office.run().state) == ("replied", State.DONE)
    assert office.rows("SELECT address FROM messages") == [{"address": BO}]


def test_reading_resumes_after_the_server_was_down(
    sqlite_office: World,
    server: MailServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    office = sqlite_office
    caplog.set_level(logging.INFO, "campaign")
    monkeypatch.setattr(mailbox, "EVERY", 0.0)
    office.campaign()
    with reading(office, server) as inbox:
        server.down()
        inbox.look()  # not up yet: no reason to give up
        server.up()
        inbox.look()
        office.drive()
        server.deliver(reply(), office.clock.time)
        server.down()
        inbox.look()
        inbox.look()
        server.up()
        inbox.look()
    assert office.member() == "replied"
    problems = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [("EOF" in one, "Refused" in one) for one in problems] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    assert caplog.text.count("reached again") == 2


def test_pauses_grow_while_there_is_trouble(
    sqlite_office: World, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tried = [0.0], []
    monkeypatch.setattr("examples.campaign.mailbox.time.monotonic", lambda: now[0])

    def down(*_: object) -> int:
        tried.append(now[0])
        raise MailboxTrouble("down")

    monkeypatch.setattr(Mailbox, "read", down)
    with reading(sqlite_office, server) as inbox:
        for now[0] in range(0, 3000, 5):
            inbox.look()
    pauses = [later - one for one, later in itertools.pairwise(tried)]
    assert pauses[:6] == [30, 60, 120, 240, 480, 600]
    assert set(pauses[5:]) == {600}


# -- the account


def test_a_password_goes_out_only_to_a_server_that_proves_who_it_is(
    sqlite_office: World, certificate: Path
) -> None:
    proof = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    proof.load_cert_chain(certificate)
    with MailServer(proof) as server:
        safe = replace(account(server), host="localhost", encrypted=True)
        assert PASSWORD not in repr(safe)
        with pytest.raises(MailboxTrouble, match=r"connecting to .*CERTIFICATE_VERIFY_FAILED"):
            Mailbox(sqlite_office.app, safe).read()
        trusting = ssl.create_default_context(cafile=str(certificate))
        with contextlib.closing(Mailbox(sqlite_office.app, safe, trusting)) as inbox:
            assert inbox.read() == 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"CAMPAIGN_IMAP_PASSWORD": "wrong"},
            f"logging in as {USER}: [AUTHENTICATIONFAILED]",
        ),
        ({"CAMPAIGN_IMAP_FOLDER": "Elsewhere"}, "opening Elsewhere: [NONEXISTENT]"),
        ({"CAMPAIGN_IMAP_HOST": ""}, "CAMPAIGN_IMAP_HOST is not set"),
    ],
    ids=["password", "folder", "host"],
)
def test_a_wrong_setting_is_an_error_at_the_start(
    sqlite_url: str,
    server: MailServer,
    changed: dict[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {**variables(server), **changed}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PERDURE_URL", sqlite_url)
    monkeypatch.setattr(sys, "argv", ["campaign", "inbound", "--imap"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith(f"campaign: {told}"), said
    assert next(iter(changed)) in said


def test_a_refusal_of_a_mailbox_that_was_read_before_is_retried(
    sqlite_office: World,
    server: MailServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Providers refuse a login for a while, and passwords are changed while this runs."""
    monkeypatch.setattr(mailbox, "EVERY", 0.0)
    with reading(sqlite_office, server) as inbox:
        inbox.look()
        server.down()  # so that it has to log in again
        server.up()
        inbox.look()
        inbox._account = replace(account(server), password="wrong")
        inbox.look()
    assert "AUTHENTICATIONFAILED" in caplog.text


def test_the_command_reads_until_stopped(
    sqlite_office: World, server: MailServer, fork_server: ForkServer
) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    server.deliver(reply(), office.clock.time)
    environment = {"PERDURE_URL": office.app.settings.url, **variables(server)}
    with fork_server.child("mailbox_child:command", environment=environment) as child:
        until(lambda: office.member() == "replied", "a reply that was read")
        child.send(signal.SIGTERM)
        assert child.wait() == 0
        assert child.facts == [["code", 0]]
