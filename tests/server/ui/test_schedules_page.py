"""Schedules in the browser: the list, the next times on two clocks, start now, disable, delete."""

from __future__ import annotations

import pytest

from perdure.runtime import Runtime
from perdure.views.formatting import short_id
from tests.support.agents import Log, chain
from tests.support.ui import Person, ui_account


def note(state: Log) -> Log:
    return {"log": ["noted"]}


GRAPHS = {"digest": chain(note)}


def make(rt: Runtime, name: str = "weekly", **more: object) -> None:
    options = {"cron": "0 9 * * 1", "timezone": "Europe/Rome", **more}
    rt.blocking.schedule(name, "digest", **options)  # type: ignore[arg-type]


def test_without_schedules_the_page_says_how_to_make_one(person: Person) -> None:
    page = person.get("/schedules")
    assert "No schedules yet." in page.text
    assert "perdure schedule NAME" in page.text


def test_a_schedule_is_listed_with_its_times_in_words(rt: Runtime, person: Person) -> None:
    make(rt)
    page = person.get("/schedules")
    assert "At 09:00 on Monday Europe/Rome" in page.text
    assert "enabled" in page.text


def test_the_next_ten_times_are_in_the_zone_of_the_reader_and_of_the_schedule(
    rt: Runtime, person: Person
) -> None:
    make(rt, cron="30 23 * * *", timezone="Pacific/Kiritimati")  # 14 hours ahead, all year
    person.http.cookies.set("perdure_zone", "Asia/Tokyo", path="/ui")  # 9 hours ahead, all year
    page = person.get("/schedules/one?name=weekly")
    assert page.html.count(", 18:30</td>") == 10
    assert page.html.count(">23:30</td>") == 10
    assert "Asia/Tokyo" in page.text
    assert "Pacific/Kiritimati" in page.text


def test_an_unknown_zone_of_the_browser_is_read_as_utc(rt: Runtime, person: Person) -> None:
    make(rt, timezone="UTC")
    person.http.cookies.set("perdure_zone", "../../etc/passwd", path="/ui")
    page = person.get("/schedules/one?name=weekly")
    assert page.status == 200
    assert "Your time UTC" in page.text


def test_a_run_is_started_now_once_however_often_the_form_is_sent(
    rt: Runtime, person: Person
) -> None:
    make(rt, input={"log": ["in"]})
    page = person.get("/schedules/one?name=weekly")
    page.submit("/schedules/start")
    page.submit("/schedules/start")
    [run] = rt.blocking.runs()
    assert run.metadata["schedule"] == "weekly"
    assert run.metadata["started_by"]
    assert short_id(run.id) in person.get("/schedules/one?name=weekly").text


def test_a_schedule_is_disabled_and_enabled_and_the_log_says_by_whom(
    rt: Runtime, person: Person, caplog: pytest.LogCaptureFixture
) -> None:
    make(rt)
    caplog.set_level("INFO", "perdure")
    off = person.get("/schedules/one?name=weekly").submit("/schedules/enable")
    assert "weekly is disabled and starts no runs." in off.text
    assert not rt.blocking.schedules()[0].enabled
    assert ", from 127.0.0.1, disabled a schedule: 'weekly'" in caplog.text
    on = off.submit("/schedules/enable")
    assert "weekly is enabled from its next time on." in on.text
    assert rt.blocking.schedules()[0].enabled


def test_it_is_deleted_only_after_the_consequence_was_shown(rt: Runtime, person: Person) -> None:
    make(rt)
    asked = person.get("/schedules/delete?name=weekly")
    assert "The runs it already started are kept." in asked.text
    assert len(rt.blocking.schedules()) == 1
    done = asked.submit("/schedules/delete")
    assert "weekly is deleted." in done.text
    assert rt.blocking.schedules() == []


def test_a_long_list_has_pages_by_name(rt: Runtime, person: Person) -> None:
    for n in range(60):
        make(rt, f"s{n:02}")
    page = person.get("/schedules")
    assert "s49" in page.text
    assert "s50" not in page.text
    address = page.html.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0]
    second = person.get(address)
    assert "s50" in second.text
    assert "s59" in second.text
    assert "First page" in second.text


def test_an_unknown_schedule_is_a_page_that_says_so(person: Person) -> None:
    page = person.get("/schedules/one?name=nothing")
    assert (page.status, "no schedule 'nothing'" in page.text) == (404, True)


def test_an_approver_may_look_but_not_change(rt: Runtime) -> None:
    make(rt)
    with ui_account(rt, "answer", worker=False) as ana:
        page = ana.get("/schedules/one?name=weekly")
        assert page.status == 200
        assert [one.action for one in page.forms] == ["/ui/sign-out"]
        refused = ana.get("/schedules/delete?name=weekly")
        assert refused.status == 403
        assert "Only operators" in refused.text
