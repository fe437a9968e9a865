"""E-mail about new questions, and about runs that need a person: settings and their checks."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import parseaddr
from enum import StrEnum
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote, urlsplit

from perdure.commands.question_links import LASTS
from perdure.commands.webhooks import (
    MAIL,
    QUESTION_WAITING,
    Endpoint,
    as_address,
    check_endpoint_name,
    check_events,
    states_of,
)
from perdure.errors import BadArgument
from perdure.times import check_duration

EXAMPLE = "smtp://user:password@mail.example.com:587?starttls"


class Encryption(StrEnum):
    """How a connection is encrypted."""

    TLS = "tls"
    STARTTLS = "starttls"
    NONE = "plaintext"


PORTS = {Encryption.TLS: 465, Encryption.STARTTLS: 587, Encryption.NONE: 25}


@dataclass(frozen=True)
class SmtpServer:
    """Where mail is handed over."""

    host: str
    port: int
    encryption: Encryption
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Host and port, for errors."""
        return f"{self.host}:{self.port}"

    @classmethod
    def of(cls, url: Any) -> SmtpServer:
        """The server that a URL names. Raises `BadArgument`, which does not repeat the URL: it may
        contain a password."""
        wrong = BadArgument(f"The mail server must be a URL such as {EXAMPLE}.")
        if not isinstance(url, str):
            raise wrong
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme not in ("smtp", "smtps") or not host or parts.path not in ("", "/"):
            raise wrong
        encryption = _encryption(parts.scheme, parts.query, host)
        user = None if parts.username is None else unquote(parts.username)
        password = None if parts.password is None else unquote(parts.password)
        if (user is None) != (password is None) or not f"{user}{password}".isascii():
            raise BadArgument("The mail server's URL needs a user and a password, both in ASCII.")
        if user is not None and encryption is Encryption.NONE and not _is_this_machine(host):
            raise BadArgument(
                f"The password for {host} would be sent unencrypted: use smtps://, or ?starttls."
            )
        return cls(host, port or PORTS[encryption], encryption, user, password)


def _encryption(scheme: str, query: str, host: str) -> Encryption:
    if query not in ("", Encryption.STARTTLS, Encryption.NONE) or (scheme == "smtps" and query):
        raise BadArgument(
            "The mail server's URL may end with ?starttls or ?plaintext; with smtps://, neither."
        )
    if scheme == "smtps":
        return Encryption.TLS
    if not query and not _is_this_machine(host):
        raise BadArgument(
            f"Mail to {host}, with links that answer questions, would be sent unencrypted: use "
            "smtps:// or ?starttls. In a network that you trust: ?plaintext."
        )
    return Encryption(query or Encryption.NONE)


def _is_this_machine(host: str) -> bool:
    address = as_address(host)
    return host == "localhost" if address is None else ip_address(address).is_loopback


MOST = 20
"""Maximum number of recipients. Each is a row in the batch that stores a question."""

_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")


@dataclass(frozen=True)
class Mail:
    """Sends e-mail about new questions: `Runtime(mail=Mail(…), public_url=…)`.

    Each recipient gets a message with a link for answering in their own name.

    Attributes:
        server: URL of the SMTP server: `smtps://user:password@host` (TLS, port 465),
            `smtp://user:password@host?starttls` (port 587), or `smtp://host?plaintext` to send
            without encryption. Percent-encode special characters in the password.
        sender: Address of the sender, with or without a name: `Agents <agents@example.com>`.
        to: 1 to 20 recipients.
        events: What is mailed: some of the events of a `Webhook`.
        content: Whether the mail shows the question. If not, it contains only the name of the
            graph and the link.
        link_expires: How long a link works, at least a minute. Default: seven days.
        name: Part of the topic of the messages.
        tls: Trusted certificates. Default: those of the system.

    Raises:
        BadArgument: The server, an address, an event, the name or a time is invalid.
    """

    server: str = field(repr=False)
    sender: str
    to: Sequence[str]
    events: Sequence[str] = (QUESTION_WAITING,)
    content: bool = True
    link_expires: timedelta = LASTS
    name: str = "mail"
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        SmtpServer.of(self.server)
        check_address("sender", self.sender_address)
        if re.search(r"[\x00-\x1f\x7f]", self.sender):
            raise BadArgument(f"sender={self.sender!r} must not have control characters.")
        if isinstance(self.to, str) or not 0 < len(self.to) <= MOST:
            raise BadArgument(
                f"to={self.to!r}: pass a list of 1 to {MOST} addresses. For more people use a "
                "mailing list; they then share one link and answer under one name."
            )
        for address in self.to:
            check_address("to", address)
        check_events(self.events)
        check_endpoint_name(self.name)
        if not self.name:
            raise BadArgument("The name of the mail must not be empty.")
        check_duration("link_expires", self.link_expires, timedelta(minutes=1))

    @property
    def sender_address(self) -> str:
        """The address in `sender`, which may have a name before it."""
        return parseaddr(self.sender)[1]

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """The recipients, each with its events."""
        topic, asks = f"{MAIL}:{self.name}", QUESTION_WAITING in self.events
        states = states_of(self.events)
        return {
            address: Endpoint(topic, self._name_of(address), states, questions=asks)
            for address in self.to
        }

    def recipient_of(self, message_id: str) -> str | None:
        """The recipient of an outbox message, whose id ends with the recipient's name. None if they
        are no longer configured."""
        recipients = [one for one in self.to if message_id.endswith(f"-{self._name_of(one)}")]
        return recipients[0] if recipients else None

    def _name_of(self, address: str) -> str:
        """A hash, so that the outbox does not contain the address in plain text."""
        return f"{self.name}-{hashlib.sha256(address.lower().encode()).hexdigest()[:12]}"


def from_environment(environ: Mapping[str, str]) -> Mail | None:
    """The mail settings in the environment, for a runtime whose code sets none.

    `PERDURE_SMTP_URL` is the server, `PERDURE_MAIL_FROM` the sender, `PERDURE_MAIL_TO` has the
    recipients, separated by commas or spaces. All three are required.
    """
    names = ("PERDURE_SMTP_URL", "PERDURE_MAIL_FROM", "PERDURE_MAIL_TO")
    values = [environ.get(name, "").strip() for name in names]
    if not any(values):
        return None
    if missing := [name for name, value in zip(names, values, strict=True) if not value]:
        raise BadArgument(f"Mail also needs {' and '.join(missing)}.")
    server, sender, to = values
    return Mail(server, sender, re.split(r"[,\s]+", to.strip(", ")))


def check_address(name: str, address: Any) -> None:
    """Refuse what is not a plain mail address: it becomes part of SMTP commands and of headers."""
    if not isinstance(address, str) or len(address) > 254 or not _ADDRESS.fullmatch(address):
        raise BadArgument(
            f"{name}: {address!r} is not a mail address such as ana@example.com. Write a domain "
            "that is not ASCII in Punycode."
        )
