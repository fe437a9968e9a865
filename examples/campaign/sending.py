"""One conversation with the mail server about a touch, and what is known of it afterwards.

A try is an effect with a key: (sequence, recipient, step, number of the try). It ends as `sent`,
`unanswered`, or with a refusal: the server's, or our own (`NotNow`). Each is final for its key, and
the next try has the next number, in every campaign of a sequence: so each campaign reaches the try
that sent the mail. A mail that may have gone out is not sent again until it is known not to have
arrived:

    killed before the content       `unanswered`; the provider does not know it: it is tried again
    killed after it                 `unanswered`; the provider is asked by Message-ID, by the clock
    no answer to the content        the same; if the provider does not know it, that is a refusal,
                                    `TemporaryTrouble`: it is counted, and tried again later
    suspended on the way            the same; before the provider's no counts, the conversation is
                                    given up in the touch, and its last check finds that
    no look-up                      the run is held, and a person settles it; if many in a row are
                                    not answered, the campaign stops

The last check of campaign, contact, text and hours is by the journal's clock: when the server has
accepted the recipient, and again when it asks for the content, before any of it is sent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import perdure
from perdure.times import milliseconds, moment
from perdure.types import EffectRecord

from . import records, trouble
from .cadence import Cadence
from .database import Database, Row, sql
from .letter import Letter
from .lookup import Lookup
from .mail import Outgoing, asked
from .refusals import TemporaryTrouble
from .settings import Settings

SEND = "send touch"
"""The effect that sends a touch."""
MANY = 1000
"""More effects than a run has."""
SLOW = 5.0
"""Maximum seconds for the last check before a mail goes out."""


class NotNow(perdure.NotDone):
    """The mail may not go out at this moment, or was cut off on our side and did not arrive: the
    thread looks again."""


class NotYet(Exception):
    """The provider does not have the mail; it may still be on its way."""


class Result(NamedTuple):
    """The outcome of a mail, from the process that sent it or the person who settled it."""

    status: str = "sent"
    """`sent` or `unanswered`."""
    campaign_id: int | None = None
    at: datetime | None = None
    message_id: str = ""
    said: str = ""
    """How the server failed to answer; empty if the conversation was cut off on our side."""

    @classmethod
    def of(cls, said: Any) -> Result:
        if isinstance(said, dict) and said.keys() == set(cls._fields):
            return cls(**said)
        return cls()  # settled by hand, in whatever words


class Sending:
    """Sends letters, each once."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        now: Callable[[], int],
        ask: Callable[[Row], None],
    ) -> None:
        """`now` is the journal's time, in milliseconds; `ask` asks about a campaign's trouble."""
        self._settings, self._database, self._now, self._ask = settings, database, now, ask
        self._outgoing = Outgoing.of(settings)
        self._lookup = Lookup(settings.lookup_url) if settings.lookup_url else None
        self.send = perdure.effect(
            name=SEND,
            key=lambda place, letter, sequence, tries, at: [
                sequence,
                letter["recipient"],
                place["step"],
                tries,
            ],
            verify=_unanswered if self._lookup else None,
            unknown="retry" if self._lookup else "hold",
            retry=None,
        )(self._send)
        self.arrived = perdure.effect(
            name="look up touch",
            key=lambda place, message_id, recipient, sequence, tries: [
                sequence,
                recipient,
                place["step"],
                tries,
            ],
            retry=perdure.Retry(  # for about a day, by the clock
                attempts=48,
                first=timedelta(seconds=max(10.0, settings.lookup_after)),
                longest=timedelta(minutes=30),
            ),
        )(self._arrived)

    def deliver(
        self,
        place: dict[str, int],
        letter: dict[str, Any],
        sequence: str,
        tries: int,
        now: datetime,
    ) -> Result:
        """Send a letter, unless another campaign of its sequence has.

        Raises `NotNow`, or the server's refusal; then the next try has another number.
        """
        result = Result.of(self.send(place, letter, sequence, tries, now))
        if result.status == "unanswered":
            sender = {**place, "campaign_id": result.campaign_id or place["campaign_id"]}
            about = (result.message_id, letter["recipient"], sequence, tries)
            if not self.arrived(sender, *about):
                lost = "the provider does not have the mail"
                raise TemporaryTrouble(f"{result.said}; {lost}") if result.said else NotNow(lost)
        return result

    def is_mine(self, place: dict[str, int], result: Result, tries: int) -> bool:
        """Whether this campaign sent it. An outcome that a person settled names no campaign: then
        the one that tried sent it."""
        if result.campaign_id is not None:
            return result.campaign_id == place["campaign_id"]
        return self.was_tried(place, tries)

    def was_tried(self, place: dict[str, int], tries: int) -> bool:
        """Whether this campaign's last conversation about a touch is the try of this number: the
        record may be another campaign's."""
        touch = records.look(self._database, **place).touch or {}
        return (touch.get("attempt") or "").startswith(_attempt(tries))

    def _send(
        self, place: dict[str, int], letter: dict[str, Any], sequence: str, tries: int, at: datetime
    ) -> dict[str, Any]:
        """One conversation with the mail server. Its key is (contact, step) within a sequence, and
        the number of the try: it guards across campaigns and imports."""
        mine = _attempt(tries) + uuid.uuid4().hex
        permission = records.permission(place, letter["recipient"])

        def check(row: dict[str, Any] | None, *, begins: bool = False) -> None:
            if row is not None and row["suppressed"]:  # since an import that did not see it
                ended = records.ENDED_AS[row["suppressed"]]
                self._database.write(*records.end_contact(place["contact_id"], ended))
            if row is None or row["suppressed"] or not row["member"] == row["contact"] == "active":
                raise NotNow("the contact is not written to any more")
            if row["status"] != "approved":
                raise NotNow("the text was withdrawn")
            if row["state"] != "running":
                raise NotNow("the campaign is not running")
            if (row["sender"], row["address"]) != (letter["sender"], letter["recipient"]):
                raise NotNow("the sender or the contact was changed")
            now = moment(self._now())
            if not Cadence.of(row).window.is_open(now.astimezone(ZoneInfo(row["zone"]))):
                raise NotNow("the contact's hours are over")
            if begins and not (row["until"] or 0) > milliseconds(now):
                raise NotNow("its turn is over")

        def before_data() -> bool:
            began = time.monotonic()
            _, rows = self._database.write(records.go_on(place, mine, self._now()), permission)
            if rows and rows[0]["attempt"] != mine:
                raise TemporaryTrouble("another attempt at this mail has begun")
            if time.monotonic() > began + SLOW:  # the mail would arrive later than noted
                raise TemporaryTrouble("the database took too long")
            check(next(iter(rows), None))
            return True

        def ended(status: str, said: str = "") -> dict[str, Any]:
            return Result(status, place["campaign_id"], at, letter["message_id"], said)._asdict()

        def begin() -> bool:
            row = next(iter(self._database.read(permission)[0]), None)
            check(row, begins=True)
            previous = (row or {}).get("attempt")
            self._database.write(records.begin(place, mine, previous, self._now()))
            return True

        asked(begin)
        try:
            return ended(self._outgoing.send(Letter(**letter), at, before_data))
        except perdure.NotDone:
            raise
        except Exception as error:  # `NoAnswer`, or something else that the next try may meet again
            said = str(error) or type(error).__name__
            if self._lookup is not None:
                return ended("unanswered", said)
            self._note_no_answer(place, said.replace(letter["recipient"], "the recipient"))
            raise  # only a person can tell

    def _note_no_answer(self, place: dict[str, int], said: str) -> None:
        """Stop the campaign if this is one of many. Its thread is held, so it asks here."""
        *_, [campaign] = self._database.write(
            records.change_touch(place, problem="NoAnswer", said=said),
            *trouble.consequences(place, "NoAnswer", said),
            sql("SELECT * FROM campaigns WHERE id = :id", id=place["campaign_id"]),
        )
        if campaign["state"] == "trouble":
            self._ask(campaign)

    def _arrived(
        self, place: dict[str, int], message_id: str, recipient: str, sequence: str, tries: int
    ) -> bool:
        """Ask the provider whether it has a mail that it did not acknowledge."""
        assert self._lookup is not None
        touch = records.look(self._database, **place).touch
        begun = (touch or {}).get("attempt_at") or 0
        is_over = self._now() >= begun + self._settings.lookup_after * 1000
        if is_over and touch is not None:
            is_over = bool(self._database.write(records.give_up(place, begun))[0])
        if self._lookup.accepted(message_id):
            return True
        if not is_over:
            raise NotYet(f"{message_id} may still be on its way.")
        return False


def _attempt(tries: int) -> str:
    """How the name of a conversation for the try of this number begins."""
    return f"{tries}-"


def _unanswered(
    place: dict[str, int], letter: dict[str, Any], sequence: str, tries: int, at: datetime
) -> perdure.Done:
    """What is known of a conversation that was cut off. The provider is asked later."""
    result = Result("unanswered", place["campaign_id"], at, letter["message_id"])
    return perdure.Done(result._asdict())


def sent_by(effects: Iterable[EffectRecord], step: int) -> dict[str, str]:
    """What to score for a touch: the effect that sent it. An effect that a person settled may
    belong to another run; then the score names the touch in words."""
    keys = [
        one.key
        for one in effects
        if one.name == SEND and one.arguments.get("place", {}).get("step") == step
    ]
    return {"effect": keys[-1]} if keys else {"about": f"touch {step}"}
