"""One conversation with the mail server about a touch, and what is known of it afterwards.

A try is an effect with a key: (campaign, recipient, step, number of the try). It ends as `sent`,
`unanswered`, or with a refusal: the server's, or our own (`NotNow`). Each is final for its key, and
the next try has the next number. A mail that may have gone out is not sent again until it is known
not to have arrived:

    killed before the content       `unanswered`; the provider does not know it: it is tried again
    killed after it                 `unanswered`; the provider is asked by Message-ID, by the clock
    no answer to the content        the same; if the provider does not know it, that is a refusal
    suspended on the way            the same; before the provider's no counts, the conversation is
                                    given up in the touch, and its last check finds that
    no look-up                      the run is held, and a person settles it

The last check of campaign, contact, text and hours is by the journal's clock: when the server has
accepted the recipient, and again when it asks for the content, before any of it is sent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import perdure
from perdure.times import moment
from perdure.types import EffectRecord

from . import records
from .cadence import Cadence
from .database import Database, Row
from .mail import Letter, NoAnswer, Outgoing
from .records import Place
from .refusals import TemporaryTrouble
from .settings import Settings

SEND = "send touch"
"""The effect that sends a touch."""
SENT, UNANSWERED = "sent", "unanswered"
MANY = 1000
"""More effects than a run has."""
SLOW = 5.0
"""Maximum seconds for the last check before a mail goes out."""


class NotNow(perdure.NotDone):
    """The mail may not go out at this moment, or was cut off on our side and did not arrive: the
    thread looks again."""


class NotYet(Exception):
    """The provider does not have the mail; it may still be on its way."""


class Sending:
    """Sends letters, each once."""

    def __init__(self, settings: Settings, database: Database, now: Callable[[], int]) -> None:
        """`now` is the journal's time, in milliseconds."""
        self._settings, self._database, self._now = settings, database, now
        self._outgoing = Outgoing(settings)
        can_ask = bool(settings.lookup_url)
        self.send = perdure.effect(
            name=SEND,
            key=lambda place, letter, tries, at: [
                place["campaign_id"],
                letter["recipient"],
                place["step"],
                tries,
            ],
            verify=(lambda place, letter, tries, at: perdure.Done(UNANSWERED)) if can_ask else None,
            unknown="retry" if can_ask else "hold",
            retry=None,
        )(self._send)
        self.arrived = perdure.effect(
            name="look up touch",
            key=lambda place, message_id, tries: [*place.values(), tries],
            retry=perdure.Retry(  # for about a day, by the clock
                attempts=48,
                first=timedelta(seconds=max(10.0, settings.lookup_after)),
                longest=timedelta(minutes=30),
            ),
        )(self._arrived)

    def deliver(self, place: Place, letter: dict[str, Any], tries: int, at: datetime) -> None:
        """Send a letter. Raises `NotNow`, or the server's refusal; then the next try has another
        number. When it returns the mail was accepted, by whatever a person settled it as."""
        outcome = str(self.send(place, letter, tries, at))
        if not outcome.startswith(UNANSWERED) or self.arrived(place, letter["message_id"], tries):
            return
        response = outcome.removeprefix(UNANSWERED).strip()
        if response:
            raise TemporaryTrouble(f"{response}; the provider does not have the mail")
        raise NotNow("the conversation was cut off before the content")

    def _send(self, place: Place, letter: dict[str, Any], tries: int, at: datetime) -> str:
        """One conversation with the mail server."""
        attempt = f"{tries}-{uuid.uuid4().hex}"
        permission = records.permission(place)
        [[row]] = self._database.read(permission)
        self._check(row, letter)
        self._database.write(records.begin_attempt(place, attempt, row["attempt"], self._now()))

        def may_send() -> bool:
            began = time.monotonic()
            try:
                _, [row] = self._database.write(
                    records.continue_attempt(place, attempt, self._now()), permission
                )
            except Exception as error:
                raise TemporaryTrouble(f"the last check failed: {error}") from error
            if row["attempt"] != attempt:
                raise TemporaryTrouble("another attempt at this mail has begun")
            if time.monotonic() > began + SLOW:  # the mail would arrive later than noted
                raise TemporaryTrouble("the database took too long")
            self._check(row, letter)
            return True

        try:
            return self._outgoing.send(Letter(**letter), at, may_send)
        except NoAnswer as error:
            if self._settings.lookup_url:
                return f"{UNANSWERED} {error}"
            raise  # only a person can tell

    def _check(self, row: Row, letter: dict[str, Any]) -> None:
        """Raise `NotNow` unless the touch may go out at this moment."""
        if row["opted_out"] is not None or not row["member"] == row["contact"] == "active":
            raise NotNow("the contact is not written to any more")
        if row["status"] != "approved":
            raise NotNow("the text was withdrawn")
        if row["state"] != "running":
            raise NotNow("the campaign is not running")
        local = moment(self._now()).astimezone(ZoneInfo(row["zone"]))
        if not Cadence.of(row).window.is_open(local):
            raise NotNow("the contact's hours are over")

    def _arrived(self, place: Place, message_id: str, tries: int) -> bool:
        """Ask the provider whether it has a mail that it did not acknowledge."""
        touch = records.look(self._database, **place).touch
        assert touch is not None
        begun = touch["attempt_at"]
        is_over = self._now() >= begun + self._settings.lookup_after * 1000
        if is_over:
            is_over = bool(self._database.write(records.give_up_attempt(place, begun))[0])
        if self._outgoing.accepted(message_id):
            return True
        if not is_over:
            raise NotYet(f"{message_id} may still be on its way.")
        return False


def sent_by(effects: Iterable[EffectRecord], step: int) -> dict[str, str]:
    """What to score for a touch: the effect that sent it. An effect that a person settled may
    belong to another run; then the score names the touch in words."""
    keys = [
        one.key
        for one in effects
        if one.name == SEND and one.arguments.get("place", {}).get("step") == step
    ]
    return {"effect": keys[-1]} if keys else {"about": f"touch {step}"}
