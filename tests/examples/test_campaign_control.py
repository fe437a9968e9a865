"""A campaign is paused, resumed, stopped and changed while it runs, whoever is killed then."""

from __future__ import annotations

import json
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.campaign import control, overlaps
from examples.campaign.app import Plan
from examples.campaign.cadence import Cadence
from examples.campaign.control import ChangedMeanwhile, Changes, WrongState
from examples.campaign.database import sql
from examples.campaign.faults import Reply
from examples.campaign.postoffice import Fault
from perdure.errors import AnswerRefused
from tests.support.campaign_commands import Command, die_in
from tests.support.campaign_commands import command as command
from tests.support.campaign_ends import CY, TWO, ends, nothing_more
from tests.support.campaigns import BO, DAY, HELD, MONDAY, PLAN, World, world
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office
from tests.support.fork_server import ForkServer

DO = "do@example.org"
THREE = (BO, CY, DO)
FRIDAY = MONDAY + timedelta(days=4, hours=9)
"""When the window is closed."""


def state_of(office: World) -> tuple[str, int]:
    [row] = office.rows("SELECT state, version FROM campaigns WHERE id = 1")
    return row["state"], row["version"]


# -- the stop button


def test_a_stop_that_is_killed_has_stopped_everything_and_is_finished_by_the_next(
    office: World, fork_server: ForkServer
) -> None:
    office.campaign(HELD, *THREE, cadence=TWO)
    office.drive()
    die_in(fork_server, office, "stop", after=1)
    assert state_of(office) == ("stopped", 2)
    assert [office.member(1, one) for one in THREE] == ["stopped"] * 3
    office.drive()
    ends(office, "stopped", address=BO)
    assert len(office.questions()) == 2
    office.app.runtime.blocking.answer(office.questions(1, CY)[0].id, {"action": "approve"})
    office.drive()
    ends(office, "stopped", address=CY)  # an answer to a draft of a stopped campaign sends nothing
    again = control.stop(office.app, 1)
    assert (again.was, again.threads, again.drafts) == ("stopped", 3, 1)
    office.drive()
    for one in THREE:
        ends(office, "stopped", address=one)
    assert state_of(office) == ("stopped", 2)
    nothing_more(office, sent=0)
    for refused in (
        lambda: control.resume(office.app, 1),
        lambda: control.pause(office.app, 1),
        lambda: office.edit(1, brief="Chairs"),
        lambda: office.app.launch(1),
        lambda: office.enrol(1, "ed@example.org"),
    ):
        with pytest.raises(WrongState, match=r"'spring' is stopped .* a stop is final"):
            refused()
    assert office.rows("SELECT 1 FROM contacts WHERE address = 'ed@example.org'") == []


def test_a_resume_that_is_killed_is_finished_by_the_next_and_nothing_is_sent_before(
    office: World, fork_server: ForkServer
) -> None:
    office.campaign(PLAN, *THREE, cadence=TWO)
    office.drive()
    assert control.pause(office.app, 1) == control.Switched("paused", "running", 3, 0, 0)
    assert control.pause(office.app, 1).was == "paused"
    assert state_of(office) == ("paused", 2)
    office.advance(4 * DAY)
    assert len(office.office.log) == 3
    die_in(fork_server, office, "resume", after=1)
    assert state_of(office) == ("running", 3)
    office.drive()
    assert [len(office.sent(one)) for one in THREE] == [2, 1, 1]
    assert control.resume(office.app, 1).was == "running"
    office.drive()
    assert [len(office.sent(one)) for one in THREE] == [2, 2, 2]
    assert state_of(office) == ("running", 3)


def test_threads_that_a_killed_resume_did_not_wake_look_by_themselves(
    sqlite_office: World, fork_server: ForkServer
) -> None:
    sqlite_office.campaign(PLAN, *THREE, cadence=TWO)
    sqlite_office.drive()
    control.pause(sqlite_office.app, 1)
    sqlite_office.advance(4 * DAY)
    die_in(fork_server, sqlite_office, "resume", after=0)
    sqlite_office.advance(DAY / 4)
    assert [len(sqlite_office.sent(one)) for one in THREE] == [2, 2, 2]


def test_drafts_of_a_paused_campaign_stay_open_and_their_answers_wait(sqlite_office: World) -> None:
    sqlite_office.campaign(HELD, BO, CY)
    sqlite_office.drive()
    before = {one.id for one in sqlite_office.questions()}
    assert control.pause(sqlite_office.app, 1).drafts == 2
    sqlite_office.drive()
    [bo] = sqlite_office.questions(1, BO)
    sqlite_office.app.runtime.blocking.answer(bo.id, {"action": "approve"})
    sqlite_office.advance(DAY)
    assert sqlite_office.office.log == []
    control.resume(sqlite_office.app, 1)
    sqlite_office.drive()
    assert [mail.recipient for mail in sqlite_office.office.log] == [BO]
    assert {one.id for one in sqlite_office.questions()} == before - {bo.id}


def test_a_paused_campaign_takes_contacts_changes_and_launches_and_sends_nothing(
    sqlite_office: World, command: Command, tmp_path: Path
) -> None:
    sqlite_office.app.create(PLAN)
    sheet = tmp_path / "sheet.csv"
    sheet.write_text(f"email\n{BO}\n")
    assert command("pause", "spring")[1].startswith("spring is paused: 0 threads")
    assert command("import", "spring", str(sheet))[0] == 0
    assert command("edit", "spring", "--brief", "Chairs", "--yes")[0] == 0
    assert (
        "The campaign is paused: they wait until `resume spring`" in command("launch", "spring")[1]
    )
    sqlite_office.drive()
    assert sqlite_office.office.log == []
    assert command("resume", "spring")[1].startswith("spring is running: 1 thread,")
    sqlite_office.drive()
    assert [mail.subject for mail in sqlite_office.sent()] == ["Chairs (1)"]
    [status] = map(json.loads, command("status", "--json")[1].splitlines())
    assert (status["state"], status["trouble"], status["per_day"]) == ("running", "", 0)
    assert command("stop", "spring")[0] == 2
    assert command("stop", "spring", typed="n\n")[0] == 1
    assert state_of(sqlite_office)[0] == "running"
    code, told = command("stop", "spring", typed="y\n")
    assert code == 0
    assert "spring is stopped: 1 thread, 0 drafts" in told


def test_a_member_imported_while_a_campaign_was_stopped_is_stopped_too(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = sqlite_office.app
    app.create(PLAN)
    write = app.database.write

    def stopped_first(*statements: Any) -> Any:
        monkeypatch.undo()
        control.stop(app, 1)
        return write(*statements)

    monkeypatch.setattr(app.database, "write", stopped_first)
    with pytest.raises(WrongState):
        sqlite_office.enrol(1, BO)
    assert sqlite_office.member() == "stopped"


def test_an_answer_about_an_old_trouble_does_not_overrule_a_pause(sqlite_office: World) -> None:
    app = sqlite_office.app
    sqlite_office.campaign()
    trouble = sql("UPDATE campaigns SET state = 'trouble', trouble = 'no', troubles = troubles + 1")
    app.database.write(trouble)
    assert control.pause(app, 1).was == "trouble"
    assert control.resume(app, 1, number=1).state == "paused"
    assert control.resume(app, 1).state == "running"
    app.database.write(trouble)
    assert control.resume(app, 1, number=1).state == "trouble"
    assert control.resume(app, 1, number=2).state == "running"
    assert app.row(1)["trouble"] == ""


def test_each_trouble_asks_its_own_question_whatever_happened_to_the_last_one(
    sqlite_url: str, fork_server: ForkServer
) -> None:
    people = [f"p{n}@example.org" for n in range(6)]
    with world(sqlite_url) as office:
        office.office.faults = lambda recipient, attempt: Fault.REJECT_RECIPIENT
        office.campaign(PLAN, *people, cadence=TWO)
        office.drive()
        assert [one.value["kind"] for one in office.questions()] == ["trouble"]
        control.pause(office.app, 1)
        office.drive()
        assert office.questions() == []
        office.office.faults = None
        bounced = "SELECT 1 FROM contacts WHERE status = 'bounced'"
        before = len(office.rows(bounced))  # five are a trouble; the sixth may have been on its way
        die_in(fork_server, office, "resume", after=2)
        assert state_of(office)[0] == "paused"
        assert len(office.rows(bounced)) == before - 2
        control.resume(office.app, 1)  # those who bounced meanwhile are written to again
        office.drive()
        assert {mail.recipient for mail in office.office.log} == set(people)
        office.office.refuses = Reply("550 5.1.8 Sender address rejected")
        office.advance(4 * DAY)
        office.answer("resume")
        office.drive()
        office.office.refuses = None
        [third] = office.questions()  # nothing was mended, so it is asked again
        assert office.app.row(1)["troubles"] == 3
        control.resume(office.app, 1)
        office.drive()
        assert (office.questions(), len(office.office.log)) == ([], 12)
        with pytest.raises(AnswerRefused):
            office.app.runtime.blocking.answer(third.id, {"action": "stop"})


# -- changes, and what they change


def test_a_preview_shows_when_each_thread_will_be_due(office: World) -> None:
    office.campaign(PLAN, BO, DO, cadence=Cadence((0, 4, 7)))
    office.enrol(1, "ed@example.org", zone="Asia/Tokyo")
    office.app.launch(1)  # in Tokyo it is evening
    office.enrol(1, CY)
    office.drive()
    skipped = "UPDATE touches SET status = 'skipped', sent_at = NULL WHERE contact_id = :id"
    office.app.database.write(sql(skipped, id=office.contact(DO)))
    changes = Changes(gaps=(0, 2, 7), window=(MONDAY.time(), MONDAY.replace(hour=12).time()))
    before = office.rows("SELECT * FROM campaigns")
    preview = control.preview(office.app, 1, changes)
    assert office.rows("SELECT * FROM campaigns") == before
    assert preview.changes == {
        "gaps": ("0,4,7", "0,2,7"),
        "window": ("09:00-17:00", "09:00-12:00"),
    }
    assert preview.moves is not None
    assert (preview.active, preview.begun) == (4, 1)
    assert (preview.moves.earlier, preview.moves.same, preview.moves.without_thread) == (2, 1, 1)
    control.edit(office.app, 1, changes, seen=preview.version)
    office.drive()
    for move in preview.moves.nearest:
        assert (move.step, move.before) == (2, MONDAY + 4 * DAY)
        assert office.run(1, move.address).due_at == move.after == MONDAY + 2 * DAY
    fewer = control.preview(office.app, 1, Changes(gaps=(0,)))
    assert fewer.moves is not None
    assert (fewer.moves.falls_away, fewer.moves.same) == (2, 1)
    assert fewer.moves.nearest[0].after is None
    with pytest.raises(ChangedMeanwhile, match="version 2, and the preview showed version 1"):
        control.edit(office.app, 1, changes, seen=1)


def test_an_edit_that_is_killed_is_finished_by_the_same_edit(
    sqlite_office: World, fork_server: ForkServer
) -> None:
    sqlite_office.campaign(PLAN, *THREE, cadence=TWO)
    sqlite_office.drive()
    die_in(fork_server, sqlite_office, "edit", after=1, gaps=(0, 1))
    sqlite_office.advance(DAY)
    assert [len(sqlite_office.sent(one)) for one in THREE] == [2, 1, 1]
    assert sqlite_office.edit(1, gaps=(0, 1)) == 2
    sqlite_office.drive()
    assert [len(sqlite_office.sent(one)) for one in THREE] == [2, 2, 2]


def test_an_edit_brings_approved_touches_forward_as_its_preview_says(office: World) -> None:
    office.clock.move_to(FRIDAY - timedelta(hours=4))
    office.campaign(HELD, *THREE, cadence=TWO)
    office.drive()
    office.clock.move_to(FRIDAY)
    for question in office.questions():
        office.app.runtime.blocking.answer(question.id, {"action": "approve"})
    office.drive()
    assert {office.run(1, one).due_at for one in THREE} == {MONDAY + 7 * DAY}
    changes = Changes(window=(time(0), time.max), days=frozenset(range(7)))
    preview = control.preview(office.app, 1, changes)
    assert preview.moves is not None
    assert [move.after for move in preview.moves.nearest] == [FRIDAY] * 3
    control.edit(office.app, 1, changes)
    office.drive()
    assert len(office.office.log) == 3


def test_an_edit_of_the_daily_limit_that_is_killed_is_finished_by_the_same_edit(
    sqlite_office: World, fork_server: ForkServer
) -> None:
    sqlite_office.campaign(PLAN, *THREE, per_day=1)
    sqlite_office.drive()
    assert len(sqlite_office.office.log) == 1
    die_in(fork_server, sqlite_office, "edit", after=1, per_day=200)
    sqlite_office.drive()
    assert len(sqlite_office.office.log) < 3
    assert sqlite_office.edit(1, per_day=200) == 2
    sqlite_office.drive()
    assert [len(sqlite_office.sent(one)) for one in THREE] == [1, 1, 1]


def test_an_edit_shows_what_changes_for_whom_and_asks(
    sqlite_office: World, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_office.campaign(HELD, BO, CY, cadence=TWO)
    sqlite_office.drive()
    [bo] = sqlite_office.questions(1, BO)
    sqlite_office.app.runtime.blocking.answer(bo.id, {"action": "approve"})
    sqlite_office.drive()
    words = ("edit", "spring", "--sender", "Bea <bea@example.com>", "--gaps", "0,2")
    code, told = command(*words)
    assert code == 2
    assert "2 active members will get the next mail from it" in told
    assert "1 of them already had mail, and will see a new sender" in told
    assert "1 thread due earlier" in told
    assert "1 thread with a waiting draft, as before" in told
    assert f"{BO}, touch 2: Fri 2030-01-11 09:00 -> Wed 2030-01-09 09:00 (UTC)" in told
    assert "Pass --yes" in told
    assert command(*words, typed="n\n")[0] == 1
    assert state_of(sqlite_office)[1] == 1
    code, told = command(*words, "--json")
    assert json.loads(told)["moves"]["earlier"] == 1
    assert state_of(sqlite_office)[1] == 1
    assert command(*words, typed="y\n")[1].endswith("Version 2 of spring\n")
    assert "already has these values" in command(*words)[1]
    told = command("edit", "spring", "--approve", "auto", "--per-day", "9", "--yes")[1]
    assert "1 waiting draft will still wait for a person" in told
    assert "will not change; --redraft" in command("edit", "spring", "--brief", "Chairs")[1]
    edit = control.edit

    def late(*given: Any, **more: Any) -> int:
        edit(sqlite_office.app, 1, Changes(per_day=10))
        return edit(*given, **more)

    monkeypatch.setattr(control, "edit", late)
    code, told = command("edit", "spring", "--per-day", "8", "--yes")
    assert code == 2
    assert "per day: 9 -> 8" in told
    assert "per day: 10 -> 8" in told
    assert "has changed: it is at version" in told


def test_waiting_drafts_are_rewritten_on_request(sqlite_office: World) -> None:
    sqlite_office.campaign(HELD, BO, CY)
    sqlite_office.drive()
    [old] = sqlite_office.questions(1, BO)
    sqlite_office.edit(1, brief="Chairs")
    sqlite_office.drive()
    assert sqlite_office.questions(1, BO) == [old]
    control.edit(sqlite_office.app, 1, Changes(brief="Shelves"), redraft=True)
    sqlite_office.drive()
    assert [one.value["subject"] for one in sqlite_office.questions()] == ["Shelves (1)"] * 2
    with pytest.raises(AnswerRefused):
        sqlite_office.app.runtime.blocking.answer(old.id, {"action": "approve"})
    nothing_more(sqlite_office, sent=0)


@pytest.mark.parametrize(
    "wrong", [{"sender": "nobody"}, {"sender": "a@b.c, d@e.f"}, {"per_day": -1}, {}], ids=str
)
def test_a_change_that_makes_no_sense_is_refused(
    sqlite_office: World, wrong: dict[str, Any]
) -> None:
    sqlite_office.app.create(PLAN)
    with pytest.raises(ValueError, match=r"sender|address|per_day|Nothing to change"):
        sqlite_office.edit(1, **wrong)
    assert state_of(sqlite_office)[1] == 1


# -- other campaigns


def test_overlaps_with_another_campaign_are_announced_first(
    sqlite_office: World, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMPAIGN_APART", "3")
    app, sheet = sqlite_office.app, tmp_path / "sheet.csv"
    sheet.write_text(f"email\n{BO}\n{CY}\n{DO}\n")
    sqlite_office.campaign(HELD, BO, CY, cadence=Cadence((0,)))
    sqlite_office.drive()
    app.create(Plan("autumn", "Chairs", "ana@example.com"))
    app.create(Plan("again", "Tables", "ana@example.com", "default"))
    told = command("import", "autumn", str(sheet))[1]  # while drafts of the other wait
    assert "2 of its active members are in another campaign too" in told
    assert "its mails and these are kept 3 days apart" in told
    assert "duplicate" not in told
    assert "are in another campaign too" in command("launch", "autumn")[1]
    for question in sqlite_office.questions(1, BO) + sqlite_office.questions(1, CY):
        app.runtime.blocking.answer(question.id, {"action": "approve"})
    sqlite_office.drive()
    control.stop(app, 1)
    told = command("import", "again", str(sheet))[1]
    assert "2 touches to 2 of its active members will be left out as duplicates" in told
    soon, later = (app.clock.now() + days * 86_400_000 for days in (2, 4))
    assert overlaps.find(app.database, 2, 3, soon).shared == 3  # `again` is of that sequence, too
    control.stop(app, 3)
    assert overlaps.find(app.database, 2, 3, soon).shared == 2  # they had its mail
    assert overlaps.find(app.database, 2, 3, later).shared == 0
