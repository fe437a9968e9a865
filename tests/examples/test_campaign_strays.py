"""Mail that matches nothing is listed, assigned once, and put away."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.campaign.errors import Unknown
from examples.campaign.strays import NotAStray, assign, count, dismiss, strays
from tests.support.campaign_commands import Command
from tests.support.campaign_commands import command as command
from tests.support.campaign_ends import CY, ends
from tests.support.campaigns import BO, PLAN, World, bounce, reply
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office

PA = "assistant@else.example"


def stray(office: World, text: str = "Tell me more.", **headers: str) -> str:
    """The code of a mail that matches nothing."""
    known = {one["id"] for one in strays(office.app)}
    assert office.receive(reply(sender=PA, text=text, **headers))["kind"] == "stray"
    [code] = {one["id"] for one in strays(office.app)} - known
    return str(code)


def test_an_assigned_stray_ends_what_it_would_have_ended(office: World) -> None:
    office.campaign(PLAN, BO, CY)
    office.drive()
    code = stray(office)
    assert assign(office.app, code, BO.upper())["kind"] == "reply"
    office.drive()
    ends(office, "replied")
    assert office.scores() == {"touch 1": 1.0}
    assert office.member(address=CY) == "active"
    assert count(office.app) == 0
    assert assign(office.app, code, BO)["told"] == 1  # said again, it changes nothing
    with pytest.raises(NotAStray, match=f"it is the reply of {BO}"):
        assign(office.app, code, CY)
    with pytest.raises(NotAStray, match=f"it is the reply of {BO}"):
        dismiss(office.app, code)
    assert office.member(address=CY) == "active"


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("unsubscribe", "", "unsubscribed"),
        ("He has left us.", "bounce", "bounced"),
        ("Bo wants no more of it.", "unsubscribe", "unsubscribed"),
        ("unsubscribe", "reply", "replied"),
    ],
)
def test_the_text_or_a_person_decides_the_kind_of_a_stray(
    sqlite_office: World, text: str, kind: str, status: str
) -> None:
    sqlite_office.campaign()
    sqlite_office.drive()
    assign(sqlite_office.app, stray(sqlite_office, text), BO, kind)
    sqlite_office.drive()
    ends(sqlite_office, status)


def test_only_one_of_two_concurrent_assignments_of_a_stray_counts(office: World) -> None:
    people = [BO, CY, "di@example.org", "ed@example.org"]
    office.campaign(PLAN, *people)
    office.drive()
    code = stray(office)

    def take(address: str) -> bool:
        try:
            return bool(assign(office.app, code, address))
        except NotAStray:
            return False

    with ThreadPoolExecutor(len(people)) as pool:
        won = list(pool.map(take, people))
    office.drive()
    assert won.count(True) == 1
    for address, is_his in zip(people, won, strict=True):
        assert office.member(address=address) == ("replied" if is_his else "active")
    outcomes = [touch["outcome"] for one in people for touch in office.touches(address=one)]
    assert outcomes.count(1.0) == 1


def test_strays_are_handled_from_the_command_line(
    sqlite_office: World, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    assert command("strays") == (0, "No strays.\n")
    with caplog.at_level(logging.WARNING, "campaign"):
        first = stray(office, "Hello\nthere")
    assert PA in caplog.text
    second = stray(office, subject="Bounced?")
    _, told = command("strays", "--json")
    listed = [json.loads(line) for line in told.splitlines()]
    assert {one["id"] for one in listed} == {first, second}
    [one] = [one for one in listed if one["id"] == first]
    assert (one["from"], one["read_as"], one["text"]) == (PA, "reply", "Hello there")
    _, told = command("strays")
    assert f"{first}  2030-01-07 09:00+00:00  {PA}  'Re: Better tables'" in told
    assert '{"strays": 2}' in command("status", "--json")[1]
    assert command("dismiss", first) == (0, f"{first} is dismissed\n")
    assert command("assign", first, BO)[0] == 2
    assert "was dismissed" in command("assign", first, BO)[1]
    assert command("assign", second, "nobody@example.org")[0] == 2
    assert command("assign", "ffffffff0", BO)[0] == 2
    assert command("assign", second, BO, "--as", "joke")[0] == 2
    assert office.member() == "active"
    assert command("assign", second, BO, "--as", "unsubscribe") == (
        0,
        f"{second} is the unsubscribe of {BO}\n",
    )
    assert command("strays") == (0, "No strays.\n")
    office.drive()
    ends(office, "unsubscribed")


def test_a_bounce_that_names_no_mail_of_ours_can_be_assigned(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    assert office.receive(bounce("<lost@else.example>"))["kind"] == "stray"
    [one] = strays(office.app)
    with pytest.raises(Unknown, match="no contact"):
        assign(office.app, one["id"], "nobody@example.org")
    assert assign(office.app, one["id"][:6], BO)["kind"] == "bounce"
    office.drive()
    ends(office, "bounced")
