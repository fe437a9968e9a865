"""The campaign's command line, its status, and a cron that drives it over HTTP."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from examples.campaign.cadence import Cadence, Window
from tests.support.campaign_commands import Command
from tests.support.campaign_commands import command as command
from tests.support.campaign_ends import (
    CY,
)
from tests.support.campaigns import BO, DAY, HELD, PLAN, World, reply
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office


def test_an_import_changes_known_contacts_only_if_it_is_told_to(
    sqlite_office: World, command: Command, tmp_path: Path
) -> None:
    sqlite_office.campaign(PLAN, BO, CY)
    sheet = tmp_path / "corrected.csv"
    sheet.write_text(f"Name;E-Mail;Time Zone\nBob;{BO};Asia/Tokyo\n;{CY};\n")

    def zones() -> list[tuple[str, str]]:
        found = sqlite_office.rows("SELECT name, zone FROM contacts ORDER BY id")
        return [(row["name"], row["zone"]) for row in found]

    code, told = command("import", "spring", str(sheet))
    assert (code, told.splitlines()[0]) == (0, "0 added, 2 known, 0 left out")
    assert "1 contact already known with another name, company or zone" in told
    assert zones() == [("Bo", "UTC"), ("Cy", "UTC")]
    assert "1 contact changed" in command("import", "spring", str(sheet), "--update")[1]
    assert zones() == [("Bob", "Asia/Tokyo"), ("Cy", "UTC")]
    assert "contact" not in command("import", "spring", str(sheet), "--update")[1]


def test_a_setting_that_cannot_be_read_is_wrong_use(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAMPAIGN_SMTP_PORT", "abc")
    told = "campaign: CAMPAIGN_SMTP_PORT='abc' is not a whole number, 0 or more.\n"
    assert command("status") == (2, told)


def test_a_campaign_can_be_run_from_the_command_line(
    sqlite_office: World, command: Command, tmp_path: Path
) -> None:
    sheet, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    sheet.write_text(f"email,name\n{BO},Bo\n{CY},Cy\n")
    bad.write_text("email,zone\nnot an address,\ndo@example.org,Mars/Base\n")
    create = ("create", "spring", "--brief", "Tables", "--sender", "ana@example.com")
    assert command(*create, "--gaps", "0,4", "--auto-approve") == (0, "Campaign 1: spring\n")
    assert command(*create)[0] == 2
    code, told = command("import", "spring", str(bad))
    assert code == 1
    assert "line 2" in told
    assert "line 3" in told
    code, told = command("import", "spring", str(sheet))
    assert (code, told.splitlines()[0]) == (0, "2 added, 0 known, 0 left out")
    assert "2 contacts without a time zone in the file" in told
    code, told = command("launch", "spring")
    assert code == 0
    assert re.match(r"2 threads; the first touch is due (now|20\d\d-\S+ \d\d:\d\d in UTC)\. ", told)
    assert command("launch", "spring") == (0, "0 threads; every active member has one\n")
    sqlite_office.drive()
    code, told = command("edit", "spring", "--gaps", "0,2", "--yes")
    assert (code, told.splitlines()[-1]) == (0, "Version 2 of spring")
    assert command("remove", CY) == (0, f"1 campaign ended for {CY}\n")
    sqlite_office.sleep_through()
    code, told = command("status", "--json")
    [status] = map(json.loads, told.splitlines())
    assert status["members"] == {"finished": 1, "removed": 1}
    assert status["touches"] == {"sent": 3}
    assert list(status["prompts"].values()) == [{"sent": 3, "replies": 0}]
    told = command("status")[1]
    assert told.startswith("spring: running (gaps 0,2, 09:00-17:00 mon-fri)\n")
    assert "  members  1 finished, 1 removed\n  touches  3 sent\n" in told
    assert command("drafts", "spring")[1].startswith("No drafts are waiting. ")
    assert sqlite_office.dates() == [
        sqlite_office.dates(CY)[0],
        sqlite_office.dates(CY)[0] + 2 * DAY,
    ]


def test_a_campaign_named_like_the_sequence_of_another_is_not_created_by_mistake(
    office: World,
) -> None:
    office.app.create(replace(PLAN, name="a", sequence="news"))
    with pytest.raises(ValueError, match="'news' is the sequence of campaign 'a'"):
        office.app.create(replace(PLAN, name="news", sequence=""))
    assert [one["name"] for one in office.app.status()] == ["a"]
    assert office.app.create(replace(PLAN, name="news", sequence="news")) == 2


def test_an_edit_changes_only_the_given_options(sqlite_office: World, command: Command) -> None:
    create = ("create", "spring", "--brief", "Tables", "--sender", "ana@example.com")
    assert command(*create, "--gaps", "0,3", "--window", "08:00-24:00", "--days", "sat,sun")[0] == 0

    def told() -> list[Any]:
        [status] = map(json.loads, command("status", "--json")[1].splitlines())
        return [status[name] for name in ("gaps", "window", "days")]

    assert told() == [[0, 3], "08:00-24:00", "sat,sun"]
    assert command("edit", "spring", "--yes", "--days", "mon-sun")[0] == 0
    assert told() == [[0, 3], "08:00-24:00", "mon-sun"]
    assert command("edit", "spring", "--yes", "--window", "00:00-12:30")[0] == 0
    assert told() == [[0, 3], "00:00-12:30", "mon-sun"]
    assert command("edit", "spring", "--yes", "--gaps", "1")[0] == 0
    assert told() == [[1], "00:00-12:30", "mon-sun"]
    assert command("edit", "spring")[0] == 2


def test_the_status_counts_stuck_threads(office: World) -> None:
    office.campaign(HELD, BO, CY)
    office.campaign(HELD, "do@example.org", name="autumn")
    office.drive()
    client = office.app.runtime.blocking
    client.cancel(office.run(1, BO).id)
    client.pause(office.run(1, CY).id)
    office.drive()
    spring, autumn = office.app.status()
    assert spring["threads"] == {"cancelled": 1, "paused": 1}
    assert autumn["threads"] == {}
    assert office.app.launch(1).threads == 0


def test_a_sent_touch_counts_for_its_prompt_before_its_outcome_is_known(
    office: World,
) -> None:
    office.campaign(PLAN, BO, CY)
    office.drive()

    def told() -> list[Any]:
        return list(office.app.status()[0]["prompts"].values())

    assert told() == [{"sent": 2, "replies": 0}]
    office.receive(reply())
    assert told() == [{"sent": 2, "replies": 1}]


def test_a_worker_does_not_log_every_look_up(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("httpx"), "level", logging.NOTSET)
    monkeypatch.delitem(sys.modules, "examples.campaign.service", raising=False)
    service = importlib.import_module("examples.campaign.service")
    service.app.close()
    assert logging.getLogger("httpx").level == logging.WARNING


@pytest.mark.parametrize(
    "words",
    [
        ("launch", "nothing"),
        ("remove", "nobody@example.org"),
        ("edit", "nothing", "--gaps", "1"),
        ("pause", "nothing"),
        ("create", "x", "--brief", "x", "--sender", "Ana Ruiz"),
        ("create", "x", "--brief", "x", "--sender", "a@b.c", "--gaps", "soon"),
        ("create", "x", "--brief", "x", "--sender", "a@b.c", "--window", "17:00-09:00"),
        ("import", "nothing", "nowhere.csv"),
        ("fly",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_reported_in_one_sentence(command: Command, words: tuple[str, ...]) -> None:
    code, told = command(*words)
    assert code == 2
    assert told
    assert "Traceback" not in told


def test_a_cron_over_http_drives_the_campaign(
    sqlite_office: World, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CRON_SECRET", "s3cret" * 8)
    monkeypatch.delitem(sys.modules, "examples.campaign.service", raising=False)
    service = importlib.import_module("examples.campaign.service")
    always = Cadence((0,), Window(time(0), time.max, frozenset(range(7))))
    sqlite_office.clock.move_to(datetime.now(UTC))
    sqlite_office.campaign(cadence=always)
    with TestClient(service.web()) as cron:
        assert cron.post("/cron/tick").status_code == 401
        asked = {"Authorization": f"Bearer {'s3cret' * 8}"}
        assert cron.post("/cron/tick", headers=asked).status_code == 200
    assert sqlite_office.touch_states() == ["sent"]
