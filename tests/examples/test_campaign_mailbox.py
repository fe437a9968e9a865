"""A mailbox that is read over IMAP: a reply ends the campaign, and the mailbox stays as it is."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from imap_tools import BaseMailBox, MailBoxUnencrypted

from examples.campaign import inbound
from examples.campaign.app import App
from examples.campaign.inbound import Inbound, read_mailbox
from tests.examples import campaigns
from tests.examples.campaigns import BO, CY, PLAN, World, bounce, reply
from tests.examples.imap_server import HOST, PASSWORD, USER, MailServer

office, sqlite_office = campaigns.office, campaigns.sqlite_office
AL, DI, MUM = "al@example.org", "di@example.org", "mum@home.example"


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server


def read(office: World, server: MailServer) -> int:
    def connect() -> BaseMailBox:
        box = MailBoxUnencrypted(HOST, server.port, timeout=20)
        return box.login_utf8(USER, PASSWORD, initial_folder=None)

    taken = read_mailbox(office.app, connect)
    office.drive()
    return taken


def test_mail_about_a_contact_ends_its_thread_and_private_mail_is_not_kept(
    office: World, server: MailServer
) -> None:
    office.campaign(PLAN, BO, AL, CY, DI)
    [di] = office.rows("SELECT token FROM contacts WHERE address = :di", di=DI)
    assert read(office, server) == 0
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
    assert read(office, server) == 3
    assert read(office, server) == 0
    found = [office.member(address=one) for one in (BO, AL, CY, DI)]
    assert found == ["replied", "bounced", "active", "unsubscribed"]
    assert server.state() == before
    assert not any(b"Seen" in line for line in before)
    stored = str(office.rows("SELECT * FROM messages"))
    assert not any(word in stored for word in (MUM, "lunch", "choir", "wine"))


def test_mail_from_before_the_first_letter_is_not_read(
    sqlite_office: World, server: MailServer
) -> None:
    office = sqlite_office
    server.deliver(reply(), office.clock.time - 9 * campaigns.DAY)
    office.campaign()
    office.drive()
    assert read(office, server) == 0
    server.deliver(reply(), office.clock.time)
    assert read(office, server) == 1
    office.ends("replied")


def test_a_mailbox_with_new_uids_is_read_again_and_nothing_is_missed(
    sqlite_office: World, server: MailServer
) -> None:
    office = sqlite_office
    office.campaign(PLAN, BO, CY)
    office.drive()
    server.deliver(reply(), office.clock.time)
    assert read(office, server) == 1
    office.app.database.write(campaigns.sql("UPDATE mailboxes SET validity = validity + 1"))
    server.deliver(reply(sender=CY), office.clock.time)
    assert read(office, server) == 2
    assert len(office.rows("SELECT * FROM messages")) == 2
    office.ends("replied", address=CY)


def test_a_reader_that_dies_reads_the_mail_again(
    sqlite_office: World, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    server.deliver(reply(), office.clock.time)

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for patched in ("receive", "_signal"):
        with monkeypatch.context() as patch:
            patch.setattr(Inbound, patched, dies)
            with pytest.raises(KeyboardInterrupt):
                read(office, server)
    assert office.member() == "replied"
    assert read(office, server) == 1
    office.ends("replied")
    assert len(office.rows("SELECT * FROM messages")) == 1


def test_a_password_goes_out_only_to_a_server_that_proves_who_it_is(
    sqlite_office: World, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mailbox of the settings is always read over TLS."""
    settings = replace(
        sqlite_office.app.settings, imap_host=HOST, imap_port=server.port, imap_user=USER
    )
    monkeypatch.setattr(App, "settings", settings, raising=False)
    sqlite_office.app.settings = settings
    with pytest.raises((ssl.SSLError, OSError)):
        inbound.read_mailbox(sqlite_office.app)
