"""The campaign application on a post office of its own and a clock that is moved, for its tests.

`office` is the fixture: a `World`, on each database; `sqlite_office` is one on SQLite only. They
begin on a Monday at nine, in UTC. A test imports them by name.

`workers` are processes that drive what is due, or are killed on the way.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.parser import HeaderParser
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from examples.campaign.agent import OUTCOME, thread_of
from examples.campaign.app import App
from examples.campaign.app import Plan as Plan
from examples.campaign.cadence import Cadence
from examples.campaign.database import Row
from examples.campaign.database import sql as sql
from examples.campaign.demo.postoffice import Mail, PostOffice
from examples.campaign.inbound import Inbound, Listener
from examples.campaign.records import look
from examples.campaign.sending import MANY, SEND
from examples.campaign.settings import Settings
from perdure.commands.health import examine
from perdure.errors import BadAnswer as BadAnswer
from perdure.testing import Clock, watch_points
from perdure.types import Run, State, Wait
from tests.support.fork_server import Child, ForkServer, Tell

MONDAY = datetime(2030, 1, 7, 9, tzinfo=UTC)
DAY = timedelta(days=1)
HOST = "127.0.0.1"
BO = "bo@example.org"
CY = "cy@example.org"
YEAR = 365 * DAY
TWO = Cadence((0, 4))
PLAN = Plan("spring", "Better tables", "Ana Ruiz <ana@example.com>", auto_approve=True)
HELD = replace(PLAN, auto_approve=False)


def settings_for(url: str, office: PostOffice, **options: Any) -> Settings:
    """Those of an application that sends to this post office, and can ask it."""
    given: dict[str, Any] = {
        "url": url,
        "smtp_port": office.smtp_port,
        "smtp_timeout": 20.0,
        "lookup_url": office.lookup_url,
        "lookup_after": 0.0,
    }
    return Settings(**{**given, **options})


@dataclass
class World:
    """An application, who takes its mail, and the time."""

    office: PostOffice
    app: App
    clock: Clock

    @property
    def inbound(self) -> Inbound:
        return Inbound(self.app)

    # -- campaigns

    def campaign(self, plan: Plan = PLAN, *addresses: str, zone: str = "", **changes: Any) -> int:
        """A campaign with these contacts, launched; with Bo alone if none is named."""
        campaign_id = self.app.create(replace(plan, **changes))
        self.enrol(campaign_id, *(addresses or (BO,)), zone=zone)
        self.app.launch(campaign_id)
        return campaign_id

    def enrol(self, campaign_id: int, *addresses: str, zone: str = "") -> None:
        lines = [f"{one},{one.partition('@')[0].title()},Ltd,{zone}" for one in addresses]
        self.app.import_contacts(campaign_id, "\n".join(["email,name,company,zone", *lines]) + "\n")

    def contact(self, address: str = BO) -> int:
        [row] = self.rows("SELECT id FROM contacts WHERE address = :address", address=address)
        return int(row["id"])

    def thread(self, campaign_id: int = 1, address: str = BO) -> str:
        return thread_of(campaign_id, self.contact(address))

    def run(self, campaign_id: int = 1, address: str = BO) -> Run:
        [run] = self.app.runtime.blocking.runs(thread_id=self.thread(campaign_id, address))
        return run

    # -- time

    def drive(self) -> None:
        """Until nothing is due, as a cron does."""
        while self.app.runtime.blocking.tick(limit=1000).claimed:
            pass

    def advance(self, by: timedelta) -> None:
        """Let time pass, and what is due happen."""
        self.clock.advance(by)
        self.drive()

    def sleep_through(self, limit: int = 100) -> None:
        """Move to whatever is due next, again and again, until everything rests for good."""
        for _ in range(limit):
            self.drive()
            due = self.due()
            if due is None:
                return
            self.clock.move_to(max(due, self.clock.time))
        raise AssertionError(f"something is due for the {limit}th time")

    def due(self) -> datetime | None:
        """When the next thread is due."""
        waiting = self.app.runtime.blocking.runs(state=State.WAITING, limit=10_000, output=False)
        return min((run.due_at for run in waiting if run.due_at is not None), default=None)

    # -- the result

    def rows(self, sql: str, **params: Any) -> list[Row]:
        return self.app.database.rows(sql, **params)

    def touches(self, campaign_id: int = 1, address: str = BO) -> list[Row]:
        return self.rows(
            "SELECT * FROM touches WHERE campaign_id = :c AND contact_id = :p ORDER BY step",
            c=campaign_id,
            p=self.contact(address),
        )

    def touch_states(self, campaign_id: int = 1, address: str = BO) -> list[str]:
        return [touch["status"] for touch in self.touches(campaign_id, address)]

    def member(self, campaign_id: int = 1, address: str = BO) -> str:
        [row] = self.rows(
            "SELECT status FROM members WHERE campaign_id = :c AND contact_id = :p",
            c=campaign_id,
            p=self.contact(address),
        )
        return str(row["status"])

    def scores(self, campaign_id: int = 1, address: str = BO) -> dict[str, float | None]:
        """What each touch earned."""
        return earned_by(self.app, self.run(campaign_id, address).id)

    def message_id(self, step: int, campaign_id: int = 1, address: str = BO) -> str:
        contact_id = self.contact(address)
        found = look(self.app.database, campaign_id, contact_id, step)
        assert found.touch is not None
        return str(found.touch["message_id"])

    def sent(self, address: str = BO) -> list[Mail]:
        """What the provider took for this address: its log decides, not what we noted."""
        return [mail for mail in self.office.log if mail.recipient == address]

    def dates(self, address: str = BO) -> list[datetime]:
        """When each of them was written, by its own Date."""
        headers = (HeaderParser().parsestr(mail.content) for mail in self.sent(address))
        return [parsedate_to_datetime(one["Date"]).astimezone(UTC) for one in headers]

    def no_duplicates(self) -> None:
        taken = [mail.message_id for mail in self.office.log]
        assert len(taken) == len(set(taken)), sorted(taken)

    # -- people

    def questions(self, campaign_id: int | None = None, address: str = BO) -> list[Wait]:
        """What waits for a person."""
        thread = None if campaign_id is None else self.thread(campaign_id, address)
        return self.app.runtime.blocking.waits(kind="human", thread_id=thread)

    def answer(self, action: str, **more: str) -> None:
        """Decide on the only draft there is."""
        [question] = self.questions()
        self.app.runtime.blocking.answer(question.id, {"action": action, **more}, by="Eva")
        self.drive()

    def receive(self, mail: EmailMessage | bytes) -> Row:
        """A mail comes in, and what it wakes is driven."""
        row = self.inbound.receive(mail if isinstance(mail, bytes) else mail.as_bytes())
        assert row is not None, "we wrote it"
        self.drive()
        return row

    def ends(self, how: str, campaign_id: int = 1, address: str = BO) -> None:
        """The thread is over, everything says so alike, and nothing is left to ask."""
        run = self.run(campaign_id, address)
        assert run.state is State.DONE, (run.state, run.reason, run.error)
        assert run.output["ended"] == how
        assert self.member(campaign_id, address) == how
        assert self.questions(campaign_id, address) == []

    def nothing_more(self, sent: int) -> None:
        """However long one waits."""
        self.advance(YEAR)
        self.advance(YEAR)
        assert len(self.office.log) == sent


def earned_by(app: App, run_id: str) -> dict[str, float | None]:
    """What each touch of a run earned, by the effect that sent it."""
    client = app.runtime.blocking
    steps = {
        effect.key: effect.arguments["place"]["step"]
        for effect in client.effects(run_id, limit=MANY)
        if effect.name == SEND
    }
    found = [score for score in client.scores(run_id) if score.name == OUTCOME]
    return {f"touch {steps[str(score.effect)]}": score.value for score in found}


def reply(
    to: str | None = None,
    text: str = "Tell me more, please.",
    *,
    sender: str = BO,
    subject: str = "Re: Better tables",
    **headers: str,
) -> EmailMessage:
    """A mail that a person writes, in answer to the Message-ID `to`."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, "ana@example.com", subject
    mail["Message-ID"] = f"<{uuid.uuid4().hex}@example.org>"
    if to is not None:
        mail["In-Reply-To"] = to
    for name, value in headers.items():
        del mail[name.replace("_", "-")]
        mail[name.replace("_", "-")] = value
    mail.set_content(text)
    return mail


def bounce(of: str, recipient: str = BO) -> bytes:
    """A report of a mail server that it could not deliver the mail `of`."""
    return (
        "From: MAILER-DAEMON@mx.example.net\r\nTo: ana@example.com\r\n"
        f"Subject: Undelivered Mail\r\nMessage-ID: <{uuid.uuid4().hex}@mx.example.net>\r\n"
        "MIME-Version: 1.0\r\nContent-Type: multipart/report; report-type=delivery-status;"
        ' boundary="b"\r\n\r\n'
        "--b\r\nContent-Type: text/plain\r\n\r\nIt could not be delivered.\r\n"
        "--b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.example.net\r\n"
        f"\r\nFinal-Recipient: rfc822; {recipient}\r\nAction: failed\r\nStatus: 5.1.1\r\n"
        "--b\r\nContent-Type: text/rfc822-headers\r\n\r\n"
        f"Message-ID: {of}\r\nTo: {recipient}\r\n--b--\r\n"
    ).encode()


@contextlib.contextmanager
def listening(office: World) -> Iterator[int]:
    """The port of a listener for mail that comes in."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    listener = Listener(Inbound(office.app), HOST, port)
    listener.start()
    try:
        yield port
    finally:
        listener.stop()


@contextlib.contextmanager
def world(
    url: str, office: PostOffice | None = None, at: datetime = MONDAY, **options: Any
) -> Iterator[World]:
    """An application on this database; its journal must be sound when the block ends."""
    clock = Clock(at)
    with (
        office or PostOffice() as open_office,
        App(settings_for(url, open_office, **options), clock=clock) as app,
    ):
        made = World(open_office, app, clock)
        yield made
        made.no_duplicates()
        assert app.runtime.journal.do(examine()) == []


@pytest.fixture
def office(url: str) -> Iterator[World]:
    """An application on each database, with a post office that works."""
    with world(url) as made:
        yield made


@pytest.fixture
def sqlite_office(sqlite_url: str) -> Iterator[World]:
    """The same on SQLite, for what no database decides."""
    with world(sqlite_url) as made:
        yield made


# -- workers that die


class Workers:
    """Processes that drive what is due, one after the other, each of them mortal."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._child: Child | None = None
        self._born = threading.Event()

    def drive(self, world: World, *, die_at: int = 0) -> int | None:
        """Have a process drive what is due. Gives how many points of the journal and of effects it
        came to, or None if it died. With `die_at` it is killed when it comes to that one."""
        return self._ask(world, die_at=die_at)

    def receive_and_die(self, world: World, mail: EmailMessage) -> None:
        """Have a process store a mail, and die before it tells anybody."""
        assert self._ask(world, mail=mail.as_string()) is None

    def _ask(self, world: World, **more: Any) -> int | None:
        asked = {"settings": asdict(world.app.settings), "at": world.clock.time.isoformat(), **more}
        self._child = self._server.start("tests.examples.campaigns:drive", **asked)
        self._born.set()
        status = self._child.wait(120)
        self._born.clear()
        if status == -signal.SIGKILL:
            return None
        assert status == 0, "the worker failed"
        [[_, points]] = self._child.facts
        return int(points)

    def kill(self, by: signal.Signals = signal.SIGKILL) -> None:
        """Send the one that is driving a signal, from another thread."""
        self._driving().send(by)

    def stop(self) -> None:
        """Stop the one that is driving where it is, from another thread."""
        self._driving().stop()

    def _driving(self) -> Child:
        assert self._born.wait(30)
        assert self._child is not None
        return self._child


@pytest.fixture
def workers(fork_server: ForkServer) -> Workers:
    return Workers(fork_server)


def drive(asked: dict[str, Any], tell: Tell) -> None:
    points = 0
    lock = threading.Lock()

    def hook(point: str) -> None:
        nonlocal points
        with lock:
            points += 1
            if points == asked.get("die_at"):
                os.kill(os.getpid(), signal.SIGKILL)

    clock = Clock(datetime.fromisoformat(asked["at"]))
    with App(Settings(**asked["settings"]), clock=clock) as app:
        if "mail" in asked:
            Inbound._signal = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            Inbound(app).receive(asked["mail"].encode())
        watch_points(hook)
        while app.runtime.blocking.tick(limit=1000).claimed:
            pass
        watch_points(None)
    tell("points", points)
