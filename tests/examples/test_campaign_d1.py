"""The campaign's own tables on D1, when answers are lost: a batch sent again does no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.campaign import database
from examples.campaign.app import Plan
from examples.campaign.cadence import Window
from examples.campaign.contacts import Report
from examples.campaign.records import begin, go_on, permission
from examples.campaign.turns import TURN, Booking, book
from perdure.errors import Unavailable
from tests.support.campaigns import BO, PLAN, World, reply, world
from tests.support.faulty_proxy import Fault, FaultyProxy

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
    proxy.script(None, fault)  # it reads, and then it writes
    assert office.app.create(PLAN) == 1
    assert proxy.seen[fault] == 1
    with pytest.raises(ValueError, match="already"):
        office.app.create(PLAN)
    assert office.app.create(Plan("autumn", "", "ana@example.com")) == 2


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_an_import_reports_those_it_added_as_added(
    office: World, proxy: FaultyProxy, fault: Fault
) -> None:
    campaign_id = office.app.create(PLAN)
    proxy.script(None, fault)
    assert office.app.bring(campaign_id, SHEET) == Report(2, 0, [])
    assert proxy.seen[fault] == 1
    assert office.app.bring(campaign_id, SHEET) == Report(0, 2, [])
    assert [row["id"] for row in office.rows("SELECT id FROM contacts ORDER BY id")] == [1, 2]


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_cadence_is_changed_once(office: World, proxy: FaultyProxy, fault: Fault) -> None:
    campaign_id = office.app.create(PLAN)
    proxy.script(None, fault)
    assert office.edit(campaign_id, gaps=(0, 1)) == 2
    assert proxy.seen[fault] == 1
    [row] = office.rows("SELECT version, gaps FROM campaigns")
    assert row == {"version": 2, "gaps": "[0, 1]"}


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_reply_is_taken_in_once_and_has_earned_its_touch(
    office: World, proxy: FaultyProxy, fault: Fault
) -> None:
    office.campaign()
    office.drive()
    mail = reply(office.message_id(1))
    proxy.script(None, None, fault)  # is it there, whose is it, and then it writes
    assert office.receive(mail)["run_id"] == office.run().id
    assert proxy.seen[fault] == 1
    assert len(office.rows("SELECT * FROM messages")) == 1
    assert office.scores() == {"touch 1": 1.0}


def test_a_batch_that_arrives_late_does_not_take_the_turn_of_the_next_attempt(
    office: World,
) -> None:
    office.campaign()
    office.drive()
    database, place = office.app.database, {"campaign_id": 1, "contact_id": 1, "step": 1}
    [[touch]] = database.read(permission(place, BO))
    late = begin(place, "first", touch["attempt"], 1_000)
    database.write(late)
    database.write(late, begin(place, "second", "first", 2_000), go_on(place, "second", 3_000))
    database.write(late, go_on(place, "first", 4_000), go_on(place, "second", 2_500))
    [row] = office.rows("SELECT attempt, attempt_at FROM touches")
    assert row == {"attempt": "second", "attempt_at": 3_000}
    assert len(office.sent(BO)) == 1


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_touch_is_booked_once_and_keeps_its_place(
    office: World, proxy: FaultyProxy, fault: Fault
) -> None:
    def turn(now: int) -> Booking:
        proxy.script(None, fault)
        return book(
            office.app.database,
            {"campaign_id": 1, "contact_id": 1, "step": 1},
            person=BO,
            domain="example.org",
            sender=PLAN.sender,
            sequence="default",
            per_day=1,
            apart=3,
            domain_pause=60.0,
            window=Window(days=frozenset(range(7))),
            zone="UTC",
            day_zone="UTC",
            now=now,
        )

    nine = 9 * 3_600_000
    assert turn(nine) == Booking(nine, nine + TURN)
    assert turn(nine + 60_000) == Booking(nine + 60_000, nine + 60_000 + TURN)
    assert proxy.seen[fault] == 2
    [row] = office.rows("SELECT at, place FROM bookings")
    assert row == {"at": nine + 60_000, "place": 1}


def test_a_full_database_is_retried_only_after_a_pause(
    office: World, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.5)
    proxy.script(*[Fault.FULL] * 20)
    with pytest.raises(Unavailable, match="full"):
        office.app.database.write(database.sql("SELECT 1"))
    assert proxy.seen[Fault.FULL] < 10
    proxy.clear()
