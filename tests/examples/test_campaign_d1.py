"""The campaign's own tables on D1, when answers are lost: a batch sent again does no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.campaign import database
from examples.campaign.records import begin_attempt, continue_attempt, permission
from perdure.errors import Unavailable
from tests.examples.campaigns import BO, HELD, PLAN, World, reply, world
from tests.support.proxy import Fault, FaultyProxy

LOST = [Fault.CUT_BEFORE, Fault.LOST_AFTER]
SHEET = "email\na@example.com\nb@example.com\n"


@pytest.fixture
def proxy(d1_url: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(d1_url) as proxy:
        yield proxy


@pytest.fixture
def office(proxy: FaultyProxy) -> Iterator[World]:
    with world(proxy.url) as made:
        yield made


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_campaign_is_created_once_and_has_its_id(
    office: World, proxy: FaultyProxy, fault: Fault
) -> None:
    proxy.script(fault)
    assert office.app.create(PLAN) == 1
    assert proxy.seen[fault] == 1
    with pytest.raises(ValueError, match="already"):
        office.app.create(HELD)


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_an_import_adds_each_contact_once(office: World, proxy: FaultyProxy, fault: Fault) -> None:
    campaign_id = office.app.create(PLAN)
    proxy.script(None, None, fault)  # the campaign, the contacts, and then it writes
    assert office.app.import_contacts(campaign_id, SHEET) == 2
    assert proxy.seen[fault] == 1
    assert office.app.import_contacts(campaign_id, SHEET) == 0
    assert [row["id"] for row in office.rows("SELECT id FROM contacts ORDER BY id")] == [1, 2]


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_reply_is_taken_in_once_and_has_earned_its_touch(
    office: World, proxy: FaultyProxy, fault: Fault
) -> None:
    office.campaign()
    office.drive()
    mail = reply(office.message_id(1))
    proxy.script(None, None, fault)  # what it quotes, whose it is, and then it writes
    row = office.receive(mail)
    assert row["run_id"] == office.run().id
    assert proxy.seen[fault] == 1
    assert len(office.rows("SELECT * FROM messages")) == 1
    assert office.scores() == {"touch 1": 1.0}


def test_a_batch_that_arrives_late_does_not_take_the_turn_of_the_next_attempt(
    office: World,
) -> None:
    office.campaign()
    office.drive()
    database, place = office.app.database, {"campaign_id": 1, "contact_id": 1, "step": 1}
    [[touch]] = database.read(permission(place))
    late = begin_attempt(place, "first", touch["attempt"], 1_000)
    database.write(late)
    second = continue_attempt(place, "second", 3_000)
    database.write(late, begin_attempt(place, "second", "first", 2_000), second)
    old = continue_attempt(place, "second", 2_500)
    database.write(late, continue_attempt(place, "first", 4_000), old)
    [row] = office.rows("SELECT attempt, attempt_at FROM touches")
    assert row == {"attempt": "second", "attempt_at": 3_000}
    assert len(office.sent(BO)) == 1


def test_a_full_database_is_retried_only_after_a_pause(
    office: World, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.5)
    proxy.script(*[Fault.FULL] * 20)
    with pytest.raises(Unavailable, match="full"):
        office.app.database.write(database.sql("SELECT 1"))
    assert proxy.seen[Fault.FULL] < 10
    proxy.clear()
