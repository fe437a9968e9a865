"""The application's own command line, its settings, and the processes that drive it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import httpx
import pytest

from examples.campaign.__main__ import main
from examples.campaign.settings import Settings
from tests.examples import campaigns
from tests.examples.campaigns import BO, CY, World, reply

office, sqlite_office = campaigns.office, campaigns.sqlite_office
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`python -m examples.campaign` on the database of `sqlite_office`: exit code and output."""
    for one in fields(Settings):
        value = str(getattr(sqlite_office.app.settings, one.name))
        monkeypatch.setenv(f"CAMPAIGN_{one.name.upper()}", value)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["campaign", *words])
        try:
            code = main()
        except SystemExit as exit:
            code = int(exit.code or 0)
        return (code, *capsys.readouterr())

    return run


CREATE = ("create", "spring", "--brief", "Tables", "--sender", "Ana <ana@example.com>")


def test_a_campaign_can_be_run_from_the_command_line(
    sqlite_office: World, command: Command, tmp_path: Path
) -> None:
    office, sheet = sqlite_office, tmp_path / "contacts.csv"
    sheet.write_text(f"email,name\n{BO},Bo\n{CY},Cy\x1b[2J\n")
    assert command(*CREATE)[:2] == (0, "Campaign 1: spring\n")
    code, _, problem = command("import", "spring", str(sheet))
    assert (code, "line 3: name contains a control character" in problem) == (2, True)
    sheet.write_text(f"email,name\n{BO},Bo\n{CY},Cy\n")
    assert command("import", "spring", str(sheet))[:2] == (0, "2 added\n")
    assert command("launch", "spring")[1].startswith("2 threads started")
    office.clock.move_to(campaigns.MONDAY)
    office.drive()
    drafts = office.questions()
    assert len(drafts) == 2
    for draft in drafts:
        office.app.runtime.blocking.answer(draft.id, {"action": "approve"}, by="ana")
    office.drive()
    assert {mail.recipient for mail in office.office.log} == {BO, CY}
    for words, state in (("pause", "paused"), ("resume", "running"), ("stop", "stopped")):
        assert command(words, "spring")[:2] == (0, f"spring is {state}\n")
    office.drive()
    out = command("status")[1]
    assert "spring: stopped" in out
    assert "members  2 stopped" in out
    assert "2 sent, 0 replies" in out


def test_strays_are_listed_and_whoever_wants_no_more_mail_is_removed(
    sqlite_office: World, command: Command
) -> None:
    sqlite_office.campaign()
    sqlite_office.receive(reply(sender="x@else.example", text="Remove bo\x1b[2J, please"))
    out = command("strays")[1]
    assert "x@else.example" in out
    assert "\x1b" not in out
    assert command("remove", BO)[:2] == (0, f"{BO} gets no more mail\n")
    sqlite_office.drive()
    sqlite_office.ends("removed")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("launch", "autumn"), "There is no campaign 'autumn'"),
        ((*CREATE, "--window", "9-17"), "such as 09:00"),
        ((*CREATE[:-1], "Ana"), "is not a sender"),
        (("remove", "bo"), "is not an address"),
    ],
)
def test_wrong_usage_is_reported_in_one_sentence(
    command: Command, words: tuple[str, ...], problem: str
) -> None:
    code, _, error = command(*words)
    assert code == 2
    assert problem in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SMTP_PORT", "many"),
        ("SMTP_SECURITY", "yes"),
        ("UNSUBSCRIBE", "nobody"),
        ("WEB_URL", "mail.example.com"),
    ],
)
def test_an_invalid_setting_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number|is one of|is not an address|start of"):
        Settings.read({f"CAMPAIGN_{name}": value})


def test_settings_come_from_the_environment() -> None:
    found = Settings.read({"PERDURE_URL": "sqlite:///x.db", "CAMPAIGN_SMTP_PORT": "587"})
    assert (found.url, found.smtp_port, found.smtp_timeout) == ("sqlite:///x.db", 587, 30.0)
    assert "secret" not in repr(Settings(smtp_password="secret", imap_password="secret"))


async def test_a_cron_over_http_drives_the_campaign(sqlite_office: World) -> None:
    office = sqlite_office
    secret = "a secret of 16 characters or more"
    office.campaign()
    web = office.app.runtime.asgi(worker=False, secret=secret)
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://campaign") as client:
        assert (await client.post("/cron/tick")).status_code == 401
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await client.post("/cron/tick", headers=headers)).json()["waiting"] == 1
    assert len(office.sent()) == 1
