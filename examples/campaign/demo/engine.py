"""An engine that lives through the month of the demo, as its conductor sees it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from email.message import EmailMessage
from types import TracebackType
from typing import Protocol, Self

from .crew import Crew, Nursery
from .plan import Contact, Decision

BRIEF = "A quieter kitchen"


@dataclass(frozen=True)
class Seen:
    """The state of one contact."""

    status: str
    """`active`, or how it ended."""
    touches: dict[int, str]
    """The status of each touch."""
    sent: dict[int, int]
    """When each was sent, as the engine noted it."""
    held: int | None
    """The touch whose draft waits for a person, and since when."""
    since: int
    busy: bool
    """Whether it is being driven, or should be."""
    due: int | None
    """When the clock wakes it."""
    over: bool
    trouble: str = ""
    """Why a run is held, if not for a draft."""


class Month(Protocol):
    """An engine with its database, its processes and its post office."""

    crew: Crew
    pause: tuple[float, float]
    """Seconds between two kills at random, at least and at most."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def staff(self, nursery: Nursery) -> None:
        """Begin to work."""

    def look(self) -> dict[int, Seen]:
        """The state of each contact, by id."""

    def receive(self, content: bytes) -> None:
        """Receive a mail. It is on disk when this returns."""

    def decide(self, contact: Contact, touch: int, decision: Decision) -> bool:
        """Apply a person's decision on a draft. False: it is no longer held."""

    def message_id(self, contact: Contact, touch: int) -> str:
        """The Message-ID of a touch; empty if it has no draft."""

    def sending(self, contact: Contact) -> int:
        """The touch that is on its way to a contact."""

    def driver(self, contact: Contact) -> int | None:
        """The process that drives a contact's thread."""

    def problems(self) -> list[str]:
        """Problems in its database."""

    def bears(self, pid: int) -> bool:
        """Whether that process may be killed. perdure holds a run for a person when five workers in
        a row have died with it."""


def letter(kind: str, contact: Contact, answered: str) -> bytes:
    """An incoming mail about one of ours."""
    mail = EmailMessage()
    mail["From"], mail["To"] = contact.address, "ana@sender.example"
    mail["Message-ID"] = f"<{uuid.uuid4().hex}@{contact.address.partition('@')[2]}>"
    mail["In-Reply-To"] = answered
    text = {
        "reply": "Thank you, let us talk next week.",
        "unsubscribe": "Unsubscribe me, please.",
        "automatic": "I am out of office until Monday.",
        "bounce": "The mail could not be delivered.",
    }[kind]
    mail["Subject"] = "Unsubscribe" if kind == "unsubscribe" else f"Re: {BRIEF}"
    if kind == "automatic":
        mail["Auto-Submitted"] = "auto-replied"
    if kind != "bounce":
        mail.set_content(text)
        return mail.as_bytes()
    return (
        f"From: MAILER-DAEMON@sender.example\nTo: ana@sender.example\nSubject: Undelivered\n"
        f"Message-ID: {mail['Message-ID']}\nMIME-Version: 1.0\n"
        "Content-Type: multipart/report; report-type=delivery-status; boundary=line\n\n"
        f"--line\nContent-Type: text/plain\n\n{text}\n\n"
        "--line\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; sender.example\n\n"
        f"Final-Recipient: rfc822; {contact.address}\nAction: failed\nStatus: 5.1.1\n\n"
        f"--line\nContent-Type: text/rfc822-headers\n\nMessage-ID: {answered}\n"
        f"To: {contact.address}\n\n--line--\n"
    ).encode()
