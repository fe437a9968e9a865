"""A campaign sends its touches over a month, each once, as its cadence says.

The post office's own log decides what was sent.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from examples.campaign import writer
from examples.campaign.cadence import Cadence
from tests.examples.campaigns import BO, CY, DAY, MONDAY, PLAN, TWO, World, world
from tests.examples.campaigns import office as office
from tests.examples.campaigns import sqlite_office as sqlite_office

HOUR = timedelta(hours=1)

# -- a month


def test_six_touches_go_out_in_a_month(office: World) -> None:
    office.campaign()
    office.sleep_through()
    days = [0, 4, 11, 18, 25, 32]
    assert office.dates() == [MONDAY + timedelta(days=day) for day in days]
    assert office.touch_states() == ["sent"] * 6
    office.ends("finished")
    assert office.clock.time == MONDAY + 39 * DAY  # a last reply has a week


def test_the_reader_sees_the_touches_as_one_thread(sqlite_office: World) -> None:
    sqlite_office.campaign(cadence=Cadence((0, 1, 1)))
    sqlite_office.sleep_through()
    first, second, third = sqlite_office.sent()
    assert "In-Reply-To" not in first.content
    assert f"In-Reply-To: {first.message_id}\r\n" in second.content
    assert f"In-Reply-To: {second.message_id}\r\n" in third.content


@pytest.mark.parametrize(
    ("zone", "begins", "expected"),
    [
        ("Asia/Tokyo", MONDAY, ["2030-01-08T00:00", "2030-01-14T00:00"]),  # closed; then a Saturday
        ("America/Los_Angeles", MONDAY, ["2030-01-07T17:00", "2030-01-11T17:00"]),
        (
            "Europe/Berlin",
            datetime(2030, 3, 28, 9, tzinfo=UTC),
            ["2030-03-28T09:00", "2030-04-01T08:00"],
        ),
        (
            "Europe/Berlin",
            datetime(2030, 10, 25, 9, tzinfo=UTC),
            ["2030-10-25T09:00", "2030-10-29T10:00"],
        ),
        ("UTC", MONDAY + 5 * DAY, ["2030-01-14T09:00", "2030-01-18T09:00"]),
        ("UTC", MONDAY + 8 * HOUR, ["2030-01-08T09:00", "2030-01-14T09:00"]),
    ],
    ids=["Tokyo", "Los Angeles", "to summer time", "to winter time", "a Saturday", "at closing"],
)
def test_a_touch_goes_out_in_the_hours_of_its_contact(
    sqlite_url: str, zone: str, begins: datetime, expected: list[str]
) -> None:
    with world(sqlite_url, at=begins) as office:
        office.campaign(cadence=TWO, zone=zone)
        office.sleep_through()
        assert [f"{date:%Y-%m-%dT%H:%M}" for date in office.dates()] == expected


def test_a_late_tick_sends_one_touch_and_counts_from_then(sqlite_office: World) -> None:
    sqlite_office.campaign(cadence=Cadence((0, 4, 7)))
    sqlite_office.advance(21 * DAY)
    assert len(sqlite_office.sent()) == 1
    sqlite_office.advance(timedelta(days=3, hours=23))
    assert len(sqlite_office.sent()) == 1
    sqlite_office.advance(HOUR)
    assert len(sqlite_office.sent()) == 2


def test_a_run_says_whose_it_is_which_touch_is_next_and_who_drives_it(office: World) -> None:
    campaign_id = office.campaign(cadence=TWO)
    whose = {"campaign_id": campaign_id, "contact_id": office.contact()}
    assert office.run().metadata == {**whose, "sequence_step": 1}
    office.drive()
    run = office.run()
    assert run.thread_id == f"campaign-{campaign_id}-{office.contact()}"
    assert run.metadata == {**whose, "sequence_step": 2}
    assert "runtime:cron" in run.tags
    office.clock.advance(4 * DAY)
    office.app.runtime.blocking.work(until_idle=True)
    assert "runtime:worker" in office.run().tags
    [found] = office.app.runtime.blocking.runs(metadata={"campaign_id": campaign_id})
    assert found.id == run.id


def test_concurrent_launches_start_nothing_twice(office: World) -> None:
    campaign_id = office.app.create(PLAN)
    office.enrol(campaign_id, BO, CY)
    with ThreadPoolExecutor() as pool:
        list(pool.map(office.app.launch, [campaign_id] * 4))
    assert len(office.app.runtime.blocking.runs()) == 2


def test_a_member_added_later_starts_with_the_next_launch(sqlite_office: World) -> None:
    campaign_id = sqlite_office.campaign(cadence=TWO)
    sqlite_office.advance(DAY)
    sqlite_office.enrol(campaign_id, BO, CY)
    assert sqlite_office.app.launch(campaign_id) == 1
    sqlite_office.sleep_through()
    assert len(sqlite_office.sent()) == len(sqlite_office.sent(CY)) == 2


def test_a_contact_without_a_name_is_greeted_without_one(sqlite_office: World) -> None:
    campaign_id = sqlite_office.app.create(PLAN)
    sqlite_office.app.import_contacts(campaign_id, f"email,name,company\n{BO},,Ltd\n{CY},,\n")
    sqlite_office.app.launch(campaign_id)
    sqlite_office.drive()
    for address in (BO, CY):
        [touch] = sqlite_office.touches(address=address)
        assert touch["body"].startswith("Hello,\n")
    prompt = writer.prompt_for(step=1, steps=6, brief="Tables", name="", company="Ltd")
    assert "name is not known" in prompt
    named = writer.prompt_for(step=1, steps=6, brief="Tables", name="Bo", company="")
    assert "The person: Bo\n" in named
    assert writer.Scripted().invoke(named).text.splitlines()[2] == "Hello Bo,"


# -- rules
