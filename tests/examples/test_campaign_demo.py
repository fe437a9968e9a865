"""The demo of the campaign: it ends right by the mail server's log, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import re
import signal
import smtplib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.campaign.demo.conductor import Conductor, Result
from examples.campaign.demo.months import Seen
from examples.campaign.demo.plan import Contact, Plan, draw
from examples.campaign.demo.postoffice import PostOffice

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.campaign.demo", "--contacts", "3", "--seed", "5"]


@pytest.fixture
def place() -> Iterator[dict[str, str]]:
    """An environment in which the demo has a folder for itself, which is empty in the end. Its path
    is short: Python's fork server has a socket in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield {**os.environ, "TMPDIR": folder, "PYTHONUNBUFFERED": "1"}
        assert os.listdir(folder) == []


def figures(text: str) -> dict[str, list[str]]:
    """The two columns of the table in the end."""
    rows = re.findall(r"^ *(\S.*?) {2,}(\d+(?: of \d+)?) {2,}(\d+(?: of \d+)?) *$", text, re.M)
    return {name: [ours, stock] for name, ours, stock in rows}


@pytest.mark.slow
def test_the_demo_ends_right_and_says_so_without_escape_codes(place: dict[str, str]) -> None:
    played = subprocess.run(
        COMMAND, cwd=ROOT, env=place, capture_output=True, text=True, timeout=280
    )
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stderr == ""
    assert "\x1b" not in played.stdout
    told = figures(played.stdout)
    assert told["touches sent"][0] == "10 of 10"
    assert told["duplicates"][0] == told["sends after a reply"][0] == "0"
    assert told["drafts still held at the end"][0] == "1 of 1"
    assert told["threads in the right final state"][0] == "3 of 3"
    assert int(told["processes killed"][0]) > 10
    # Killed twice, at least, when the server had accepted a mail that no table knew of.
    assert int(told["duplicates"][1]) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_demo_that_is_interrupted_leaves_no_process_and_no_folder(
    place: dict[str, str], number: signal.Signals
) -> None:
    with subprocess.Popen(COMMAND, cwd=ROOT, env=place, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        victim = next(filter(None, (re.search(r"process (\d+) killed", s) for s in demo.stdout)))
        demo.send_signal(number)
        told = demo.stdout.read()
    assert demo.returncode == 130, told
    assert "Interrupted" in told
    assert is_gone(int(victim[1]))
    assert not processes_with(place["TMPDIR"])


@pytest.mark.slow
@pytest.mark.d1
def test_the_demo_on_d1_keeps_every_promise_while_host_and_workerd_are_killed(
    place: dict[str, str],
) -> None:
    module = "examples.campaign.demo.d1"
    played = subprocess.run(
        [word.replace("examples.campaign.demo", module) for word in COMMAND],
        cwd=ROOT,
        env=place,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert played.returncode == 0, played.stdout + played.stderr
    told = dict(re.findall(r"^ *(\S.*?) {2,}([\d,]+(?: of \d+)?) *$", played.stdout, re.M))
    assert told["touches sent"] == "10 of 10"
    assert told["duplicates"] == told["problems found by perdure doctor"] == "0"
    assert told["threads in the right final state"] == "3 of 3"
    assert int(told["crons answered"]) >= 10
    assert int(told["hosts killed"]) >= 2


def processes_with(text: str) -> list[str]:
    """The command lines of those whose environment has a text."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (one / "environ").read_bytes():
                found.append((one / "cmdline").read_text())
        except OSError:
            continue
    return [line for line in found if line]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# -- the judge


@dataclass
class Played:
    """A month that is over, as a judge sees it."""

    seen: dict[int, Seen]
    killed: int = 0

    @property
    def crew(self) -> Played:
        return self

    def look(self) -> dict[int, Seen]:
        return self.seen

    def problems(self) -> list[str]:
        return []

    def message_id(self, contact: Contact, touch: int) -> str:
        return f"<{contact.id}.{touch}@sender.example>"


def as_planned(plan: Plan) -> dict[int, Seen]:
    return {
        one.id: Seen(
            status=one.manner.ends,
            sent={},
            held=one.manner.held,
            since=0,
            busy=False,
            due=None,
            over=one.manner.held is None,
        )
        for one in plan.contacts
    }


def judged(
    plan: Plan,
    mails: list[tuple[Contact, int]],
    seen: dict[int, Seen] | None = None,
    ended_at: dict[int, float] | None = None,
    paused: tuple[float, float] = (0.0, 0.0),
) -> Result:
    """What a judge says when the post office has taken these mails."""
    played: Any = Played(seen or as_planned(plan))
    clock: Any = type("Clock", (), {"now": lambda _: 0})()
    with PostOffice() as office:
        for contact, touch in mails:
            text = f"Message-ID: {played.message_id(contact, touch)}\r\n\r\nHello\r\n"
            with smtplib.SMTP("127.0.0.1", office.smtp_port, "localhost") as smtp:
                smtp.sendmail("ana@sender.example", contact.address, text)
        conductor = Conductor(plan, played, office, clock, Console(file=io.StringIO()))
        conductor._ended_at, conductor._paused = ended_at or {}, paused
        return conductor.judge()


def all_of(plan: Plan) -> list[tuple[Contact, int]]:
    return [(one, touch) for one in plan.contacts for touch in one.manner.touches]


def test_a_month_that_went_as_planned_is_right() -> None:
    plan = draw(1, 4)
    found = judged(plan, all_of(plan))
    assert found.wrong == []
    assert (found.sent, found.right, found.held) == (found.touches, 4, 1)
    assert (found.endings, found.honoured) == (2, 2)


def test_a_mail_that_was_sent_twice_is_wrong() -> None:
    plan = draw(1, 4)
    ana = plan.contacts[0]
    found = judged(plan, [*all_of(plan), (ana, 2)])
    assert found.duplicates == 1
    assert found.wrong == ["Ana: 1 mails too many."]


def test_a_mail_after_the_reply_is_wrong() -> None:
    plan = draw(1, 4)
    chiyo = plan.contacts[1]
    found = judged(plan, all_of(plan), ended_at={chiyo.id: 0.0})
    assert (found.after_reply, found.honoured) == (2, 1)
    assert found.wrong == ["Chiyo: 2 mails were sent after the reply."]


def test_a_mail_of_a_paused_campaign_is_wrong() -> None:
    plan = draw(1, 4)
    found = judged(plan, all_of(plan), paused=(1.0, float("inf")))
    assert found.while_paused == sum(
        len(one.manner.touches) for one in plan.contacts if not one.manner.reviewed
    )
    assert "Ana: 6 mails were sent by a paused campaign." in found.wrong
