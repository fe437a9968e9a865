"""A campaign sends its touches over a month, each once, as its cadence says.

The post office's own log decides what was sent.
"""

from __future__ import annotations

import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from examples.campaign import writer
from examples.campaign.agent import Agent
from examples.campaign.app import Launched
from examples.campaign.cadence import Cadence
from tests.support.campaign_ends import (
    CY,
    TWO,
    ends,
)
from tests.support.campaigns import BO, DAY, HELD, MONDAY, PLAN, World, reply, world
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office

HOUR = timedelta(hours=1)

# -- a month


def test_six_touches_go_out_in_a_month(office: World) -> None:
    office.campaign()
    office.sleep_through()
    days = [0, 4, 11, 18, 25, 32]
    assert office.dates() == [MONDAY + timedelta(days=day) for day in days]
    assert office.touch_states() == ["sent"] * 6
    ends(office, "finished")
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


def test_a_touch_keeps_the_version_of_its_prompt_and_the_run_that_sent_it(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_office.campaign(cadence=TWO)
    sqlite_office.drive()
    changed = writer.PROMPT + "P. S."
    monkeypatch.setattr(writer, "PROMPT", changed)
    monkeypatch.setattr(writer, "PROMPT_VERSION", writer.version_of(changed))
    sqlite_office.sleep_through()
    first, second = sqlite_office.touches()
    assert first["prompt_version"] != second["prompt_version"]
    assert {first["run_id"], second["run_id"]} == {sqlite_office.run().id}


def test_launching_twice_starts_nothing_twice(office: World) -> None:
    campaign_id = office.campaign(PLAN, BO, CY)
    office.drive()
    assert office.app.launch(campaign_id).threads == 0
    office.drive()
    assert len(office.app.runtime.blocking.runs()) == 2
    assert len(office.office.log) == 2


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
    assert sqlite_office.app.launch(campaign_id).threads == 1
    sqlite_office.sleep_through()
    assert len(sqlite_office.sent()) == len(sqlite_office.sent(CY)) == 2


@pytest.mark.parametrize(
    ("zones", "now", "due", "zone"),
    [
        (["UTC"], 1, None, ""),
        (["America/New_York"], 0, MONDAY + timedelta(hours=5), "America/New_York"),
        (["Asia/Tokyo", "America/New_York"], 0, MONDAY + timedelta(hours=5), "America/New_York"),
        (["UTC", "UTC", "Asia/Tokyo"], 2, MONDAY + timedelta(hours=15), "Asia/Tokyo"),
    ],
    ids=["now", "later today", "the first of two", "some now, one tomorrow"],
)
def test_a_launch_says_when_the_first_touch_goes_out(
    sqlite_office: World, zones: list[str], now: int, due: datetime | None, zone: str
) -> None:
    sqlite_office.clock.move_to(MONDAY)
    campaign_id = sqlite_office.app.create(PLAN)
    for number, one in enumerate(zones):
        sqlite_office.enrol(campaign_id, f"p{number}@example.org", zone=one)
    launched = sqlite_office.app.launch(campaign_id)
    assert launched == Launched(len(zones), now, due, zone)
    sqlite_office.drive()
    while not sqlite_office.office.log:
        sqlite_office.advance(HOUR)
    assert sqlite_office.clock.time == (MONDAY if now else due)


def test_a_contact_without_a_name_is_greeted_without_one(sqlite_office: World) -> None:
    campaign_id = sqlite_office.app.create(PLAN)
    sqlite_office.app.bring(campaign_id, f"email,name,company\n{BO},,Ltd\n{CY},,\n")
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


# -- cadence


@pytest.mark.parametrize(("days", "when"), [(2, 2), (9, 9)], ids=["sooner", "later"])
def test_a_change_of_cadence_applies_to_threads_that_sleep(
    office: World, days: int, when: int
) -> None:
    campaign_id = office.campaign(cadence=TWO)
    office.drive()
    office.clock.advance(DAY)
    assert office.edit(campaign_id, gaps=(0, days)) == 2
    office.drive()
    assert office.due() == MONDAY + timedelta(days=when)
    office.sleep_through()
    assert office.dates() == [MONDAY, MONDAY + timedelta(days=when)]


def test_a_touch_that_a_new_cadence_makes_due_goes_out_now(office: World) -> None:
    campaign_id = office.campaign(cadence=TWO)
    office.drive()
    office.clock.advance(2 * DAY)
    office.edit(campaign_id, gaps=(0, 1))
    office.drive()
    assert office.dates() == [MONDAY, MONDAY + 2 * DAY]


def test_fewer_touches_end_a_thread_that_has_sent_them(office: World) -> None:
    campaign_id = office.campaign()
    office.drive()
    office.advance(4 * DAY)
    office.edit(campaign_id, gaps=(0,))
    office.sleep_through()
    assert len(office.sent()) == 2
    ends(office, "finished")


def test_a_change_of_cadence_leaves_a_held_draft_in_the_inbox(office: World) -> None:
    campaign_id = office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    office.edit(campaign_id, gaps=(9, 9), days=frozenset({6}))
    office.drive()
    assert [one.id for one in office.questions()] == [question.id]


def test_a_change_of_cadence_before_the_launch_does_no_harm(office: World) -> None:
    campaign_id = office.app.create(PLAN)
    office.enrol(campaign_id, BO)
    office.edit(campaign_id, gaps=(0, 1))
    office.app.launch(campaign_id)
    office.sleep_through()
    assert office.dates() == [MONDAY, MONDAY + DAY]


# -- never twice


def test_two_campaigns_of_a_sequence_send_each_step_once(office: World) -> None:
    office.campaign(cadence=TWO)
    office.drive()
    office.clock.advance(DAY)
    office.campaign(name="again", cadence=TWO)
    office.sleep_through()
    assert office.dates() == [MONDAY, MONDAY + 4 * DAY]
    states = zip(office.touch_states(1), office.touch_states(2), strict=True)
    assert next(states) == ("sent", "duplicate")
    assert set(next(states)) == {"sent", "duplicate"}  # both were due, and one of them was first
    ends(office, "finished", 1)
    ends(office, "finished", 2)
    assert len(office.scores(1)) + len(office.scores(2)) == 2


def test_concurrent_campaigns_of_a_sequence_send_each_step_once(office: World) -> None:
    for n in range(5):
        office.campaign(name=f"c{n}", cadence=TWO)
    office.sleep_through()
    assert len(office.sent()) == 2
    states = [office.touch_states(n + 1) for n in range(5)]
    assert sorted(one[0] for one in states) == ["duplicate"] * 4 + ["sent"]
    assert sorted(one[1] for one in states) == ["duplicate"] * 4 + ["sent"]


def test_a_reply_scores_the_campaign_that_sent_the_touch(office: World) -> None:
    office.campaign(cadence=TWO)
    office.drive()
    office.campaign(name="again", cadence=TWO)
    office.drive()
    office.receive(reply(office.sent()[0].message_id))
    assert (office.scores(1), office.scores(2)) == ({"touch 1": 1.0}, {})


def test_another_import_and_another_case_are_the_same_contact(office: World) -> None:
    campaign_id = office.campaign(cadence=TWO)
    office.drive()
    office.enrol(campaign_id, "BO@EXAMPLE.ORG")
    second = office.app.create(replace(PLAN, name="again", cadence=TWO))
    office.enrol(second, "Bo@Example.org")
    office.app.launch(campaign_id)
    office.app.launch(second)
    office.sleep_through()
    assert len(office.office.log) == 2


def test_another_sequence_writes_to_the_same_contact(office: World) -> None:
    office.campaign(cadence=TWO)
    office.campaign(name="autumn", sequence="other", cadence=TWO)
    office.sleep_through()
    assert len({mail.message_id for mail in office.sent()}) == 4


# -- rules


@pytest.mark.parametrize(
    "node",
    ["check_reply", "compose_touch", "approval", "_release", "send_touch", "schedule_next", "_end"],
)
def test_nodes_use_only_the_recorded_clock_and_randomness(node: str) -> None:
    source = inspect.getsource(getattr(Agent, node))
    assert not re.search(
        r"(?<!perdure\.)\b(time|uuid|random|monotonic|now|today)\(|\btime\.", source
    )
